mod doubting;
mod ending;
mod losing;
mod progress;
mod wanting;

use scrfs_tools::probe::Living;

use super::*;

/// A supervisor and its clock, in seconds.
struct Story {
    supervisor: Supervisor,
    now: Duration,
    serial: u64,
    out: Vec<Output>,
}

const HOSTS: [&str; 5] = ["n0", "n1", "n2", "n3", "n4"];

fn plan() -> Plan {
    Plan {
        hosts: HOSTS.map(str::to_owned).to_vec(),
        nodes: 4,
        min_nodes: None,
        runs: None,
        ready_limit: Duration::from_mins(15),
        flush_limit: Duration::from_mins(10),
        launcher_timeout: Duration::ZERO,
        node_timeout: Duration::from_secs(30),
        watchdog: Duration::ZERO,
        fresh: false,
        end: EndPlan {
            grace: Duration::ZERO,
            signal: 10,
            halt_grace: Duration::from_secs(30),
            left: None,
            asks: false,
            reserve: Duration::from_secs(132),
            early: Duration::ZERO,
            keep_unsealed: false,
        },
    }
}

impl Story {
    fn of(plan: Plan) -> Self {
        let mut story =
            Self { supervisor: Supervisor::new(plan, []), now: Duration::ZERO, serial: 0, out: Vec::new() };
        story.tell(Input::Begin);
        story
    }

    fn tell(&mut self, input: Input) -> &mut Self {
        self.out = self.supervisor.step(self.now, input);
        for o in &self.out {
            if let Output::Look { serial, .. } = o {
                self.serial = *serial;
            }
        }
        self
    }

    fn after(&mut self, secs: u64) -> &mut Self {
        self.now += Duration::from_secs(secs);
        self
    }

    /// Answers the last look: these are dead, the others have `newest`.
    fn looked(&mut self, dead: &[&str], newest: u64) -> &mut Self {
        let nodes = HOSTS
            .iter()
            .map(|h| Look {
                host: (*h).to_owned(),
                problem: dead.contains(h).then(|| "no answer".to_owned()),
                newest,
                ..Look::default()
            })
            .collect();
        let serial = self.serial;
        self.tell(Input::Looked { serial, nodes, halt: None })
    }

    fn looked_as(&mut self, nodes: Vec<Look>) -> &mut Self {
        let serial = self.serial;
        self.tell(Input::Looked { serial, nodes, halt: None })
    }

    fn ready(&mut self, current: &str) -> &mut Self {
        let current = (!current.is_empty()).then(|| (0, current.into()));
        self.tell(Input::Ready(current))
    }

    fn coordinators_end(&mut self) -> &mut Self {
        self.tell(Input::CoordinatorsEnded(75))
    }

    fn said(&self) -> String {
        format!("{:?}", self.out)
    }

    /// In how many seconds it is to be told the time.
    fn wakes(&self) -> Option<u64> {
        self.out.iter().find_map(|o| if let Output::Wake(after) = o { Some(after.as_secs()) } else { None })
    }

    /// What was decided, without talk and timers.
    #[track_caller]
    fn expect(&mut self, expected: &[&str]) -> &mut Self {
        let got: Vec<String> = self
            .out
            .iter()
            .filter_map(|o| match o {
                Output::Look { hosts, sweep, .. } => {
                    Some(format!("look{} {}", if *sweep { "+sweep" } else { "" }, hosts.join(" ")))
                }
                Output::StartCoordinators { hosts, start, .. } => {
                    Some(format!("{start:?} {}", hosts.join(" ")))
                }
                Output::StartProgram { hosts, current, .. } => {
                    let current = current.as_deref().unwrap_or("-".as_ref());
                    Some(format!("program {} from {}", hosts.join(" "), current.display()))
                }
                Output::StopProgram => Some("stop program".to_owned()),
                Output::StopCoordinators => Some("stop coordinators".to_owned()),
                Output::Hurry => Some("hurry".to_owned()),
                Output::AskEnd => Some("ask for the end".to_owned()),
                Output::SignalProgram(signal) => Some(format!("signal {signal}")),
                Output::Save { host, limit, due, .. } => {
                    Some(format!("save {host} {}{}", limit.as_secs(), if *due { " due" } else { "" }))
                }
                Output::Finish(code) => Some(format!("finish {code}")),
                Output::CountProcesses { run, hosts } => Some(format!("count {run} {}", hosts.join(" "))),
                Output::Wake(_) | Output::Say(_) | Output::Hint(_) | Output::Explained => None,
            })
            .collect();
        assert_eq!(got, expected, "{:?}", self.out);
        self
    }

