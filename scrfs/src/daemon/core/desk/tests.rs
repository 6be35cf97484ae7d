//! The desk as traces: what happens, and what follows from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::boundary::Marking;
use crate::caller::Caller;
use crate::control::loose::LooseEntry;
use crate::control::{DirOp, SealedFile};
use crate::lane::Hands;
use crate::path::RelPath;

use super::super::waiting::Marker;

struct Trial {
    desk: Desk,
    now: Instant,
    lead: Lead,
}

fn request(serial: &str) -> RequestId {
    RequestId { origin: 1, serial: serial.parse().unwrap() }
}

fn requests(serials: &str) -> Vec<RequestId> {
    serials.split(',').map(request).collect()
}

fn wanted(kind: &str, name: &str) -> Wanted {
    let path = || RelPath::new(name).unwrap();
    let marker = |holds_directory| {
        let marking = Marking { holds_directory, everywhere: true };
        Wanted::Marker(Marker { name: name.into(), base: None, marking })
    };
    match kind {
        "mkdir" => Wanted::Directory(DirOp::Make { path: path(), mode: 0o755, uid: 0, gid: 0 }),
        "marker" => marker(false),
        "unhurried" => marker(true),
        "fetch" => Wanted::Fetch(SealedFile { id: DatasetId(1), path: path() }),
        "loose" => Wanted::Loose(vec![LooseEntry::gone(name.into())]),
        other => panic!("{other}"),
    }
}

fn asked(question: &Event) -> String {
    match question {
        Event::DirRequest { request, .. } => format!("ask mkdir {}", request.serial),
        Event::Marker { request, .. } => format!("ask marker {}", request.serial),
        Event::Fetch { request, .. } => format!("ask fetch {}", request.serial),
        Event::LooseRequest { request, .. } => format!("ask loose {}", request.serial),
        other => panic!("{other:?}"),
    }
}

fn told(effect: &Effect) -> String {
    match effect {
        Effect::Answer(waiter, errno) => format!("answer {} {errno}", waiter.request.serial),
        Effect::Alone(waiter) => format!("alone {}", waiter.request.serial),
        Effect::TimedOut { waiter, led } => {
            format!("late {}{}", waiter.request.serial, if *led { " led" } else { "" })
        }
        Effect::Isolated(wait) => format!("isolated {wait:?}"),
        Effect::NoSuccessor => "no successor".into(),
        Effect::OwedEnded => "owed ended".into(),
    }
}

impl Trial {
    fn begin(was_attached: bool) -> Self {
        // Some time, of which no more is known.
        let now = Hands::Agenda(Arc::default()).now();
        Self { desk: Desk::new(was_attached), now, lead: Lead::Nobody }
    }

    fn step(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let input = match words[..] {
            [kind @ ("mkdir" | "marker" | "unhurried" | "fetch" | "loose"), serial, name] => {
                let (since, done) = (self.now, Box::new(|_| ()));
                let (wanted, caller) = (wanted(kind, name), Caller::default());
                Input::Asks(Waiter { request: request(serial), wanted, caller, done, since, deadline: since })
            }
            ["attach"] => {
                self.lead = Lead::Settles;
                Input::Attached
            }
            ["serve"] => {
                self.lead = Lead::Serves;
                Input::Serves(Vec::new())
            }
            ["serve", owed, name] => {
                self.lead = Lead::Serves;
                Input::Serves(vec![(request(owed), name.into())])
            }
            ["gone"] => {
                self.lead = Lead::Nobody;
                Input::Gone
            }
            ["after", seconds] => {
                self.now += Duration::from_secs(seconds.parse().unwrap());
                Input::Look { progress: false }
            }
            ["after", seconds, "progress"] => {
                self.now += Duration::from_secs(seconds.parse().unwrap());
                Input::Look { progress: true }
            }
            ["made", serial, errno] => Input::Directory(request(serial), errno.parse().unwrap()),
            ["stored", serial, errno] => Input::Loose(request(serial), errno.parse().unwrap()),
            ["fetched", serial, errno] => Input::Fetched(request(serial), errno.parse().unwrap()),
            ["frozen", id, name] => {
                Input::Frozen { name: name.into(), id: DatasetId(id.parse().unwrap()), background: false }
            }
            ["markers", serials, errno] => Input::Markers(requests(serials), errno.parse().unwrap()),
            ["die", serials] => Input::Die(requests(serials)),
            ["stop"] => Input::Stops,
            _ => panic!("{line}"),
        };
        let terms = Terms {
            now: self.now,
            lead: self.lead,
            coordinator_wait: Duration::from_secs(10),
            seal_timeout: Duration::from_mins(1),
        };
        let Outcome { questions, effects } = self.desk.step(&terms, input);
        questions.iter().map(asked).chain(effects.iter().map(told)).collect::<Vec<_>>().join(", ")
    }
}

/// Each line is what happens, and after `->` what follows.
fn trace(lines: &str) {
    let mut trial = Trial::begin(false);
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (step, follows) = line.split_once("->").unwrap_or((line, ""));
        assert_eq!(trial.step(step.trim()), follows.trim(), "{line}");
    }
}

#[test]
fn where_no_coordinator_ever_was_the_node_acts_alone_at_once() {
    trace(
        "mkdir 1 ck -> alone 1
         marker 2 ck -> alone 2
         fetch 3 ck/f -> alone 3
         loose 4 latest -> alone 4
         after 3600",
    );
}

