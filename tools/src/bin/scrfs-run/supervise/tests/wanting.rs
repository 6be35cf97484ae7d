//! Coordinators present an older dataset than nodes have.

use super::*;

/// Two of the four that hold dataset 7 were named while a switch was away.
fn two_were_named() -> Story {
    let hosts = ["n0", "n1", "n2", "n3", "n4", "n5"].map(str::to_owned).to_vec();
    let mut s = Story::of(Plan { hosts, ..plan() });
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]).ready("");
    s.tell(lost("n2")).tell(lost("n3")).tell(Input::ProgramEnded(137));
    s.coordinators_end().expect(&["look+sweep n0 n1 n4 n5"]);
    s.looked_as(vec![holder("n0", 7), holder("n1", 7), node("n4"), node("n5")]);
    s.expect(&["Restart n0 n1 n4 n5"]).tell(Input::Met);
    s
}

fn node(host: &str) -> Look {
    Look { host: host.to_owned(), ..Look::default() }
}

fn presents(id: u64) -> Input {
    Input::Ready(Some((id, format!("ck.{id}").into())))
}

#[test]
fn nodes_that_are_back_are_asked_before_a_program_begins_from_less_than_they_have() {
    for (presented, program) in [(Input::Ready(None), "from -"), (presents(6), "from ck.6")] {
        let mut s = two_were_named();
        s.tell(presented.clone()).expect(&["stop coordinators"]);
        assert!(
            s.said().contains("dataset 7 is not presented without other nodes: n2 n3 asked"),
            "{}",
            s.said()
        );
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4 n5"]);
        let all = ["n0", "n1", "n2", "n3"].map(|host| holder(host, 7));
        s.looked_as([&all[..], &[node("n4"), node("n5")]].concat()).expect(&["Restart n0 n1 n2 n3"]);
        s.tell(presents(7)).expect(&["program n0 n1 n2 n3 from ck.7"]);
        // They are gone for good: once is enough.
        let mut s = two_were_named();
        s.tell(presented.clone()).coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4 n5"]);
        let gone = |host| Look { problem: Some("no answer".to_owned()), ..node(host) };
        let left = [holder("n0", 7), holder("n1", 7), gone("n2"), gone("n3"), node("n4"), node("n5")];
        s.looked_as(left.to_vec()).expect(&["Restart n0 n1 n4 n5"]);
        s.tell(presented).expect(&[&format!("program n0 n1 n4 n5 {program}")]);
        assert!(s.said().contains("dataset 7 is not presented by the nodes that are left"), "{}", s.said());
    }
    // The prefix has what the caches lack.
    two_were_named().tell(presents(7)).expect(&["program n0 n1 n4 n5 from ck.7"]);
    two_were_named().tell(presents(9)).expect(&["program n0 n1 n4 n5 from ck.9"]);
    // Coordinators do not want to go on without it.
    let mut s = two_were_named();
    s.tell(Input::CoordinatorsEnded(LACKS)).expect(&["look+sweep n0 n1 n2 n3 n4 n5"]);
}

#[test]
fn all_that_hold_the_newest_dataset_are_used_where_it_takes_more_than_run_the_program() {
    let mut s = Story::of(Plan { nodes: 2, ..plan() });
    let nodes = || vec![holder("n0", 7), holder("n1", 7), holder("n2", 7), holder("n3", 5), node("n4")];
    s.looked_as(nodes()).expect(&["Restart n0 n1"]);
    s.tell(presents(5)).expect(&["stop coordinators"]);
    assert!(s.said().contains("1 more nodes that have it are used"), "{}", s.said());
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked_as(nodes()).expect(&["Restart n0 n1 n2"]);
    assert!(s.out.iter().any(|o| matches!(o, Output::StartCoordinators { program: 2, .. })), "{}", s.said());
    s.tell(presents(7)).expect(&["program n0 n1 from ck.7"]);
    // One of them is lost, and the program needs no more than two nodes.
    s.tell(lost("n2")).expect(&["stop program", "stop coordinators", "hurry"]);
    s.tell(Input::ProgramEnded(137)).coordinators_end();
    s.looked_as(vec![holder("n0", 7), holder("n1", 7)]).expect(&["Restart n0 n1"]);
}

#[test]
fn what_is_not_wanted_is_not_waited_for() {
    let mut s = Story::of(Plan { nodes: 2, fresh: true, ..plan() });
    let nodes = || vec![holder("n0", 7), holder("n1", 7), holder("n2", 7)];
    s.looked_as(nodes())
        .expect(&["Restart n0 n1"])
        .tell(Input::Ready(None))
        .expect(&["program n0 n1 from -"]);
    s.tell(Input::ProgramEnded(9)).coordinators_end().looked_as(nodes()).expect(&["Restart n0 n1"]);
    s.tell(Input::Ready(None)).expect(&["program n0 n1 from -"]);
}
