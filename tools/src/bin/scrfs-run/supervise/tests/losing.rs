//! Nodes that are named as lost, and what cannot be started.

use super::meeting::MEETINGS_MAX;
use super::*;
use crate::supervise::losing::{FAILURES_MAX, LAUNCHES_MAX};

#[test]
fn who_is_named_as_lost_is_not_asked_and_nothing_waits_for_it() {
    let mut s = Story::running(plan());
    s.tell(lost("n2")).expect(&["stop program", "stop coordinators", "hurry"]);
    // Once; and whoever is no node of this job does not count.
    s.tell(lost("n2")).expect(&[]);
    s.tell(lost("elsewhere")).expect(&[]);
    s.tell(Input::ProgramEnded(137)).expect(&[]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n3 n4"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::None, .. }), "{:?}", s.out);
    s.looked(&[], 7).expect(&["Restart n0 n1 n3 n4"]);
    // A second one, in the midst of recovery.
    s.tell(lost("n0")).expect(&["stop coordinators", "hurry"]);
    s.coordinators_end().expect(&["look+sweep n1 n3 n4"]);
    // Too few are left: those that were named are asked, once.
    s.looked(&[], 7).expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&["n0", "n2"], 7).expect(&["finish 1"]);
}

/// Who can make a launcher believe that a node is gone, or a network that was away, ends no job.
#[test]
fn nodes_that_were_named_wrongly_are_used_again_before_a_job_is_given_up() {
    let mut s = Story::running(plan());
    for (host, newest) in [("n2", 7), ("n0", 8)] {
        s.tell(lost(host)).tell(Input::ProgramEnded(137)).coordinators_end();
        s.looked(&[], newest);
        if host == "n2" {
            s.expect(&["Restart n0 n1 n3 n4"]).ready("ck.7").expect(&["program n0 n1 n3 n4 from ck.7"]);
        }
    }
    s.expect(&["look+sweep n0 n1 n2 n3 n4"]).looked(&["n0"], 8).expect(&["Restart n1 n2 n3 n4"]);
    // Named again, and nothing new was protected: so it would go on for ever.
    s.tell(lost("n2")).expect(&["stop coordinators", "hurry"]);
    s.coordinators_end().looked(&["n0"], 8).expect(&["finish 1"]);
}

/// mpirun launches its daemons, of which one dies with its node; others end because of that.
#[test]
fn a_launcher_that_starts_coordinators_is_believed_the_second_time() {
    let says = |host: &str| Input::Lost { host: host.to_owned(), how: "is lost", by_launcher: true };
    let mut s = Story::of(plan());
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    s.tell(says("n1")).expect(&["stop coordinators", "hurry"]);
    s.tell(says("n3")).expect(&[]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::OfOne, .. }), "{}", s.said());
    s.looked(&["n2"], 0).expect(&["Restart n0 n1 n3 n4"]);
    s.tell(says("n1")).expect(&["stop coordinators", "hurry"]);
    s.coordinators_end().expect(&["look+sweep n0 n3 n4"]);
    // Once they have met, daemons stand on all nodes.
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::Met).tell(says("n1")).expect(&["stop coordinators", "hurry"]);
    s.coordinators_end().expect(&["look+sweep n0 n2 n3 n4"]);
}

/// What srun says when it cannot launch on these nodes.
fn not_launched(part: Part, hosts: &[&str]) -> Input {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Input::NotLaunched { part, hosts, what: "srun: task 1 launch failed: Unspecified error".to_owned() }
}