#[test]
fn a_successor_is_asked_for_what_waits_and_each_answer_comes_once() {
    trace(
        "attach
         mkdir 1 a
         serve -> ask mkdir 1
         loose 2 latest -> ask loose 2
         gone
         mkdir 3 c
         after 9
         attach
         serve -> ask mkdir 1, ask loose 2, ask mkdir 3
         made 1 0 -> answer 1 0
         made 1 0
         made 2 0
         stored 2 28 -> answer 2 28
         after 119
         made 3 17 -> answer 3 17",
    );
}

#[test]
fn after_one_wait_in_vain_the_node_acts_alone_until_a_coordinator_attaches() {
    trace(
        "attach
         serve
         mkdir 1 a -> ask mkdir 1
         gone
         after 5
         fetch 2 ck/f
         after 5 -> isolated 10s, no successor, late 1, late 2
         mkdir 3 c -> alone 3
         attach
         mkdir 4 d
         fetch 5 ck/f
         serve -> ask fetch 5, ask mkdir 4
         after 120 -> late 4 led",
    );
}

#[test]
fn who_asks_when_nobody_has_waited_yet_waits_once_more() {
    trace(
        "attach
         serve
         gone
         after 10 -> no successor
         after 10
         mkdir 1 a
         after 9
         after 1 -> isolated 10s, late 1",
    );
}

#[test]
fn a_marker_waits_longer_while_a_seal_goes_on_and_never_for_ever() {
    trace(
        "attach
         serve
         marker 1 ck -> ask marker 1
         mkdir 2 a -> ask mkdir 2
         after 120 progress -> late 2 led
         after 120 progress
         after 4
         after 1 -> late 1 led
         marker 3 ck -> ask marker 3
         after 240 progress
         after 3600 progress -> late 3 led",
    );
}

#[test]
fn while_the_lead_settles_a_marker_s_bound_moves() {
    trace(
        "attach
         marker 1 ck
         after 240
         after 5
         serve -> ask marker 1
         after 5 -> late 1 led",
    );
}

#[test]
fn a_file_is_asked_for_once_whoever_waits_for_it() {
    trace(
        "attach
         serve
         fetch 1 ck/f -> ask fetch 1
         fetch 2 ck/f
         die 1 -> answer 1 4
         fetched 1 0 -> answer 2 0
         fetch 3 ck/f -> ask fetch 3",
    );
}

#[test]
fn markers_end_by_their_requests_and_what_is_owed_by_its_own() {
    trace(
        "attach
         serve
         marker 1 ck -> ask marker 1
         unhurried 2 ck -> ask marker 2
         unhurried 3 other -> ask marker 3
         frozen 5 ck -> answer 2 0
         gone
         attach
         serve 9 ck -> ask marker 9, ask marker 1, ask marker 3
         made 1 0
         markers 3 5 -> answer 3 5
         markers 1 0 -> answer 1 0
         markers 9 0 -> owed ended
         markers 9 0",
    );
}

#[test]
fn all_are_answered_when_the_daemon_ends() {
    trace(
        "attach
         serve
         mkdir 1 a -> ask mkdir 1
         marker 2 ck -> ask marker 2
         stop -> answer 1 5, answer 2 5
         after 3600",
    );
}

/// Whatever happens, in whatever order: each request is answered once, or done alone once.
#[test]
fn no_request_is_answered_twice_or_forgotten() {
    for seed in 0..3_000_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut trial = Trial::begin(next(2) == 0);
        let (mut asked, mut ends) = (0, BTreeMap::new());
        for _ in 0..60 {
            let kind = ["mkdir", "marker", "unhurried", "fetch", "loose"][usize::try_from(next(5)).unwrap()];
            let (one, name) = (next(asked + 1) + 1, ["ck", "other"][usize::try_from(next(2)).unwrap()]);
            let line = match (next(10), trial.lead) {
                (0..=3, _) => {
                    asked += 1;
                    format!("{kind} {asked} {name}")
                }
                (4, Lead::Nobody) => "attach".into(),
                (4, _) => "gone".into(),
                (5, Lead::Settles) => "serve".into(),
                (5, _) => format!("frozen 1 {name}"),
                (6, _) => format!("after {}", next(200)),
                (7, _) => {
                    format!("{} {one} 0", ["made", "stored", "fetched"][usize::try_from(next(3)).unwrap()])
                }
                (8, _) => format!("markers {one} 0"),
                (_, _) => format!("die {one}"),
            };
            count(&mut ends, &trial.step(&line));
        }
        count(&mut ends, &trial.step("stop"));
        let wanted: BTreeMap<u64, u32> = (1..=asked).map(|serial| (serial, 1)).collect();
        assert_eq!(ends, wanted, "seed {seed}");
        assert!(trial.desk.waiting().is_empty());
    }
}

/// Ends of requests among effects.
fn count(ends: &mut BTreeMap<u64, u32>, effects: &str) {
    for effect in effects.split(", ") {
        let words: Vec<&str> = effect.split(' ').collect();
        if let ["answer" | "alone" | "late", serial, ..] = words[..] {
            *ends.entry(serial.parse().unwrap()).or_default() += 1;
        }
    }
}
