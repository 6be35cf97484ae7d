//! A program that gets nowhere.

use super::*;

fn watched() -> Story {
    Story::running(Plan { watchdog: Duration::from_secs(100), ..plan() })
}

fn settle(s: &mut Story) -> &mut Story {
    s.tell(Input::CoordinatorsEnded(1))
        .expect(&["Attach n0 n1 n2 n3"])
        .after(30)
        .tell(Input::Tick)
        .expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 0).expect(&[]);
    s.ready("")
}

#[test]
fn a_program_without_a_new_dataset_is_ended_and_started_again() {
    let mut s = watched();
    assert_eq!(s.wakes(), Some(100));
    s.after(60).tell(Input::Sealed).expect(&[]);
    s.after(99).tell(Input::Tick).expect(&[]);
    s.after(1).tell(Input::Tick).expect(&["stop program", "stop coordinators"]);
    assert!(s.said().contains("no dataset has become complete for 100 s: ending"), "{}", s.said());
    s.tell(Input::ProgramEnded(137)).coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&[], 7).expect(&["Restart n0 n1 n2 n3"]).tell(Input::Met).after(500).tell(Input::Tick);
    // The time that recovery takes is not the program's. What hangs twice in a row, and protects
    // nothing new, hangs a third time.
    for then in ["Restart n0 n1 n2 n3", "finish 1"] {
        s.ready("ck.7").expect(&["program n0 n1 n2 n3 from ck.7"]);
        s.after(99).tell(Input::Tick).expect(&[]);
        s.after(1).tell(Input::Tick).expect(&["stop program", "stop coordinators"]);
        s.tell(Input::ProgramEnded(137)).coordinators_end().looked(&[], 7).expect(&[then]);
    }
}

#[test]
fn while_coordinators_are_away_and_while_it_halts_it_is_not_judged() {
    let mut s = watched();
    s.after(90);
    settle(&mut s).after(99).tell(Input::Tick).expect(&[]);
    s.tell(Input::HaltDue("no checkpoints are left".to_owned())).expect(&[]);
    s.after(2).tell(Input::Tick).expect(&[]);
}

#[test]
fn a_supervisor_that_was_stopped_judges_nothing() {
    let mut s = watched();
    s.after(1000).tell(Input::Tick).expect(&[]);
    s.after(99).tell(Input::Tick).expect(&[]);
    s.after(3).tell(Input::Tick).expect(&["stop program", "stop coordinators"]);
}

#[test]
fn without_a_limit_it_may_take_for_ever() {
    let mut s = Story::running(plan());
    assert_eq!(s.wakes(), None);
    s.after(1_000_000).tell(Input::Tick).expect(&[]);
}