/// What another user has made first keeps Slurm's PMIx from launching on a node. What a daemon of
/// Slurm's has left there may keep one step from it, and the node has datasets.
#[test]
fn a_spare_is_used_for_a_node_on_which_nothing_can_be_launched() {
    let fails = |hosts: &[&str]| not_launched(Part::Coordinators, hosts);
    let mut s = Story::of(plan());
    s.looked(&[], 0);
    for _ in 1..LAUNCHES_MAX {
        s.tell(fails(&["n1"])).expect(&["stop coordinators", "hurry"]);
        let said = s.said();
        assert!(said.contains("n1 could not be launched on (srun: task 1 launch failed: "), "{said}");
        // srun says so more than once.
        s.tell(fails(&["n1"]))
            .expect(&[])
            .tell(Input::CoordinatorsEnded(0))
            .expect(&["look+sweep n0 n1 n2 n3 n4"]);
        s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    }
    s.tell(fails(&["n1"])).expect(&["stop coordinators", "hurry"]);
    assert!(s.said().contains("n1 could not be launched on (srun: task 1 launch failed: "), "{}", s.said());
    s.tell(Input::CoordinatorsEnded(0)).expect(&["look+sweep n0 n2 n3 n4"]);
    s.looked(&[], 0).expect(&["Restart n0 n2 n3 n4"]);
    // One that fails for all nodes is none of theirs; so it is tried again, and named at last.
    for hosts in [&[][..], &["n0", "n1", "n2", "n3"]] {
        let mut s = Story::of(plan());
        for _ in 1..RECOVERIES_MAX {
            s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]).tell(fails(hosts)).expect(&[]);
            s.tell(Input::LauncherFailed("srun: Timed out".to_owned())).expect(&[]);
            s.tell(Input::CoordinatorsEnded(0)).expect(&["look+sweep n0 n1 n2 n3 n4"]);
            assert!(s.said().contains("recovery was broken off (srun: task 1 launch failed"), "{}", s.said());
        }
        s.looked(&[], 0).tell(fails(hosts)).tell(Input::CoordinatorsEnded(0)).expect(&["finish 1"]);
        assert!(s.said().contains("at last: srun: task 1 launch failed"), "{}", s.said());
    }
}

/// Starts of the program that a node cannot have are no runs: they count neither as fruitless ones
/// nor for SCR_RUNS, and are counted anew once a dataset is complete.
#[test]
fn a_program_that_cannot_be_launched_on_a_node_has_not_run() {
    let fail = |s: &mut Story, host: &str| {
        s.tell(not_launched(Part::Program, &[host]));
        s.expect(&["stop program", "stop coordinators", "hurry"]);
        s.tell(Input::ProgramEnded(1)).tell(Input::CoordinatorsEnded(0));
    };
    let again = |s: &mut Story, newest, hosts: &str| {
        s.looked(&[], newest).expect(&[&format!("Restart {hosts}")]);
        s.tell(Input::Met).ready("ck").expect(&[&format!("program {hosts} from ck")]);
    };
    let mut s = Story::of(Plan { runs: Some(1), nodes: 3, ..plan() });
    again(&mut s, 0, "n0 n1 n2");
    for newest in [7, 7, 8, 8] {
        fail(&mut s, "n1");
        again(&mut s, newest, "n0 n1 n2");
    }
    s.tell(Input::Sealed);
    for _ in 1..LAUNCHES_MAX {
        fail(&mut s, "n1");
        again(&mut s, 8, "n0 n1 n2");
    }
    fail(&mut s, "n1");
    s.expect(&["look+sweep n0 n2 n3 n4"]);
    again(&mut s, 8, "n0 n2 n3");
    for _ in 1..LAUNCHES_MAX {
        fail(&mut s, "n2");
        again(&mut s, 8, "n0 n2 n3");
    }
    fail(&mut s, "n2");
    again(&mut s, 8, "n0 n3 n4");
    s.tell(Input::ProgramEnded(1)).coordinators_end().looked(&[], 8);
    assert!(s.said().contains("1 runs were allowed (SCR_RUNS)"), "{}", s.said());
}

/// srun names one node after the other, and not always the same one first: so it would take very
/// many starts until there are too few nodes.
#[test]
fn what_keeps_starts_from_all_nodes_is_none_of_theirs() {
    let fails = |host| not_launched(Part::Coordinators, &[host]);
    let mut s = Story::of(plan());
    let mut starts = 0;
    while !s.said().contains("Finish") {
        if s.looked(&[], 0).said().contains("StartCoordinators") {
            starts += 1;
            s.tell(fails(["n0", "n1", "n2", "n3"][starts % 4])).tell(fails("n0")).coordinators_end();
        }
    }
    let most = usize::try_from(FAILURES_MAX + RECOVERIES_MAX).unwrap();
    assert!(starts <= most && s.said().contains("Finish(1)"), "{starts}: {}", s.said());
}

