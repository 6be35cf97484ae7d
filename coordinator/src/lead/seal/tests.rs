//! Seals as traces: what happens, and after `=>` what the lead says of it.
//!
//! Two nodes, `a` and `b`. Markers of `ck` have numbers; `over 1` was set where dataset 1 was
//! complete, `promised` counts everywhere. `next` is a marker of `dk`. Answers of nodes are about
//! the dataset that was asked for last, or the one that `of` names.

use scrfs::control::{FrozenFile, MemberPart};
use scrfs::dataset::{Entry, EntryKind, FileCopy};
use scrfs::ids::{Epoch, Member, RequestId};

use super::*;
use crate::job::{JobId, JobOutput};
use crate::lead::Output;
use crate::settings::tests::settings;
use scrfs::control::MarkerScope;

const NAME: &[u8] = b"ck";
const OTHER: &[u8] = b"dk";

struct Bench {
    seals: Seals,
    cluster: Cluster,
    job: JobId,
    /// As the last `Freeze` or `AskChanges` said.
    id: DatasetId,
}

fn node(host: &str) -> NodeRank {
    NodeRank(u32::from(host == "b"))
}

impl Bench {
    fn new(scope: MarkerScope) -> Self {
        let mut settings = settings();
        settings.sealing.scope = scope;
        let hosts = vec!["a".to_owned(), "b".to_owned()];
        let cluster = Cluster::new(Epoch(1), hosts, settings, 0);
        Self { seals: Seals::default(), cluster, job: JobId(0), id: DatasetId(0) }
    }

    /// Something happens; what the lead says.
    fn step(&mut self, line: &str) -> String {
        let (what, about) = line.split_once(' ').unwrap_or((line, ""));
        let (host, rest) = about.split_once(' ').unwrap_or((about, ""));
        let (cluster, seals, id) = (&mut self.cluster, &mut self.seals, self.id);
        let (mut bad_base, mut waited) = (None, 0);
        match what {
            "marker" | "next" => {
                let (since, name) = (cluster.now, if what == "next" { OTHER } else { NAME });
                seals.marker(cluster, name, Marker { since, ..marker(host, rest) });
            }
            "of" => self.id = DatasetId(host.parse().unwrap()),
            "frozen" => {
                let part = FrozenPart {
                    files: vec![FrozenFile { path: RelPath::new(host).unwrap(), size: 1 }],
                    ..FrozenPart::default()
                };
                let result = if rest.is_empty() { Ok(part) } else { Err(rest.into()) };
                assert!(seals.frozen(cluster, node(host), id, result));
            }
            "carried" => assert!(seals.carried(cluster, node(host), id, Ok(()))),
            "encoded" => {
                for host in ["a", "b"] {
                    let result = Ok(JobOutput::Part(Box::new(part(host))));
                    assert!(seals.job(cluster, ShareEnd { node: node(host), job: self.job, result }));
                }
            }
            // Of a job's share; whose base that speaks against.
            "spoilt" | "ended" => {
                let bad = if what == "spoilt" { vec![0] } else { vec![] };
                let result = Err(JobFailure { bad, ..JobFailure::passing(what) });
                let share = ShareEnd { node: node(host), job: self.job, result };
                bad_base = seals.bad_base(&share).map(|base| format!("bad base {base}"));
                seals.job(cluster, share);
            }
            "committed" => {
                let result = if rest.is_empty() { Ok(()) } else { Err(rest.into()) };
                let (awaited, sealed) = seals.committed(cluster, node(host), (id, rest.is_empty()), result);
                assert!(awaited);
                waited = sealed.map_or(0, |(_, waited)| waited / (1000 * MS));
            }
            "dropped" => assert!(seals.dropped(cluster, node(host), id).0),
            "changes" => assert!(seals.changes(cluster, node(host), (id, true), rest == "some").0),
            "removed" => seals.removed(cluster, NAME),
            "background" => cluster.settings.sealing.background = true,
            "time" => cluster.now += 10_000 * MS,
            "later" => {
                cluster.now += 40_000 * MS;
                seals.tick(cluster);
            }
            other => panic!("{other}"),
        }
        while self.seals.begin(&mut self.cluster, true, |_| false, |_| true) {}
        let outputs = self.cluster.take_outputs();
        let said = outputs.into_iter().filter_map(|output| self.say(output));
        let waited = (waited > 0).then(|| format!("waited {waited} s"));
        let said: Vec<String> = bad_base.into_iter().chain(said).chain(waited).collect();
        said.join(", ")
    }

