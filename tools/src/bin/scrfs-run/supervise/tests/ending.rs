//! The end of a job, and halting.

use scrfs_tools::probe::Unsealed;

use super::*;

/// With time for the newest dataset.
fn saving() -> Plan {
    Plan { end: EndPlan { grace: Duration::from_mins(1), ..plan().end }, ..plan() }
}

fn halt(s: &mut Story) -> &mut Story {
    s.tell(Input::HaltDue("no checkpoints are left".to_owned())).expect(&[])
}

#[test]
fn what_is_done_is_saved() {
    let mut s = Story::running(saving());
    s.after(5).tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    s.tell(Input::Saved(Err("x".to_owned()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 1"]);

    // Whoever forgot the marker hears of it.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 0).expect(&["save n0 600 due"]);
    assert!(format!("{:?}", s.out).contains("nothing was sealed"), "{:?}", s.out);
}

#[test]
fn what_is_given_up_is_saved_by_new_coordinators() {
    let mut s = Story::running(Plan { runs: Some(1), ..saving() });
    s.tell(Input::ProgramEnded(3)).expect(&["stop coordinators"]);
    s.coordinators_end();
    s.looked(&[], 5).expect(&["Attach n0 n1 n2 n3"]);
    s.after(2).tell(Input::Ready(None)).expect(&["save n0 58"]);
    s.tell(Input::Saved(Ok(()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 3"]);
}

#[test]
fn where_a_node_is_lost_its_part_is_rebuilt_first() {
    let mut s = Story::running(Plan { runs: Some(1), ..saving() });
    s.tell(Input::ProgramEnded(205)).expect(&["stop coordinators"]);
    s.coordinators_end();
    s.looked(&["n1"], 5).expect(&["Restart n0 n2 n3 n4"]);
    assert!(s.out.iter().any(|o| matches!(o, Output::StartCoordinators { keep: true, .. })), "{:?}", s.out);
    s.ready("ck.5").expect(&["save n0 60"]);
    // Nobody is left.
    let mut s = Story::running(Plan { runs: Some(1), ..saving() });
    s.tell(Input::ProgramEnded(205)).expect(&["stop coordinators"]);
    s.coordinators_end();
    s.looked(&HOSTS, 5).expect(&["finish 205"]);
}

#[test]
fn a_node_that_is_lost_while_the_job_ends_has_its_part_rebuilt_too() {
    // While the newest dataset is saved.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    s.after(2).tell(lost("n0")).expect(&["stop coordinators", "hurry"]);
    // Its daemon was asked; that it does not answer tells nothing.
    s.tell(Input::Saved(Err("no answer".to_owned()))).expect(&[]);
    s.coordinators_end().expect(&["Restart n1 n2 n3 n4"]);
    assert!(s.out.iter().any(|o| matches!(o, Output::StartCoordinators { keep: true, .. })), "{:?}", s.out);
    s.ready("ck.5").expect(&["save n1 598 due"]);
    s.tell(Input::Saved(Ok(()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 0"]);

    // While the program is being ended.
    let mut s = Story::running(saving());
    s.tell(Input::Signal(15)).expect(&["stop program"]);
    s.tell(lost("n2")).expect(&["stop coordinators", "hurry"]);
    s.tell(Input::ProgramEnded(137)).expect(&[]);
    s.coordinators_end().expect(&["Restart n0 n1 n3 n4"]);
    s.ready("ck.5").expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 143"]);

    // A spare is missed by nobody.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).tell(lost("n4")).expect(&[]);
}

#[test]
fn a_halted_program_that_loses_a_node_is_not_started_again() {
    let mut s = Story::running(saving());
    halt(&mut s).tell(lost("n1")).expect(&["stop program", "stop coordinators", "hurry"]);
    s.tell(Input::ProgramEnded(137)).coordinators_end().expect(&["look+sweep n0 n2 n3 n4"]);
    s.looked(&[], 5).expect(&["Restart n0 n2 n3 n4"]);
    s.ready("ck.5").expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 1"]);
}

#[test]
fn what_cannot_be_saved_is_named() {
    let mut s = Story::running(Plan { runs: Some(1), ..saving() });
    s.tell(Input::ProgramEnded(3));
    s.coordinators_end();
    s.looked(&[], 5).expect(&["Attach n0 n1 n2 n3"]);
    s.after(60).tell(Input::Tick).expect(&["stop coordinators", "look n0 n1 n2 n3"]);
    let serial = s.serial;
    let look =
        |host: &str| Look { host: host.into(), unsaved: Some("ck.5 (dataset 5)".into()), ..Look::default() };
    s.tell(Input::Looked { serial, nodes: vec![look("n0"), look("n2")], halt: None })
        .expect(&["stop coordinators"]);
    let said = format!("{:?}", s.out);
    assert!(said.contains("not on the PFS: ck.5 (dataset 5); it is in the caches of n0 n2"), "{said}");
    s.coordinators_end().expect(&["finish 3"]);
}

#[test]
fn a_signal_ends_the_program_then_saves_and_a_second_one_does_not_wait() {
    let mut s = Story::running(saving());
    s.tell(Input::Signal(15)).expect(&["stop program"]);
    s.after(3).tell(Input::ProgramEnded(143)).expect(&["save n0 57"]);
    s.tell(Input::Saved(Ok(()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 143"]);

    let mut s = Story::running(saving());
    s.tell(Input::Signal(15)).expect(&["stop program"]);
    s.tell(Input::Signal(15)).expect(&[]);
    s.after(1).tell(Input::Signal(15)).expect(&["stop program", "stop coordinators"]);
    s.coordinators_end().tell(Input::ProgramEnded(143)).expect(&["finish 143"]);

    // A program that does not end keeps nothing from being saved.
    let mut s = Story::running(saving());
    s.tell(Input::Signal(2));
    s.after(15).tell(Input::Tick).expect(&["save n0 45"]);

    // Between two runs.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(9)).expect(&["stop coordinators"]);
    s.tell(Input::Signal(15)).expect(&[]);
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.tell(Input::Ready(None)).expect(&["save n0 60"]);
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(9));
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&[], 1).expect(&["Restart n0 n1 n2 n3"]);
    s.tell(Input::Signal(15)).expect(&[]);
    s.ready("ck.1").expect(&["save n0 60"]);
}

#[test]
fn a_halt_lets_the_program_end_by_itself() {
    let mut s = Story::running(saving());
    halt(&mut s).after(20).tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 0"]);

    // It fails, and is not started again.
    let mut s = Story::running(saving());
    halt(&mut s).after(20).tell(Input::ProgramEnded(7)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&[], 5).expect(&["Attach n0 n1 n2 n3"]);
    s.ready("").expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 7"]);
}

#[test]
fn a_program_that_does_not_end_gets_the_signal_and_is_ended() {
    let mut s = Story::running(saving());
    halt(&mut s).after(29).tell(Input::Tick).expect(&[]);
    halt(&mut s).after(1).tell(Input::Tick).expect(&["signal 10"]);
    s.after(10).tell(Input::ProgramEnded(138)).expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 75"]);

    let mut s = Story::running(saving());
    halt(&mut s).after(30).tell(Input::Tick).expect(&["signal 10"]);
    s.after(30).tell(Input::Tick).expect(&["stop program"]);
    s.after(1).tell(Input::Tick).expect(&[]);
    s.tell(Input::ProgramEnded(143)).expect(&["save n0 60"]);
}

#[test]
fn the_halt_file_keeps_a_program_from_being_started() {
    let looked = |s: &mut Story| {
        let nodes = HOSTS.map(|host| Look { host: host.to_owned(), ..Look::default() }).to_vec();
        let serial = s.serial;
        s.tell(Input::Looked { serial, nodes, halt: Some("the halt file says stop".to_owned()) });
        assert!(format!("{:?}", s.out).contains("halted, because the halt file says stop"), "{:?}", s.out);
    };
    let mut s = Story::of(saving());
    looked(&mut s);
    s.expect(&["finish 75"]);
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(9));
    s.coordinators_end();
    looked(&mut s);
    s.expect(&["Attach n0 n1 n2 n3"]);
}

#[test]
fn before_the_allocation_ends_the_program_does() {
    let end = EndPlan { left: Some(Duration::from_mins(10)), ..saving().end };
    let mut s = Story::running(Plan { end, ..saving() });
    assert_eq!(
        s.out.iter().find_map(|o| if let Output::Wake(at) = o { Some(at.as_secs()) } else { None }),
        Some(510)
    );
    s.after(509).tell(Input::Tick).expect(&[]);
    s.after(1).tell(Input::Tick).expect(&[]);
    assert!(format!("{:?}", s.out).contains("halting, because the allocation ends in 90 s"), "{:?}", s.out);
    s.after(30).tell(Input::Tick).expect(&["signal 10"]);
    s.after(5).tell(Input::ProgramEnded(9)).expect(&["save n0 60"]);
    // Too late to begin.
    let mut s = Story::of(Plan { end, ..saving() });
    s.after(510).looked(&[], 0).expect(&["finish 75"]);
    // Nothing is to be saved: the scheduler ends it.
    let end = EndPlan { grace: Duration::ZERO, ..end };
    let mut s = Story::running(Plan { end, ..saving() });
    s.after(599).tell(Input::Tick).expect(&[]);
    assert!(s.out.is_empty(), "{:?}", s.out);
}

#[test]
fn what_a_restart_removes_is_named_before() {
    let unsealed = |bytes| vec![Unsealed { name: "ck.9".to_owned(), files: 2, bytes }];
    let nodes: Vec<Look> = [("n0", 1024), ("n2", 2048), ("n4", 99)]
        .map(|(host, bytes)| Look { host: host.to_owned(), unsealed: unsealed(bytes), ..Look::default() })
        .to_vec();
    for (keep, word) in [(false, "removes"), (true, "moves aside")] {
        let end = EndPlan { keep_unsealed: keep, ..plan().end };
        let mut s = Story::of(Plan { end, ..plan() });
        let serial = s.serial;
        s.tell(Input::Looked { serial, nodes: nodes.clone(), halt: None }).expect(&["Restart n0 n1 n2 n3"]);
        let said = format!("{:?}", s.out);
        let line = format!("ck.9 is not sealed: this restart {word} its 4 files (3.0 KiB) on n0 n2");
        assert!(said.contains(&line), "{said}");
        assert_eq!(said.contains("--keep-unsealed"), !keep, "{said}");
    }
}