/// The program goes on: coordinators are started anew beneath it, until it is the node's fault.
#[test]
fn coordinators_that_cannot_be_launched_beneath_a_program_do_not_end_it() {
    let fails = || not_launched(Part::Coordinators, &["n1"]);
    let mut s = Story::running(plan());
    for _ in 1..LAUNCHES_MAX {
        s.tell(Input::CoordinatorsEnded(1)).after(10).tell(Input::Tick);
        s.tell(fails()).expect(&[]);
        assert!(s.said().contains("n1 could not be launched on"), "{}", s.said());
        assert!(!s.tell(fails()).said().contains("n1"), "one start is counted once: {}", s.said());
    }
    s.tell(Input::CoordinatorsEnded(1)).after(10).tell(Input::Tick);
    s.tell(fails()).expect(&["stop program", "stop coordinators", "hurry"]);
}

/// Coordinators that have met tell themselves why they end.
#[test]
fn errors_of_a_launcher_explain_the_end_of_coordinators_that_have_not_met() {
    let error = || Input::LauncherFailed("srun: Socket timed out".to_owned());
    for (met, why) in [(false, "srun: Socket timed out"), (true, "exit code 75")] {
        let mut s = Story::of(plan());
        s.looked(&[], 0).tell(error());
        if met {
            s.tell(Input::Met).tell(error());
        }
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
        assert!(s.said().contains(&format!("recovery was broken off ({why}): once more")), "{}", s.said());
    }
}

#[test]
fn what_a_coordinator_says_explains_the_end_of_its_start_alone() {
    let fails = |why: &str| Input::CoordinatorsFail(why.to_owned());
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(fails("n1: no room")).tell(fails("n2: n1 is gone")).coordinators_end();
    assert!(s.said().contains("recovery was broken off (n1: no room): once more"), "{}", s.said());
    for _ in 2..RECOVERIES_MAX {
        s.looked(&[], 0).coordinators_end();
    }
    assert!(s.said().contains("recovery was broken off (exit code 75): once more"), "{}", s.said());
    s.looked(&[], 0).tell(fails("n3: full")).coordinators_end();
    assert!(s.said().contains("times, at last: n3: full"), "{}", s.said());
}

#[test]
fn a_spare_that_is_lost_disturbs_nobody() {
    let mut s = Story::running(plan());
    s.tell(lost("n4")).expect(&[]);
    s.tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 5).expect(&["save n0 600 due"]);
}

#[test]
fn a_node_lost_while_others_end_hurries_them_and_one_lost_at_the_end_counts() {
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(205)).expect(&["stop coordinators"]);
    s.tell(lost("n1")).expect(&["hurry"]);
    s.coordinators_end().expect(&["look+sweep n0 n2 n3 n4"]);
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.tell(lost("n1")).expect(&["stop coordinators", "hurry"]);
}

/// A launcher that has lost a node tells all others to end, and may wait for ever for another node
/// that it has lost too: nobody names that one.
#[test]
fn nodes_are_looked_at_when_somebody_else_tells_coordinators_to_end() {
    let mut s = Story::running(plan());
    s.after(50).tell(Input::CoordinatorsLeave).expect(&["look n0 n1 n2 n3"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::OfOne, .. }), "{}", s.said());
    assert_eq!(s.wakes(), Some(5));
    s.tell(Input::CoordinatorsLeave).expect(&[]);
    s.after(4).looked(&["n2", "n3"], 0).expect(&["stop program", "stop coordinators", "hurry"]);
    s.tell(Input::ProgramEnded(137)).expect(&[]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n4"]);
    // All live, and the launcher hangs: it is ended, and others come.
    let mut s = Story::running(plan());
    s.after(50).tell(Input::CoordinatorsLeave).looked(&[], 0).expect(&[]);
    s.after(5).tell(Input::Tick).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    // So in the midst of recovery, whatever they still say.
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::CoordinatorsLeave).expect(&["look n0 n1 n2 n3"]);
    s.ready("").expect(&[]);
    s.after(5).tell(Input::Tick).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    // And while they save.
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0)).looked(&[], 5).expect(&["save n0 600 due"]);
    s.tell(Input::CoordinatorsLeave).expect(&["look n0 n1 n2 n3"]);
    s.looked(&["n2"], 5).after(5).tell(Input::Tick).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["Restart n0 n1 n3 n4"]);
}

