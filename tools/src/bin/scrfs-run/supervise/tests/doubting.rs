//! Nodes that do not answer, whose coordinators run.

use super::*;

/// Asked through a launcher that is slow, or whose scheduler is.
fn no_answer(hosts: &[&str], newest: u64) -> Vec<Look> {
    let look = |host: &&str| {
        let silent = hosts.contains(host);
        let problem = silent.then(|| "no answer in 8 s".to_owned());
        Look { host: (*host).to_owned(), problem, silent, newest, ..Look::default() }
    };
    HOSTS[..4].iter().map(look).collect()
}

fn silence() -> Input {
    Input::Counted { run: 1, count: Count::Silence }
}

#[test]
fn a_program_goes_on_while_its_coordinators_run_whoever_does_not_answer() {
    let mut s = Story::running(Plan { launcher_timeout: Duration::from_secs(4), ..plan() });
    for round in 0..3 {
        s.after(30).tell(silence()).expect(&["look n0 n1 n2 n3"]);
        s.looked_as(no_answer(&["n0", "n1"], 0)).expect(&[]);
        assert_eq!(s.said().contains("n0 n1: no answer through the launcher"), round == 0, "{}", s.said());
    }
    // Nobody is left out; so the next run is on the same nodes.
    s.tell(Input::ProgramEnded(9)).coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&[], 7).expect(&["Restart n0 n1 n2 n3"]);
}

#[test]
fn a_node_that_somebody_says_is_gone_ends_the_run_beside_others_that_do_not_answer() {
    let mut s = Story::running(Plan { launcher_timeout: Duration::from_secs(4), ..plan() });
    s.tell(silence()).expect(&["look n0 n1 n2 n3"]);
    let mut nodes = no_answer(&["n0", "n1"], 0);
    (nodes[1].silent, nodes[1].problem) = (false, Some("the scheduler says that it is down*".to_owned()));
    s.looked_as(nodes).expect(&["stop program", "stop coordinators", "hurry"]);
    s.tell(Input::ProgramEnded(137)).coordinators_end().expect(&["look+sweep n0 n2 n3 n4"]);
    // So does one that the other nodes name.
    let mut s = Story::running(Plan { launcher_timeout: Duration::from_secs(4), ..plan() });
    s.tell(silence()).looked_as(no_answer(&["n1"], 0)).expect(&[]);
    s.tell(lost("n1")).expect(&["stop program", "stop coordinators", "hurry"]);
}

/// They have ended, were told to end, or have not settled: nobody watches the nodes.
#[test]
fn silence_counts_where_no_coordinators_answer_for_the_nodes() {
    let mut s = Story::running(plan());
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    s.looked_as(no_answer(&["n3"], 2)).expect(&["stop program", "hurry"]);
    let mut s = Story::running(plan());
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    s.after(2).tell(Input::Tick).expect(&["Attach n0 n1 n2 n3"]);
    // Those that came back meanwhile do.
    s.tell(Input::Ready(None)).looked_as(no_answer(&["n3"], 2)).expect(&[]);
    let mut s = Story::running(plan());
    s.tell(Input::CoordinatorsLeave).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(no_answer(&["n3"], 2)).expect(&["stop program", "stop coordinators", "hurry"]);
    let mut s = Story::of(plan());
    s.looked(&[], 0).after(25).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(no_answer(&["n2"], 0)).expect(&["stop coordinators", "hurry"]);
}

/// They watch one another, and a launcher may be slow for longer than a look takes.
#[test]
fn a_node_on_which_coordinators_have_met_is_left_out_at_the_second_look() {
    let doubted = || {
        let mut s = Story::of(plan());
        s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]).tell(Input::Met);
        s.after(25).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
        s.after(16).looked_as(no_answer(&["n1", "n2"], 0)).expect(&[]);
        assert!(s.said().contains("n1 n2: no answer through the launcher"), "{}", s.said());
        s.after(29).tell(Input::Tick).expect(&[]);
        s.after(1).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
        s
    };
    doubted().looked_as(no_answer(&["n2"], 0)).expect(&["stop coordinators", "hurry"]);
    // Whoever answers meanwhile begins anew.
    let mut s = doubted();
    s.looked_as(no_answer(&[], 0)).after(60).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(no_answer(&["n2"], 0)).expect(&[]);
    // One that somebody names is lost at once.
    s.tell(lost("n2")).expect(&["stop coordinators", "hurry"]);
}