    fn say(&mut self, output: Output) -> Option<String> {
        let (nodes, command) = match output {
            Output::Command(nodes, command) => (nodes, command),
            Output::Start(job, _) => {
                self.job = job;
                return Some("encode".to_owned());
            }
            _ => return None,
        };
        let to = match nodes[..] {
            [node] => self.cluster.host(node),
            _ => "all",
        };
        let says = match command {
            Command::Freeze { id, base, .. } => {
                self.id = id;
                // One each, as each has its member.
                (to == "a").then(|| base.map_or("freeze".to_owned(), |base| format!("freeze over {base}")))?
            }
            Command::AskChanges(id) => {
                self.id = id;
                format!("ask for changes of {id}")
            }
            Command::MarkersEnd { requests, outcome, .. } => {
                let numbers: Vec<String> =
                    requests.iter().map(|request| request.serial.to_string()).collect();
                let outcome = match outcome {
                    MarkerOutcome::Sealed(id) => format!("sealed {id}"),
                    MarkerOutcome::NotSealed(_) => "not sealed".to_owned(),
                    MarkerOutcome::Refused(_) => "refused".to_owned(),
                    MarkerOutcome::Waived => "waived".to_owned(),
                };
                format!("{} {outcome}", numbers.join("+"))
            }
            Command::AllFrozen(_) => "all are frozen".to_owned(),
            Command::Carry { .. } => "carry".to_owned(),
            Command::Commit(_) => "commit".to_owned(),
            Command::Sealed(_) => "sealed".to_owned(),
            Command::Drop { .. } => "drop".to_owned(),
            Command::Note { .. } => return None,
            other => panic!("{other:?}"),
        };
        Some(format!("{to}: {says}"))
    }
}

fn marker(host: &str, rest: &str) -> Marker {
    let mut words = rest.split(' ');
    let serial = words.next().unwrap().parse().unwrap();
    let words: Vec<&str> = words.collect();
    let base = words.iter().position(|word| *word == "over");
    let base = base.map(|at| DatasetId(words[at + 1].parse().unwrap()));
    let request = RequestId { origin: 1, serial };
    Marker { node: node(host), request, base, everywhere: words.contains(&"promised"), since: 0 }
}

fn part(host: &str) -> MemberPart {
    let member = Member(node(host).0);
    let copy = FileCopy { size: 1, crc: 7, member, program_rank: None };
    let stamp = scrfs::dataset::Stamp::default();
    let entry = Entry {
        path: RelPath::new(host).unwrap(),
        kind: EntryKind::File(copy),
        mode: 0o644,
        uid: 1,
        gid: 1,
        atime: stamp,
        mtime: stamp,
    };
    MemberPart { member, entries: vec![entry], taken: 1 }
}

fn check(scope: MarkerScope, trace: &str) {
    let mut bench = Bench::new(scope);
    for line in trace.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (happens, wanted) = line.split_once("=>").unwrap_or((line, ""));
        assert_eq!(bench.step(happens.trim()), wanted.trim(), "{happens} in {trace}");
    }
}

#[test]
fn a_seal_answers_the_markers_that_were_set_before_it_was_recorded_there() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         marker b 2 =>
         frozen a =>
         frozen b => all: all are frozen, encode
         marker b 3 => b: all are frozen
         encoded => all: commit
         marker a 4 => a: all are frozen
         committed a =>
         marker a 5 over 1 =>
         marker b 6 => b: all are frozen
         committed b => all: sealed, a: 1+4 sealed 1, b: 2+3+6 sealed 1, all: ask for changes of 1
         changes a none =>
         changes b none => a: 5 sealed 1",
    );
}

#[test]
fn the_next_dataset_is_frozen_while_one_is_encoded() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         next b 2 =>
         frozen a =>
         frozen b => all: all are frozen, encode, a: freeze
         frozen a =>
         frozen b => all: all are frozen
         next a 3 => a: all are frozen
         of 1 =>
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 1 sealed 1, encode
         of 2 =>
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 3 sealed 2, b: 2 sealed 2",
    );
}

#[test]
fn a_next_generation_waits_for_the_one_before_and_others_for_it() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         committed a =>
         marker a 2 over 1 =>
         next b 3 =>
         committed b => all: sealed, a: 1 sealed 1, all: ask for changes of 1",
    );
}

#[test]
fn a_seal_that_fails_before_the_next_lets_that_go_on() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         next b 2 =>
         frozen a =>
         frozen b => all: all are frozen, encode, a: freeze
         frozen a =>
         removed => all: drop
         frozen b => all: all are frozen
         of 1 =>
         dropped a =>
         dropped b => encode, a: 1 not sealed
         of 2 =>
         encoded => all: commit",
    );
}

#[test]
fn nothing_stays_frozen_behind_a_commit_that_is_stuck_save_what_was_promised() {
    let begins = "marker a 1 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         next b 2 => a: freeze
         frozen a =>
         frozen b => all: all are frozen
         of 1 =>
         committed a =>
         committed b its disk is full =>";
    let fails = "later => b: commit, all: drop, a: 1 refused
         next a 3 => a: 3 refused
         of 2 =>
         dropped a =>
         dropped b => b: 2 not sealed";
    check(MarkerScope::Any, &format!("{begins}\n{fails}"));
    let goes_on = "later => b: commit, a: 1 refused
         committed b => all: sealed, encode";
    check(MarkerScope::Any, &format!("background =>\n{begins}\n{goes_on}"));
}