/// Launchers wait long for a node that is lost while they start coordinators there, and nobody else
/// watches it.
#[test]
fn nodes_on_which_coordinators_start_are_watched_until_they_have_met() {
    let mut s = Story::of(plan());
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    for seconds in [2, 2, 2, 2, 3, 6] {
        s.after(seconds - 1).tell(Input::Tick).expect(&[]);
        s.after(1).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
        assert!(matches!(s.out[0], Output::Look { doubt: Doubt::IfSilent, .. }), "{}", s.said());
        s.looked_as(Vec::new()).expect(&[]);
    }
    // Whatever else asks them, the next question waits for the answer.
    s.after(8).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::OfOne, .. }), "{}", s.said());
    s.after(30).tell(Input::Tick).expect(&[]);
    s.looked(&["n2"], 0).expect(&["stop coordinators", "hurry"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n3 n4"]);
    s.looked(&[], 0).expect(&["Restart n0 n1 n3 n4"]);
    // Once they have met, they watch one another.
    s.tell(Input::Met).after(20).tell(Input::Tick).expect(&[]);
    // Somebody tells them to end: all nodes are looked at, once.
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::CoordinatorsLeave).expect(&["look n0 n1 n2 n3"]);
    s.after(4).tell(Input::Tick).expect(&[]);
}

/// The second look that finds no process ends it, if one has found some.
#[test]
fn a_launcher_that_hangs_after_its_program_is_ended() {
    let timeout = Duration::from_mins(10);
    let counted = |programs| {
        let count = Count::Said { programs, has_begun: programs > 1 };
        Input::Counted { run: 1, count }
    };
    let mut s = Story::running(Plan { launcher_timeout: timeout, ..plan() });
    assert_eq!(s.wakes(), Some(20));
    s.after(20).tell(Input::Tick).expect(&["count 1 n0 n1 n2 n3"]);
    // Of one that was never seen it is not known that it has ended; one process may be anybody's.
    for programs in [0, 1, 0, 0] {
        s.tell(counted(programs)).expect(&[]);
        assert_eq!(s.wakes(), Some(300));
        s.after(300).tell(Input::Tick).expect(&["count 1 n0 n1 n2 n3"]);
    }
    s.tell(counted(4)).expect(&[]);
    // One look may fall between two programs of a script; nobody may read what they say. Once the
    // program has begun, whatever may be its counts.
    let unknown = Input::Counted { run: 1, count: Count::Unknown };
    s.tell(counted(0)).tell(counted(1)).tell(counted(0)).tell(unknown).expect(&[]);
    s.tell(counted(0)).expect(&[]);
    let former = Count::Said { programs: 0, has_begun: false };
    s.tell(Input::Counted { run: 0, count: former }).expect(&[]);
    s.tell(counted(0)).expect(&["stop program", "stop coordinators"]);
    s.tell(Input::ProgramEnded(137)).expect(&[]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&[], 7).expect(&["Restart n0 n1 n2 n3"]);
    // No look while no program runs, and none where launchers are waited for.
    assert!(s.after(400).tell(Input::Tick).out.iter().all(|o| !matches!(o, Output::CountProcesses { .. })));
    let mut s = Story::running(plan());
    assert_eq!(s.wakes(), None);
    s.tell(counted(0)).expect(&[]);
}