/// A look's word alone leaves nobody out for good.
#[test]
fn nodes_that_a_look_alone_has_left_out_are_asked_before_the_job_is_given_up() {
    let silent = |host: &str| Look { silent: true, ..problem(host) };
    let ending = |host: &str| Look { ending: true, ..problem(host) };
    for (n0, n1) in [(silent("n0"), silent("n1")), (ending("n0"), ending("n1"))] {
        let mut s = Story::running(plan());
        s.tell(Input::ProgramEnded(9)).coordinators_end().looked_as(vec![n0, n1]);
        s.expect(&["look+sweep n0 n1 n2 n3 n4"]).looked(&[], 5).expect(&["Restart n0 n1 n2 n3"]);
    }
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(9)).coordinators_end();
    s.looked_as(vec![problem("n0"), problem("n1")]).expect(&["finish 9"]);
    // Nor is what a person has to see to asked for twice.
    let refused = |host: &str| Look { remedy: Some("do this"), ..silent(host) };
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(9)).coordinators_end();
    s.looked_as(vec![refused("n0"), refused("n1")]).expect(&["finish 9"]);
    // A first start has nothing to lose, unless nodes have a dataset.
    let mut s = Story::of(plan());
    s.looked_as(vec![silent("n0"), silent("n1")]).expect(&["finish 1"]);
    let mut s = Story::of(plan());
    s.looked_as(vec![silent("n0"), silent("n1"), holder("n2", 5)]);
    s.expect(&["look+sweep n0 n1 n2 n3 n4"]);
}

fn problem(host: &str) -> Look {
    Look { host: host.to_owned(), problem: Some("a problem".to_owned()), ..Look::default() }
}

/// An mpirun that has lost a node may end with 0. Coordinators find such a node in their time.
#[test]
fn exit_0_counts_when_coordinators_have_had_the_time_to_miss_a_node() {
    let checking = || {
        let mut s = Story::running(plan());
        s.tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
        s.looked_as(no_answer(&["n1"], 5)).expect(&[]);
        assert_eq!(s.wakes(), Some(5));
        s.after(5).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
        s
    };
    checking().looked_as(no_answer(&[], 5)).expect(&["save n0 600 due"]);
    checking().tell(lost("n1")).expect(&["stop coordinators", "hurry"]);
    checking().coordinators_end().looked_as(no_answer(&["n1"], 5)).expect(&["look+sweep n0 n2 n3 n4"]);
    let mut s = checking();
    s.after(25).looked_as(no_answer(&["n1"], 5)).expect(&[]);
    s.after(6).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(no_answer(&["n1"], 5)).expect(&["save n0 600 due"]);
}

/// A scheduler that ends a job ends launchers too, whatever scrfs-run asks by them.
#[test]
fn no_node_is_blamed_when_the_job_was_told_to_end() {
    let end = EndPlan { grace: Duration::from_mins(1), ..plan().end };
    let mut s = Story::running(Plan { end, ..plan() });
    s.tell(Input::Signal(15)).expect(&["stop program"]);
    s.tell(Input::ProgramEnded(143)).expect(&["save n0 60"]);
    let ended = || Input::Saved(Err(SaveError::Failed("it was ended".to_owned())));
    for _ in 0..3 {
        s.tell(ended()).expect(&[]).after(2).tell(Input::Tick);
    }
    s.tell(ended()).expect(&["look n0 n1 n2 n3"]);
    // What asks the others was ended before it named them all.
    let mut nodes = no_answer(&["n1", "n2", "n3"], 5);
    nodes[0] = Look { held_by: 4, ..unsaved("n0") };
    nodes.truncate(3);
    s.looked_as(nodes).expect(&["stop coordinators"]);
    assert!(!s.said().contains("left out"), "{}", s.said());
    assert!(s.said().contains("it is in the caches of 4 nodes, n0 among them"), "{}", s.said());
}

#[test]
fn what_saves_is_started_again_when_its_launcher_died() {
    let crashed = || Input::Saved(Err(SaveError::Crashed));
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0)).looked(&[], 5).expect(&["save n0 600 due"]);
    for _ in 0..3 {
        s.after(1).tell(crashed());
        assert!(s.out.iter().any(|o| matches!(o, Output::Save { .. })), "{}", s.said());
    }
    s.tell(crashed()).expect(&["look n0 n1 n2 n3"]);
    assert!(s.said().contains("not all is saved: its launcher was ended by a signal"), "{}", s.said());
}