    /// Until the program runs on the first four.
    fn running(plan: Plan) -> Self {
        let mut story = Self::of(plan);
        story.expect(&["look+sweep n0 n1 n2 n3 n4"]);
        story.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
        story.ready("").expect(&["program n0 n1 n2 n3 from -"]);
        story
    }
}

fn lost(host: &str) -> Input {
    Input::Lost { host: host.to_owned(), how: "has lost its power (says a test)", by_launcher: false }
}

#[test]
fn a_quiet_life() {
    let mut s = Story::running(plan());
    s.after(100).tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    s.tell(Input::Saved(Ok(()))).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 0"]);
    s.tell(Input::Tick).expect(&[]);
}

#[test]
fn a_node_dies_and_the_spare_takes_over() {
    let mut s = Story::running(plan());
    s.after(50).coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.tell(Input::ProgramEnded(205)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.looked(&["n2"], 7).expect(&["Restart n0 n1 n3 n4"]);
    s.ready("ck.7").expect(&["program n0 n1 n3 n4 from ck.7"]);
    // The dead one is not asked again.
    s.tell(Input::ProgramEnded(1)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n3 n4"]);
    // Another dies: three are left, and four are needed.
    s.looked(&["n2", "n0"], 9).expect(&["finish 1"]);
}

#[test]
fn fewer_nodes_where_that_is_allowed() {
    let mut s = Story::running(Plan { min_nodes: Some(2), ..plan() });
    s.tell(Input::ProgramEnded(137)).expect(&["stop coordinators"]);
    s.coordinators_end();
    s.looked(&["n0", "n1", "n2"], 3).expect(&["Restart n3 n4"]);
    s.ready("ck.3").expect(&["program n3 n4 from ck.3"]);
}

#[test]
fn coordinators_alone_die() {
    let mut s = Story::running(plan());
    s.after(30).coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.after(1).tell(Input::Ready(None)).expect(&[]);
    // Again at once: the nodes are looked at, and the next attach waits.
    s.after(1).coordinators_end().expect(&["look n0 n1 n2 n3"]);
    assert!(s.out.contains(&Output::Wake(Duration::from_secs(1))), "{:?}", s.out);
    s.looked(&[], 0).expect(&[]);
    s.after(1).tell(Input::Tick).expect(&["Attach n0 n1 n2 n3"]);
    // They hang: a daemon may be dead; ended, and again.
    s.after(8).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 0).expect(&[]);
    s.after(52).tell(Input::Tick).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    assert!(s.out.contains(&Output::Wake(Duration::from_secs(2))), "{:?}", s.out);
    s.after(2).tell(Input::Tick).expect(&["Attach n0 n1 n2 n3"]);
    // These live; their death much later is a first one.
    s.tell(Input::Ready(None));
    s.after(100).coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
}

/// The coordinators wait a minute for it.
#[test]
fn a_dead_daemon_is_found_while_others_attach() {
    let mut s = Story::running(plan());
    s.after(30).coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.after(8).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked(&["n1"], 2).expect(&["stop program", "stop coordinators", "hurry"]);
}

#[test]
fn a_silent_death_is_found_by_looking() {
    let mut s = Story::running(plan());
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    s.looked(&["n3"], 2).expect(&["stop program", "hurry"]);
    // Whatever its launcher says then.
    s.after(3).tell(Input::ProgramEnded(0)).expect(&["look+sweep n0 n1 n2 n4"]);
    s.looked(&[], 2).expect(&["Restart n0 n1 n2 n4"]);
}

#[test]
fn exit_0_counts_only_when_the_nodes_are_there() {
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked(&["n1"], 4).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["look+sweep n0 n2 n3 n4"]);
    s.looked(&[], 4).expect(&["Restart n0 n2 n3 n4"]);
}