/// With a short timeout there would be more and more of those who count.
#[test]
fn processes_are_not_counted_again_before_there_is_an_answer() {
    let mut s = Story::running(Plan { launcher_timeout: Duration::from_secs(4), ..plan() });
    s.after(2).tell(Input::Tick).expect(&["count 1 n0 n1 n2 n3"]);
    for _ in 0..5 {
        s.after(10).tell(Input::Tick).expect(&[]);
    }
    s.tell(Input::Counted { run: 1, count: Count::Unknown }).expect(&[]);
    s.after(2).tell(Input::Tick).expect(&["count 1 n0 n1 n2 n3"]);
    // One that never comes is given up.
    s.after(59).tell(Input::Tick).expect(&[]);
    s.after(1).tell(Input::Tick).expect(&["count 1 n0 n1 n2 n3"]);
}

#[test]
fn a_node_that_does_not_count_is_asked_whether_it_lives() {
    let silence = || Input::Counted { run: 1, count: Count::Silence };
    let mut s = Story::running(Plan { launcher_timeout: Duration::from_mins(10), ..plan() });
    s.tell(silence()).expect(&["look n0 n1 n2 n3"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::OfOne, .. }), "{}", s.said());
    // It was asked.
    s.tell(silence()).expect(&[]);
    s.looked(&[], 0).expect(&[]);
    s.tell(silence()).expect(&["look n0 n1 n2 n3"]);
    s.looked(&["n1"], 0).expect(&["stop program", "stop coordinators", "hurry"]);
}

#[test]
fn coordinators_that_do_not_come_together_are_started_again() {
    let mut s = Story::of(plan());
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    // As often as it takes, within reason; other ends of theirs count by themselves.
    for start in 1..MEETINGS_MAX {
        let limit = 60 << (start - 1).min(2);
        s.after(limit - 1).tell(Input::Tick);
        assert!(!s.out.contains(&Output::StopCoordinators), "{}", s.said());
        s.after(1).tell(Input::Tick).expect(&["stop coordinators"]);
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
        s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    }
    s.tell(Input::Met).expect(&[]);
    s.after(200).tell(Input::Tick);
    assert!(!s.out.contains(&Output::StopCoordinators), "{}", s.said());
    for _ in 1..RECOVERIES_MAX {
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
        s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    }
    s.coordinators_end().expect(&["finish 1"]);
    let mut s = Story::of(plan());
    for _ in 1..MEETINGS_MAX {
        s.looked(&[], 0).after(240).tell(Input::Tick).expect(&["stop coordinators"]);
        // Whatever their launcher makes of that.
        s.tell(Input::CoordinatorsEnded(0)).expect(&["look+sweep n0 n1 n2 n3 n4"]);
    }
    s.looked(&[], 0).after(240).tell(Input::Tick);
    s.coordinators_end().expect(&["finish 1"]);
}

fn refusal() -> Input {
    Input::Refused(Refusal { what: "there is no program x".to_owned(), hint: "look" })
}

#[test]
fn a_first_launch_that_fails_is_told_and_not_tried_again() {
    let mut s = Story::running(plan());
    s.tell(refusal()).expect(&[]);
    s.tell(Input::ProgramEnded(134)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 0).expect(&["stop coordinators"]);
    assert!(
        s.out.contains(&Output::Hint("look".into())) && s.out.contains(&Output::Explained),
        "{}",
        s.said()
    );
    s.coordinators_end().expect(&["finish 1"]);
    // What was fetched for it, it has not protected.
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::Ready(Some((4, "ck.4".into()))));
    s.tell(refusal()).tell(Input::ProgramEnded(134)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 4).expect(&["stop coordinators"]);
    assert!(s.out.contains(&Output::Explained), "{}", s.said());
    // The coordinators' own.
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(refusal());
    s.coordinators_end().expect(&["finish 1"]);
    // Later on it may be a node's death that looks so.
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(1)).expect(&["stop coordinators"]);
    s.coordinators_end();
    s.looked(&[], 1).ready("x");
    s.tell(refusal()).tell(Input::ProgramEnded(1)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
}

