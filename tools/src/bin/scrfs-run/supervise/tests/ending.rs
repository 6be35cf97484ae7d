//! The end of a job, and halting.

use scrfs_tools::probe::{Stage, Unsealed};

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
    s.tell(Input::Saved(Err(SaveError::Named))).expect(&["stop coordinators"]);
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
    // Those that have met get the time that saving has; those that have not are started again.
    for (met, expected) in [(true, &[][..]), (false, &["stop coordinators"])] {
        let end = EndPlan { grace: Duration::from_mins(10), ..plan().end };
        let mut s = Story::running(Plan { runs: Some(1), end, ..plan() });
        s.tell(Input::ProgramEnded(205)).coordinators_end().looked(&["n1"], 5);
        if met {
            s.after(2).tell(Input::Met);
        }
        s.after(300).tell(Input::Tick).expect(expected);
        if met {
            s.ready("ck.5").expect(&["save n0 298"]);
        }
    }
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
    s.tell(Input::Saved(Err(SaveError::Failed("no answer".to_owned())))).expect(&[]);
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
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 75"]);
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

    // After the loss of a node, in a run that has protected what no look has told of: spares have
    // what the last scrfs-run left.
    let mut s = Story::of(saving());
    let left = |host: &str| Look { held_by: 2, ..unsaved(host) };
    let nodes = ["n0", "n1", "n2"].map(|host| Look { host: host.to_owned(), ..Look::default() });
    s.looked_as([&nodes[..], &[left("n3"), left("n4")]].concat()).expect(&["Restart n0 n1 n3 n4"]);
    s.ready("ck.5").tell(lost("n4")).tell(Input::Signal(15)).tell(Input::ProgramEnded(137));
    s.coordinators_end().expect(&["Restart n0 n1 n2 n3"]);
    let mut s = Story::of(Plan { nodes: 2, ..saving() });
    let others = ["n0", "n1"].map(|host| Look { host: host.to_owned(), ..Look::default() });
    let old = ["n2", "n3", "n4"].map(|host| Look { epoch: 1, ..unsaved(host) });
    s.looked_as([&others[..], &old[..]].concat()).expect(&["Restart n0 n1"]);
    s.ready("").tell(lost("n1")).tell(Input::Signal(15)).tell(Input::ProgramEnded(137));
    s.coordinators_end().expect(&["Restart n0 n2"]);

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

    // It fails, and is not started again. Its launcher may end the other ranks when one has ended,
    // and tell of those.
    for (ends, finish) in [(7, "finish 7"), (143, "finish 75"), (137, "finish 75"), (139, "finish 139")] {
        let mut s = Story::running(saving());
        halt(&mut s).after(20).tell(Input::ProgramEnded(ends)).expect(&["save n0 60"]);
        s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&[finish]);
    }
}

/// Coordinators and program end, and nobody has named a node: whether one is lost is seen before
/// new coordinators are started to save.
#[test]
fn a_halted_program_whose_coordinators_are_gone_is_looked_at_first() {
    let mut s = Story::running(saving());
    halt(&mut s).after(5).tell(Input::CoordinatorsEnded(1)).expect(&["Attach n0 n1 n2 n3"]);
    s.after(1).tell(Input::ProgramEnded(205)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&["n2"], 5).expect(&["Restart n0 n1 n3 n4"]);
    s.ready("").expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 205"]);
}

#[test]
fn a_program_that_does_not_end_gets_the_signal_and_is_ended() {
    let mut s = Story::running(saving());
    halt(&mut s).after(29).tell(Input::Tick).expect(&[]);
    halt(&mut s).after(1).tell(Input::Tick).expect(&["signal 10"]);
    s.after(10).tell(Input::ProgramEnded(138)).expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 75"]);

    // One that saves itself at the signal, and ends well.
    let mut s = Story::running(saving());
    halt(&mut s).after(30).tell(Input::Tick).expect(&["signal 10"]);
    s.after(10).tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 5).expect(&["save n0 600 due"]);
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

fn ends_in(seconds: u64) -> Plan {
    Plan { end: EndPlan { left: Some(Duration::from_secs(seconds)), ..saving().end }, ..saving() }
}