fn unsaved(host: &str) -> Look {
    Look { host: host.to_owned(), newest: 5, unsaved: Some("ck.5 (dataset 5)".to_owned()), ..Look::default() }
}

/// A node that holds the newest dataset beside three others.
fn holder(host: &str, newest: u64) -> Look {
    Look { host: host.to_owned(), newest, held_by: 4, expendable: true, ..Look::default() }
}

/// Nodes that came back have an old dataset; the newest one is where it is.
#[test]
fn the_nodes_that_hold_the_newest_dataset_are_used_whatever_their_place() {
    let mut s = Story::of(plan());
    let nodes = |n3: Look| vec![holder("n0", 5), holder("n1", 9), holder("n2", 9), n3, holder("n4", 9)];
    s.looked_as(nodes(holder("n3", 9))).expect(&["Restart n1 n2 n3 n4"]);
    let draining = || Look { leaving: Some("draining".to_owned()), ..holder("n3", 9) };
    // A commit that was on its way has come to one node: the former dataset is on the others.
    let mut s = Story::of(plan());
    let mut committing = vec![holder("n0", 5), holder("n1", 8), holder("n2", 8), holder("n3", 9)];
    committing.push(holder("n4", 8));
    s.looked_as(committing).expect(&["Restart n1 n2 n3 n4"]);
    // What a later epoch has sealed is newer, whatever its id.
    let mut s = Story::of(plan());
    let mut epochs = nodes(holder("n3", 9));
    for node in &mut epochs {
        node.epoch = 2;
    }
    (epochs[0].epoch, epochs[0].newest) = (1, 15);
    s.looked_as(epochs).expect(&["Restart n1 n2 n3 n4"]);
    // The dataset outlives that one node is replaced, and not for certain a second one.
    let mut s = Story::of(plan());
    s.looked_as(nodes(draining())).expect(&["Restart n0 n1 n2 n4"]);
    let mut s = Story::of(plan());
    let mut lost = nodes(draining());
    lost[1].problem = Some("no answer".to_owned());
    s.looked_as(lost).expect(&["Restart n0 n2 n3 n4"]);
    assert!(s.said().contains("n3 is used all the same, as it holds"), "{}", s.said());
    // Nothing gives back what is there alone.
    let mut s = Story::of(plan());
    s.looked_as(nodes(Look { expendable: false, ..draining() })).expect(&["Restart n1 n2 n3 n4"]);
}

fn leaving(host: &str) -> Look {
    Look { host: host.to_owned(), newest: 4, leaving: Some("draining".to_owned()), ..Look::default() }
}

#[test]
fn a_node_that_is_drained_disturbs_no_program() {
    // Its program has done its work there.
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0)).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(vec![leaving("n1")]).expect(&["save n0 600 due"]);
    // Nor is it to blame when coordinators die twice.
    let mut s = Story::running(plan());
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    s.looked_as(vec![leaving("n1")]).expect(&[]);
}

#[test]
fn a_node_that_is_drained_is_used_last() {
    let mut s = Story::of(plan());
    s.looked_as(vec![leaving("n1")]).expect(&["Restart n0 n2 n3 n4"]);
    assert!(format!("{:?}", s.out).contains("n1 is used last: the scheduler says that it is draining"));
    // In its place, and not left out for good.
    s.ready("").tell(lost("n4")).tell(Input::ProgramEnded(137));
    s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3"]);
    s.looked_as(vec![leaving("n1")]).expect(&["Restart n0 n1 n2 n3"]);
    assert!(format!("{:?}", s.out).contains("n1 is used all the same"), "{:?}", s.out);
}