/// Slurm says so while its controller is started anew.
#[test]
fn what_passes_by_itself_is_no_refusal_of_a_first_launch() {
    let what = "srun: Unable to create step for job 7: Requested nodes are busy";
    let passes = || Input::Refused(Refusal { what: what.to_owned(), hint: "look" });
    let mut s = Story::of(plan());
    for _ in 1..RECOVERIES_MAX {
        s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]).tell(passes());
        s.tell(Input::CoordinatorsEnded(1)).expect(&["look+sweep n0 n1 n2 n3 n4"]);
        assert!(s.said().contains(&format!("recovery was broken off ({what}): once more")), "{}", s.said());
    }
    s.looked(&[], 0).tell(passes()).tell(Input::CoordinatorsEnded(1)).expect(&["finish 1"]);
    assert!(s.said().contains(&format!("at last: {what}")), "{}", s.said());
    // The program: these are no runs, and not without end.
    let mut s = Story::of(Plan { runs: Some(1), ..plan() });
    s.looked(&[], 0);
    for _ in 0..FAILURES_MAX {
        s.ready("").expect(&["program n0 n1 n2 n3 from -"]).tell(passes());
        s.tell(Input::ProgramEnded(1)).expect(&["look n0 n1 n2 n3"]);
        s.looked(&[], 0).expect(&["stop coordinators"]);
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]).looked(&[], 0);
        s.expect(&["Restart n0 n1 n2 n3"]);
    }
    s.ready("").tell(passes()).tell(Input::ProgramEnded(1)).looked(&[], 0).expect(&["stop coordinators"]);
    assert!(s.said().contains("the program was not started: srun: Unable"), "{}", s.said());
    s.coordinators_end().expect(&["finish 1"]);
}

#[test]
fn a_program_that_has_run_was_started_whatever_its_launcher_says() {
    let goes_on = |s: &mut Story| {
        s.expect(&["stop coordinators"]);
        assert!(!s.said().contains("was not started") && !s.out.contains(&Output::Explained), "{}", s.said());
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    };
    // It goes on for hours, and then crashes.
    let mut s = Story::running(plan());
    s.tell(refusal()).after(7200).tell(Input::ProgramEnded(139));
    goes_on(&mut s);
    // What is said in the midst of its life is no launch error.
    let mut s = Story::running(plan());
    s.after(300).tell(refusal()).after(1).tell(Input::ProgramEnded(139));
    goes_on(&mut s);
    // Soon, and something is protected.
    let mut s = Story::running(plan());
    s.tell(refusal()).after(1).tell(Input::ProgramEnded(139)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 1);
    goes_on(&mut s);
    // Soon, and a node is lost.
    let mut s = Story::running(plan());
    s.tell(refusal()).after(1).tell(Input::ProgramEnded(139));
    s.looked(&["n1"], 0).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n2 n3 n4"]);
}

#[test]
fn what_this_host_refuses_ends_the_job_as_any_other_end() {
    let why = || Refusal { what: "the input was too long".to_owned(), hint: "give a file" };
    let end = EndPlan { grace: Duration::from_mins(1), ..plan().end };
    let mut s = Story::running(Plan { end, ..plan() });
    s.tell(Input::ProgramEnded(9)).expect(&["stop coordinators"]);
    s.coordinators_end();
    s.looked(&[], 3).expect(&["Restart n0 n1 n2 n3"]);
    s.ready("ck.3").expect(&["program n0 n1 n2 n3 from ck.3"]);
    s.tell(Input::CannotStart(Part::Program, why())).expect(&["save n0 60"]);
    assert!(s.said().contains("giving up: the input was too long") && s.said().contains("give a file"));
    s.tell(Input::Saved(Ok(()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 9"]);
    // Coordinators that cannot be started, while the program lives: tried again.
    let mut s = Story::running(plan());
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.tell(Input::CannotStart(Part::Coordinators, why())).expect(&["look n0 n1 n2 n3"]);
    s.after(1).tell(Input::Tick).expect(&["Attach n0 n1 n2 n3"]);
    // No question can be asked.
    let mut s = Story::of(plan());
    s.tell(Input::CannotLook(why())).expect(&["finish 1"]);
}