#[test]
fn before_the_allocation_ends_the_program_does() {
    let mut s = Story::running(ends_in(600));
    assert_eq!(s.wakes(), Some(468));
    s.after(467).tell(Input::Tick).expect(&[]);
    s.after(1).tell(Input::Tick).expect(&[]);
    assert!(s.said().contains("halting, because the allocation ends in 132 s"), "{}", s.said());
    s.after(30).tell(Input::Tick).expect(&["signal 10"]);
    // One that ignores all is killed, and the newest dataset has all of its time even then.
    s.after(30).tell(Input::Tick).expect(&["stop program"]);
    s.after(4).tell(Input::ProgramEnded(137)).expect(&["save n0 60"]);
    // Too late to begin.
    let mut s = Story::of(ends_in(600));
    s.after(468).looked(&[], 0).expect(&["finish 75"]);
    // Nothing is to be saved: the scheduler ends it.
    let end = EndPlan { grace: Duration::ZERO, ..ends_in(600).end };
    let mut s = Story::running(Plan { end, ..saving() });
    s.after(599).tell(Input::Tick).expect(&[]);
    assert!(s.out.is_empty(), "{:?}", s.out);
}

#[test]
fn an_end_that_was_moved_is_asked_for_before_the_program_is_stopped() {
    let asking = || Plan { end: EndPlan { asks: true, ..ends_in(600).end }, ..saving() };
    let ends = |at: u64| Input::AllocationEnds(Some(Duration::from_secs(at)));
    let mut s = Story::running(asking());
    assert_eq!(s.wakes(), Some(408));
    s.after(408).tell(Input::Tick).expect(&["ask for the end"]);
    // A second more or less is none.
    s.tell(ends(601)).expect(&[]);
    assert_eq!(s.wakes(), Some(45));
    s.after(45).tell(Input::Tick).expect(&["ask for the end"]);
    // Moved: new coordinators know it.
    s.tell(ends(1200)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.ready("").after(200).tell(Input::Tick).expect(&[]);
    s.after(355).tell(Input::Tick).expect(&["ask for the end"]);
    // No answer: what is known holds.
    s.tell(Input::AllocationEnds(None)).after(45).tell(Input::Tick).expect(&["ask for the end"]);
    s.tell(Input::AllocationEnds(None)).after(15).tell(Input::Tick).expect(&[]);
    assert!(s.said().contains("halting, because the allocation ends in 132 s"), "{}", s.said());

    // Coordinators that go by the former end.
    let due = || Input::HaltDue("the allocation ends in 140 s, and saving may take 140 s".to_owned());
    let mut s = Story::running(asking());
    s.after(300).tell(due()).expect(&["ask for the end"]);
    s.tell(ends(1200)).expect(&["stop coordinators"]);
    assert!(!s.said().contains("halting"), "{}", s.said());
    let mut s = Story::running(asking());
    s.after(300).tell(due()).tell(ends(600)).expect(&[]);
    assert!(s.said().contains("halting, because the allocation ends in 140 s"), "{}", s.said());
    // It has none any more.
    let mut s = Story::running(asking());
    s.after(408)
        .tell(Input::Tick)
        .tell(Input::AllocationEnds(Some(Duration::MAX)))
        .expect(&["stop coordinators"]);
    assert_eq!(s.wakes(), None);
    // Between two runs: less than there was.
    let mut s = Story::running(asking());
    s.after(9).tell(Input::ProgramEnded(9)).coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.tell(ends(100)).expect(&[]);
    s.looked(&[], 5).expect(&["Attach n0 n1 n2 n3"]);
    assert!(s.said().contains("halted, because the allocation ends in 91 s"), "{}", s.said());
    assert!(
        s.said().contains("the next job with this prefix") && !s.said().contains("--remove"),
        "{}",
        s.said()
    );
}

#[test]
fn nothing_waits_longer_than_the_allocation_lasts() {
    // A program that is done in its last minutes: ten more for its flushes are more than there is.
    let mut s = Story::running(ends_in(600));
    s.after(460).tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 132 due"]);
    // Whoever saves hangs: what is there is named before the end.
    assert_eq!(s.wakes(), Some(135));
    s.after(135).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    assert_eq!(s.wakes(), Some(4));
    s.after(4).tell(Input::Tick).expect(&["stop coordinators"]);
    assert!(s.said().contains("what is not on the PFS is not known"), "{}", s.said());
    // One that has not ended when it should have is not counted on.
    let mut s = Story::running(ends_in(600));
    s.after(700).tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 600 due"]);
}

#[test]
fn what_a_restart_removes_is_named_before() {
    let unsealed = |bytes| vec![Unsealed { name: "ck.9".to_owned(), stage: Stage::Open, files: 2, bytes }];
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

#[test]
fn what_was_being_sealed_or_was_changed_since_is_named_too_and_nothing_is_cut_in_silence() {
    let unsealed = |stage| Unsealed { name: "ck.9".to_owned(), stage, files: 2, bytes: 1024 };
    let unsealed = [Stage::Sealing, Stage::Changed].map(unsealed).to_vec();
    let nodes = |more| {
        let look = Look { host: "n0".to_owned(), newest: 9, unsealed: unsealed.clone(), ..Look::default() };
        vec![Look { more_unsealed: more, ..look.clone() }, Look { host: "n1".to_owned(), ..look }]
    };
    let mut s = Story::of(plan());
    s.looked_as(nodes(5)).expect(&["Restart n0 n1 n2 n3"]);
    for line in [
        "ck.9 was being sealed: unless that is done, this restart removes its files on n0 n1",
        "ck.9 was changed since it was sealed: this restart removes 4 changed files (2.0 KiB) on n0 n1",
        "and this restart removes 5 more on n0",
    ] {
        assert!(s.said().contains(line), "{line}: {}", s.said());
    }
    // At its end a program's seals are waited for.
    s.ready("ck.9").tell(Input::ProgramEnded(0));
    s.looked_as(nodes(0));
    assert!(
        s.said().contains("nothing saves 4 changed files") && !s.said().contains("being sealed"),
        "{}",
        s.said()
    );
}

/// After a requeue: what the caches have, and the PFS has not.
fn left_by_the_last(s: &mut Story) -> &mut Story {
    s.looked_as(vec![unsaved("n0"), unsaved("n2"), unsaved("n4")])
}

#[test]
fn what_the_last_scrfs_run_left_is_saved_where_no_program_is_started() {
    // A halt file.
    let mut s = Story::of(saving());
    let nodes =
        vec![unsaved("n0"), unsaved("n2"), unsaved("n4"), Look { host: "n1".into(), ..Look::default() }];
    let serial = s.serial;
    let halted = || Some("the halt file says stop".to_owned());
    s.tell(Input::Looked { serial, nodes, halt: halted() });
    // Those that have it, and others until they are enough.
    s.expect(&["Restart n0 n1 n2 n4"]);
    assert!(s.out.iter().any(|o| matches!(o, Output::StartCoordinators { keep: true, .. })), "{}", s.said());
    s.ready("ck.5").expect(&["save n0 60"]);
    s.tell(Input::Saved(Ok(()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 75"]);
    // Nothing is unsaved: nothing is started. A node that was away, and has less, is no reason.
    let mut s = Story::of(saving());
    let nodes = vec![unsaved("n0"), Look { host: "n1".into(), newest: 9, ..Look::default() }];
    let serial = s.serial;
    s.tell(Input::Looked { serial, nodes, halt: halted() }).expect(&["finish 75"]);

    // Too little time; too few nodes.
    let mut s = Story::of(ends_in(100));
    left_by_the_last(&mut s).expect(&["Restart n0 n1 n2 n4"]);
    s.ready("ck.5").expect(&["save n0 60"]);
    let mut s = Story::of(Plan { min_nodes: Some(6), ..saving() });
    left_by_the_last(&mut s).expect(&["Restart n0 n1 n2 n4"]);
    // With SCRFS_END_GRACE=0 it stays where it is.
    let mut s = Story::of(Plan { min_nodes: Some(6), ..plan() });
    left_by_the_last(&mut s).expect(&["finish 1"]);
}

#[test]
fn what_the_last_scrfs_run_left_is_saved_or_named_when_recovery_fails() {
    let mut s = Story::of(saving());
    left_by_the_last(&mut s).expect(&["Restart n0 n1 n2 n3"]);
    for _ in 1..RECOVERIES_MAX {
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
        left_by_the_last(&mut s).expect(&["Restart n0 n1 n2 n3"]);
    }
    s.coordinators_end().expect(&["Restart n0 n1 n2 n4"]);
    for _ in 1..3 {
        s.coordinators_end().expect(&["Restart n0 n1 n2 n4"]);
    }
    s.coordinators_end().expect(&["look n0 n1 n2 n4"]);
    // One is left, that has nothing of it.
    s.looked(&["n0", "n2", "n4"], 0).expect(&["finish 1"]);
    let line = "not on the PFS when the nodes were looked at last: ck.5 (dataset 5); it is in the caches of n0 n2 n4";
    assert!(s.said().contains(line), "{}", s.said());

    // TERM while it recovers.
    let mut s = Story::of(saving());
    left_by_the_last(&mut s).tell(Input::Signal(15)).expect(&[]);
    s.ready("ck.5").expect(&["save n0 60"]);
    let mut s = Story::of(saving());
    left_by_the_last(&mut s).tell(Input::Signal(15)).expect(&[]);
    s.coordinators_end().expect(&["Restart n0 n1 n2 n4"]);

    // What is presented is not it.
    let mut s = Story::of(saving());
    left_by_the_last(&mut s).tell(Input::Signal(15));
    s.ready("ck").expect(&["save n0 60"]);
    assert!(s.said().contains("looked at last: ck.5 (dataset 5)"), "{}", s.said());
    s.tell(Input::Saved(Ok(()))).coordinators_end().expect(&["finish 143"]);

    // Another program lives: nothing is started, and it is named.
    let mut s = Story::of(saving());
    let foreign = vec![Living { pid: 71, what: "lmp".to_owned() }];
    s.looked_as(vec![Look { foreign, ..unsaved("n0") }]).expect(&["finish 1"]);
    assert!(s.said().contains("looked at last: ck.5 (dataset 5)"), "{}", s.said());
}

#[test]
fn a_signal_in_the_midst_of_a_look_waits_for_its_answer() {
    // The look ends what is left of this run: what saves must not be among it.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(9)).coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.tell(Input::Signal(15)).expect(&[]);
    s.after(2).looked(&[], 1).expect(&["Attach n0 n1 n2 n3"]);
    s.tell(Input::Ready(None)).expect(&["save n0 58"]);
    // The first look tells whether there is anything to save.
    let mut s = Story::of(saving());
    s.tell(Input::Signal(15)).expect(&[]);
    s.looked(&[], 1).expect(&["finish 143"]);
    let mut s = Story::of(saving());
    s.tell(Input::Signal(15)).expect(&[]);
    left_by_the_last(&mut s).expect(&["Restart n0 n1 n2 n4"]);
    // A second signal waits for nothing.
    let mut s = Story::of(saving());
    s.tell(Input::Signal(15)).after(2).tell(Input::Signal(15)).expect(&["finish 143"]);
}

#[test]
fn a_save_that_fails_without_a_word_is_named_by_the_nodes() {
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    // Coordinators live and there is time: other nodes are asked.
    let why = || Input::Saved(Err(SaveError::Failed("ended with exit code 255".to_owned())));
    for host in ["n1", "n2", "n3"] {
        s.tell(why()).expect(&[]);
        s.after(2).tell(Input::Tick);
        assert!(s.said().contains(&format!("Save {{ host: \"{host}\"")), "{}", s.said());
    }
    s.tell(why()).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(vec![unsaved("n2")]).expect(&["stop coordinators"]);
    assert!(s.said().contains("not on the PFS: ck.5 (dataset 5); it is in the caches of n2"), "{}", s.said());
    s.coordinators_end().expect(&["finish 1"]);
    // Whatever they say: that it failed is certain.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).after(599).tell(Input::Saved(Err(SaveError::Failed("x".to_owned()))));
    s.looked(&[], 5).coordinators_end().expect(&["finish 1"]);
    // No node is left to ask: 0 would be a lie.
    let mut s = Story::running(saving());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    for host in HOSTS {
        s.tell(lost(host));
    }
    s.coordinators_end().expect(&["finish 1"]);
    assert!(s.said().contains("what is not on the PFS is not known"), "{}", s.said());
}