/// It was being asked for changes when a commit before it got stuck.
#[test]
fn nothing_is_frozen_for_markers_that_were_refused() {
    check(
        MarkerScope::Any,
        "next a 1 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 1 sealed 1
         marker a 2 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         next a 3 over 1 => all: ask for changes of 1
         of 2 =>
         committed a =>
         committed b its disk is full =>
         later => b: commit, a: 3 refused, a: 2 refused
         of 1 =>
         changes a some =>
         changes b none =>
         of 2 =>
         committed b => all: sealed
         next a 4 over 1 => all: ask for changes of 1",
    );
}

#[test]
fn what_is_told_twice_is_answered_once() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         marker a 1 =>
         frozen a =>
         frozen b => all: all are frozen, encode
         marker a 1 =>
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 1 sealed 1",
    );
}

#[test]
fn a_marker_that_is_told_before_its_node_has_dropped_fails_with_the_seal() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         frozen a =>
         frozen b somebody writes => all: drop
         marker b 2 =>
         dropped b =>
         marker b 3 =>
         dropped a => a: 1 not sealed, b: 2 not sealed, a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         committed a =>
         committed b => all: sealed, b: 3 sealed 2",
    );
}

/// The answers of the nodes speak of what was changed before they were asked.
#[test]
fn a_marker_of_what_is_complete_has_a_look_of_its_own() {
    let sealed = "marker a 1 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 1 sealed 1
         marker a 2 over 1 => all: ask for changes of 1
         changes a none =>
         marker b 3 over 1 =>
         ";
    check(
        MarkerScope::Any,
        &format!(
            "{sealed}
             changes b none => a: 2 sealed 1, all: ask for changes of 1
             changes a none =>
             changes b none => b: 3 sealed 1"
        ),
    );
    // What is frozen after all has what both were set for.
    check(
        MarkerScope::Any,
        &format!(
            "{sealed}
             changes b some => a: freeze over 1
             marker b 4 over 1 =>
             frozen a =>
             frozen b => all: carry
             carried a =>
             carried b => all: all are frozen, encode
             encoded => all: commit
             committed a =>
             committed b => all: sealed, a: 2 sealed 2, b: 3+4 sealed 2"
        ),
    );
}

#[test]
fn markers_are_gathered_until_all_nodes_have_set_theirs() {
    check(
        MarkerScope::All,
        "marker a 1 =>
         later => a: 1 refused
         marker b 2 =>
         marker a 3 => a: freeze
         frozen a none of its files is there => all: drop
         dropped a =>
         marker a 4 =>
         dropped b => a: 3 not sealed, b: 2 not sealed
         marker b 5 promised => a: freeze",
    );
}

#[test]
fn a_directory_that_is_removed_first_has_no_seal() {
    check(
        MarkerScope::All,
        "marker a 1 =>
         removed => a: 1 refused
         marker a 2 =>
         marker b 3 => a: freeze
         removed => all: drop
         dropped a =>
         dropped b => a: 2 not sealed, b: 3 not sealed",
    );
}

/// What a promise was given for is sealed all the same, when that node can record it.
#[test]
fn nobody_waits_for_a_commit_that_is_stuck() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         marker b 2 promised =>
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         committed a =>
         committed b it is full =>
         later => b: commit, a: 1 refused
         marker a 3 => a: 3 refused
         committed b => all: sealed, b: 2 sealed 1",
    );
}

/// A share that another one has taken along may end first, and the seal with that.
#[test]
fn bad_bytes_that_a_next_generation_would_carry_on_are_looked_at() {
    let frozen = "marker a 1 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 1 sealed 1
         marker a 2 over 1 => all: ask for changes of 1
         changes a some =>
         changes b some => a: freeze over 1
         frozen a =>
         frozen b => all: carry
         carried a =>
         carried b => all: all are frozen, encode
         ";
    check(MarkerScope::Any, &format!("{frozen} spoilt a => bad base 1, all: drop"));
    check(
        MarkerScope::Any,
        &format!(
            "{frozen} ended b => all: drop
             spoilt a => bad base 1
             dropped a =>
             dropped b => a: 2 not sealed"
        ),
    );
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         frozen a =>
         frozen b => all: all are frozen, encode
         spoilt a => all: drop",
    );
}

/// What programs are advised by `SCR_CHECKPOINT_OVERHEAD` counts that.
#[test]
fn the_time_that_programs_wait_counts_for_the_seal_that_they_wait_for() {
    check(
        MarkerScope::Any,
        "marker a 1 => a: freeze
         time =>
         frozen a =>
         frozen b => all: all are frozen, encode
         time =>
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 1 sealed 1, waited 20 s
         marker b 2 over 1 => all: ask for changes of 1
         changes a none =>
         changes b none => b: 2 sealed 1
         time =>
         time =>
         marker a 3 over 1 => all: ask for changes of 1
         changes a some =>
         changes b none => a: freeze over 1
         background =>
         frozen a =>
         time =>
         frozen b => all: carry
         carried a =>
         carried b => all: all are frozen, encode
         time =>
         encoded => all: commit
         committed a =>
         committed b => all: sealed, a: 3 sealed 2, waited 10 s",
    );
}