#[test]
fn two_fruitless_runs_are_enough() {
    let mut s = Story::running(plan());
    let fail = |s: &mut Story, newest| {
        s.tell(Input::ProgramEnded(9)).expect(&["stop coordinators"]);
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
        s.looked(&[], newest);
    };
    fail(&mut s, 1);
    for newest in [1, 2, 2] {
        s.expect(&["Restart n0 n1 n2 n3"]).ready("x");
        fail(&mut s, newest);
    }
    s.expect(&["Restart n0 n1 n2 n3"]).ready("x");
    fail(&mut s, 2);
    s.expect(&["finish 9"]);
    // What the first run protected is on the PFS, and no node has it any more.
    let mut s = Story::running(plan());
    fail(&mut s, 0);
    s.expect(&["Restart n0 n1 n2 n3"]).tell(Input::Ready(Some((5, "ck.5".into()))));
    fail(&mut s, 5);
    s.expect(&["Restart n0 n1 n2 n3"]).ready("ck.5");
    fail(&mut s, 5);
    s.expect(&["finish 9"]);
}

#[test]
fn scr_runs_bounds_them() {
    let mut s = Story::running(Plan { runs: Some(2), ..plan() });
    for last in [false, true] {
        s.tell(Input::ProgramEnded(3)).expect(&["stop coordinators"]);
        s.coordinators_end();
        s.looked(&[], 0).expect(if last { &["finish 3"] } else { &["Restart n0 n1 n2 n3"] });
        s.ready("");
    }
}

#[test]
fn broken_recoveries_are_bounded() {
    let mut s = Story::of(plan());
    for _ in 1..RECOVERIES_MAX {
        s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
        s.coordinators_end().expect(&["look+sweep n0 n1 n2 n3 n4"]);
    }
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
    s.after(900).tell(Input::Tick).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 1"]);
}

#[test]
fn a_launch_that_hangs_is_doubted_long_before_it_is_given_up() {
    let mut s = Story::of(plan());
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]).tell(Input::Met);
    s.after(10).tell(Input::Tick).expect(&[]);
    s.after(10).tell(Input::Tick).expect(&[]);
    assert_eq!(s.wakes(), Some(5));
    s.after(5).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::OfOne, .. }), "{}", s.said());
    // All are there: a rebuild may take its time, and they are asked again.
    s.looked(&[], 0).expect(&[]);
    s.after(60).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked(&["n2"], 0).expect(&["stop coordinators", "hurry"]);
    s.coordinators_end().expect(&["look+sweep n0 n1 n3 n4"]);
    assert!(matches!(s.out[0], Output::Look { doubt: Doubt::None, .. }), "{}", s.said());
    s.looked(&[], 0).expect(&["Restart n0 n1 n3 n4"]);
    // Once they are ready nobody doubts.
    s.after(20).ready("");
    s.after(30).tell(Input::Tick).expect(&[]);
}

#[test]
fn parameters_that_are_refused_are_not_tried_again() {
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::CoordinatorsEnded(SETTINGS)).expect(&["finish 1"]);
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::CoordinatorsEnded(LACKS)).expect(&["finish 1"]);
    // A living program keeps its coordinators' places open.
    let mut s = Story::running(plan());
    s.tell(Input::CoordinatorsEnded(SETTINGS)).expect(&["Attach n0 n1 n2 n3"]);
}

#[test]
fn what_is_no_coordinator_is_not_tried_again() {
    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::CoordinatorsEnded(0)).expect(&["finish 1"]);
    assert!(s.said().contains("no scrfs-coordinator"), "{}", s.said());
    // One that was asked to end has ended well.
    let mut s = Story::of(plan());
    s.looked(&[], 0).after(901).tell(Input::Tick).expect(&["stop coordinators"]);
    s.tell(Input::CoordinatorsEnded(0)).expect(&["look+sweep n0 n1 n2 n3 n4"]);
}

#[test]
fn a_name_of_a_dataset_takes_one_line() {
    let mut s = Story::of(plan());
    s.looked(&[], 0).ready("ck\n7");
    assert!(s.out.contains(&Output::Say(r"the program can restart from ck\n7".to_owned())), "{}", s.said());
}

#[test]
fn a_signal_ends_everything_in_every_phase() {
    let mut s = Story::of(plan());
    s.tell(Input::Signal(2)).expect(&["finish 130"]);

    let mut s = Story::of(plan());
    s.looked(&[], 0).tell(Input::Signal(15)).expect(&["stop coordinators"]);
    s.coordinators_end().expect(&["finish 143"]);

    let mut s = Story::running(plan());
    s.tell(Input::Signal(1)).expect(&["stop program", "stop coordinators"]);
    s.tell(Input::ProgramEnded(143)).expect(&[]);
    // What does not end is not waited for.
    s.after(15).tell(Input::Tick).expect(&["finish 129"]);
}

#[test]
fn coordinators_that_die_during_the_last_flush_are_replaced() {
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    s.tell(Input::Saved(Ok(()))).expect(&[]);
    s.tell(Input::Ready(None)).expect(&["save n0 600 due"]);
    for _ in 1..3 {
        s.coordinators_end().expect(&["Attach n0 n1 n2 n3"]);
    }
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    s.looked(&[], 5).expect(&["finish 0"]);
}

#[test]
fn a_flush_that_does_not_end_is_left_and_named() {
    let mut s = Story::running(plan());
    s.tell(Input::ProgramEnded(0));
    s.looked(&[], 5).expect(&["save n0 600 due"]);
    s.after(700).tell(Input::Tick).expect(&["look n0 n1 n2 n3"]);
    s.looked_as(vec![unsaved("n1")]).expect(&["stop coordinators"]);
    assert!(s.said().contains("not on the PFS: ck.5 (dataset 5); it is in the caches of n1"), "{}", s.said());
    s.coordinators_end().expect(&["finish 1"]);
}

#[test]
fn an_old_answer_is_not_taken_for_a_new_one() {
    let mut s = Story::running(plan());
    s.coordinators_end();
    s.coordinators_end().expect(&["look n0 n1 n2 n3"]);
    let old = s.serial;
    s.tell(Input::ProgramEnded(1)).expect(&["look+sweep n0 n1 n2 n3 n4"]);
    s.tell(Input::Looked { serial: old, nodes: Vec::new(), halt: None }).expect(&[]);
    s.looked(&[], 0).expect(&["Restart n0 n1 n2 n3"]);
}

#[test]
fn nothing_is_restarted_beneath_a_living_program() {
    let living = || vec![Living { pid: 71, what: "lmp".to_owned() }];
    let look = |host: &str| Look { host: host.to_owned(), ..Look::default() };
    let foreign = Look { foreign: living(), ..look("n1") };
    let writer = Look { writers: living(), ..look("n1") };
    for found in [foreign.clone(), writer.clone()] {
        let mut s = Story::of(plan());
        let serial = s.serial;
        s.tell(Input::Looked { serial, nodes: vec![look("n0"), found], halt: None }).expect(&["finish 1"]);
        let said = format!("{:?}", s.out);
        assert!(said.contains("alive on n1: pid 71 (lmp)") && said.contains("end them"), "{said}");
    }
    // Between two runs of its own program.
    for (found, expected) in [(writer, "Restart n0 n1 n2 n3"), (foreign, "finish 9")] {
        let mut s = Story::running(plan());
        s.tell(Input::ProgramEnded(9)).expect(&["stop coordinators"]);
        s.coordinators_end();
        let serial = s.serial;
        s.tell(Input::Looked { serial, nodes: vec![found], halt: None }).expect(&[expected]);
    }
}

#[test]
fn orphans_that_were_ended_are_told_and_stop_nothing() {
    let mut s = Story::of(plan());
    let serial = s.serial;
    let nodes = vec![Look { host: "n3".to_owned(), orphans: 2, ..Look::default() }];
    s.tell(Input::Looked { serial, nodes, halt: None }).expect(&["Restart n0 n1 n2 n3"]);
    assert!(format!("{:?}", s.out).contains("n3: ended 2 processes"), "{:?}", s.out);
}
