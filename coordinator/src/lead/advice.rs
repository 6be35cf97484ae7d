//! What programs are advised: whether to write a checkpoint now, and whether to end (SCR's
//! `SCR_Need_checkpoint` and `SCR_Should_exit`; user manual of SCR 1.2, "Halting a job" and "Config
//! parameters").
//!
//! Decided here and told to all daemons, so that it is the same on all nodes. What was advised once
//! holds until the next seal, whatever changes meanwhile: some ranks may have seen it already. Also
//! the lead: the daemons keep what they were told, and the next lead goes on with it while the
//! program runs.

use scrfs::control::{self, Command};
use scrfs::halt::{self, Stop, When};
use scrfs::prefix::PfsTask;
use scrfs::record::Halt;

use super::Running;
use super::cluster::Cluster;
use super::policy::MS;

/// Between two looks at the halt file, microseconds.
const LOOK: u64 = 10_000 * MS;
/// The same after one that failed, when a dataset was sealed.
const AGAIN: u64 = 1_000 * MS;
/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Advice {
    /// When programs were served first, and when the last checkpoint was sealed; 0 = not yet.
    begun: u64,
    last: u64,
    /// Microseconds that programs waited at the markers of what was sealed.
    waited: u64,
    /// The most that one thread has asked since the last seal.
    asked: u32,
    halt: Halt,
    looking: bool,
    next_look: u64,
    /// Checkpoints sealed that the halt file does not count yet.
    uncounted: u32,
    /// Advised since the last seal: a checkpoint, to end.
    said: (bool, bool),
    /// The nodes know it, and when the last seal was.
    told: bool,
    seal: Judged,
    /// Why programs are advised to end, as the events have it; `None` once nothing holds of it.
    noted: Option<String>,
    /// It was told that the program is to be ended.
    halted: bool,
    /// Why the halt file cannot be read, as it was told; `None`: it was read.
    unread: Option<String>,
}

/// Whether the halt conditions were looked at since the last seal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// They were.
    #[default]
    Yes,
    /// A dataset was sealed.
    No,
    /// The halt file is being read since then.
    Looking,
    /// It was read.
    Looked,
}

impl Advice {
    /// A program begins.
    pub(super) fn begin(&mut self, now: u64) {
        (self.begun, self.last) = (now, now);
    }

    /// The program goes on with what nodes were told before; `sealed`: when the newest dataset was
    /// that is complete.
    pub(super) fn resume(&mut self, now: u64, told: &[control::Advice], sealed: Option<u64>) {
        let age = |told: &control::Advice| (told.begun_us, told.sealed_us);
        let Some(newest) = told.iter().max_by_key(|told| age(told)).copied() else {
            // No node knows any more: no later than the newest dataset tells.
            return (self.begun, self.last) = (now, sealed.map_or(now, |sealed| sealed.min(now)));
        };
        (self.begun, self.last, self.waited) = (newest.begun_us, newest.sealed_us, newest.waited_us);
        match sealed.filter(|sealed| *sealed > self.last) {
            // The end of its seal was not told.
            Some(sealed) => (self.last, self.seal) = (sealed, Judged::No),
            // Some nodes may have been told more than others.
            None => {
                for told in told.iter().filter(|told| age(told) == age(&newest)) {
                    self.said.0 |= told.need_checkpoint;
                    self.said.1 |= told.should_exit;
                }
            }
        }
    }

    /// A marker was set. The halt file is looked at, so that what it says is known when the dataset
    /// is complete, and the program hears of it with its marker.
    pub(super) fn marked(&mut self, now: u64) {
        self.next_look = self.next_look.min(now);
    }

    /// Some thread has asked that often.
    pub(super) fn asked(&mut self, times: u32) {
        self.asked = self.asked.max(times);
    }

    /// A checkpoint is complete, for which its program has `waited` so many microseconds: all is
    /// decided anew.
    pub(super) fn sealed(&mut self, now: u64, waited: u64) {
        self.waited = self.waited.saturating_add(waited);
        (self.last, self.asked, self.said, self.told) = (now, 0, (false, false), false);
        self.uncounted = self.uncounted.saturating_add(1);
        self.halt.checkpoints_left = self.halt.checkpoints_left.map(|left| left.saturating_sub(1));
        (self.next_look, self.seal) = (now, Judged::No);
    }

    /// The program is advised to end.
    pub(super) fn ends(&self) -> bool {
        self.said.1
    }

    /// The halt file as it is now. When it cannot be read what is known holds, and so many
    /// checkpoints are still to be counted.
    pub(super) fn halt(&mut self, now: u64, halt: Result<Halt, u32>) {
        self.looking = false;
        self.next_look = now.saturating_add(LOOK);
        match self.seal {
            Judged::Looking if halt.is_ok() => self.seal = Judged::Looked,
            // A tool that changes it holds the lock: what it writes counts for that seal.
            Judged::Looking => (self.seal, self.next_look) = (Judged::No, now.saturating_add(AGAIN)),
            // What was sealed meanwhile is to be looked at too.
            Judged::No => self.next_look = now,
            Judged::Yes | Judged::Looked => {}
        }
        match halt {
            Ok(halt) => (self.halt, self.unread) = (halt, None),
            Err(sealed) => {
                self.uncounted = self.uncounted.saturating_add(sealed);
                return;
            }
        }
        // What was sealed while the file was being read.
        let since = i64::from(self.uncounted);
        self.halt.checkpoints_left = self.halt.checkpoints_left.map(|left| left.saturating_sub(since));
    }

    /// The halt file cannot be read.
    pub(super) fn unread(&mut self, cluster: &mut Cluster, sealed: u32, reason: &str) {
        if self.unread.as_deref() != Some(reason) {
            cluster.warn(format!("what the halt file says is not known: {reason}"));
            self.unread = Some(reason.to_owned());
        }
        self.halt(cluster.now, Err(sealed));
    }

    /// Looks at the halt file when it is time, and tells all nodes what has changed. `flush`:
    /// microseconds that one takes.
    pub(super) fn tick(&mut self, cluster: &mut Cluster, flush: u64) {
        if self.begun == 0 {
            return;
        }
        if !self.looking && self.next_look <= cluster.now {
            self.looking = true;
            if self.seal == Judged::No {
                self.seal = Judged::Looking;
            }
            cluster.pfs(PfsTask::Halt { sealed: std::mem::take(&mut self.uncounted) });
        }
        let (needed, ended) = self.said;
        let stop =
            halt::due(&self.halt, &cluster.settings.advice, cluster.now / SECOND, flush.div_ceil(SECOND));
        self.halt_program(cluster, stop.as_ref());
        if stop.is_none() {
            self.noted = None;
        }
        let reason = stop.map(|stop| stop.reason).filter(|_| !ended);
        let exit = ended || reason.is_some();
        let need = needed || exit || self.is_due(cluster);
        if self.told && self.said == (need, exit) {
            return;
        }
        // The reason has other numbers at each seal: it is noted once.
        if let Some(reason) = reason
            && self.noted.is_none()
        {
            cluster.note(format!("programs are advised to end: {reason}"));
            self.noted = Some(reason);
        }
        (self.said, self.told) = ((need, exit), true);
        cluster.send_all(Command::Advise(control::Advice {
            need_checkpoint: need,
            should_exit: exit,
            begun_us: self.begun,
            sealed_us: self.last,
            waited_us: self.waited,
        }));
    }

    /// Has the program ended when a condition cannot wait, or holds at a seal. Once: it is not
    /// called back.
    fn halt_program(&mut self, cluster: &mut Cluster, stop: Option<&Stop>) {
        let at_seal = self.seal != Judged::Yes;
        if self.seal == Judged::Looked {
            self.seal = Judged::Yes;
        }
        if let Some(stop) = stop.filter(|stop| !self.halted && (at_seal || stop.when == When::Now)) {
            self.halted = true;
            cluster.halt(stop.reason.clone());
        }
    }

    /// Is a checkpoint due? Without any rule there is no way to tell, so always.
    fn is_due(&self, cluster: &Cluster) -> bool {
        let rules = &cluster.settings.advice;
        let often = rules.interval > 0 && self.asked.saturating_add(1) >= rules.interval;
        let long = cluster.now.saturating_sub(self.last) / SECOND;
        let late = rules.seconds > 0 && long >= rules.seconds;
        let whole = u128::from(cluster.now.saturating_sub(self.begun));
        let part = u128::from(self.waited) * 100;
        let cheap = rules.overhead > 0 && whole > 0 && part < whole * u128::from(rules.overhead);
        let none = rules.interval == 0 && rules.seconds == 0 && rules.overhead == 0;
        often || late || cheap || none
    }
}

impl Running {
    /// Tells programs what has changed; when they are to end, the newest dataset is flushed
    /// meanwhile.
    pub(super) fn advise(&mut self) {
        let before = self.advice.ends();
        self.advice.tick(&mut self.cluster, self.flushes.longest());
        if self.advice.ends() && !before {
            self.flush_newest();
        }
    }

    pub(super) fn flush_newest(&mut self) {
        if self.cluster.settings.advice.end_reserve > 0 {
            self.flushes.wish_newest(&self.cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use scrfs::control::{AdviceRules, Command};
    use scrfs::hash::Text;
    use scrfs::ids::Epoch;

    use super::*;
    use crate::lead::Output;
    use crate::settings::tests::settings;

    struct Bench {
        cluster: Cluster,
        advice: Advice,
        /// What the nodes know.
        shown: Option<control::Advice>,
        /// Why the program is to be ended.
        halted: Vec<String>,
    }

    impl Bench {
        fn new(rules: AdviceRules) -> Self {
            let settings = control::Settings { advice: rules, ..settings() };
            let hosts = vec!["a".to_owned(), "b".to_owned()];
            let cluster = Cluster::new(Epoch(1), hosts, settings, 100 * SECOND);
            let mut advice = Advice::default();
            advice.begin(cluster.now);
            Self { cluster, advice, shown: None, halted: Vec::new() }
        }

        /// What both nodes are told at second `at`, and whether the halt file is looked at.
        fn at(&mut self, at: u64) -> (Option<(bool, bool)>, Option<u32>) {
            self.cluster.now = at * SECOND;
            self.advice.tick(&mut self.cluster, 5 * SECOND);
            let outputs = self.cluster.take_outputs();
            let told: Vec<_> = outputs
                .iter()
                .flat_map(|output| match output {
                    Output::Command(nodes, Command::Advise(told)) => vec![*told; nodes.len()],
                    _ => Vec::new(),
                })
                .collect();
            assert!(told.is_empty() || told.len() == 2 && told[0] == told[1], "{told:?}");
            let look = outputs.iter().find_map(|output| match output {
                Output::Pfs(PfsTask::Halt { sealed }) => Some(*sealed),
                _ => None,
            });
            self.shown = told.first().copied().or(self.shown);
            self.halted.extend(outputs.iter().filter_map(|output| match output {
                Output::Halt(reason) => Some(reason.clone()),
                _ => None,
            }));
            (told.first().map(|told| (told.need_checkpoint, told.should_exit)), look)
        }

        /// The lead dies; the next one begins at second `at`, hears of `told` and of a dataset that
        /// was sealed.
        fn next_lead(&mut self, at: u64, told: &[control::Advice], sealed: Option<u64>) {
            self.advice = Advice::default();
            self.cluster.now = at * SECOND;
            self.advice.resume(self.cluster.now, told, sealed.map(|sealed| sealed * SECOND));
        }

        fn halt(&mut self, halt: Halt) {
            self.advice.halt(self.cluster.now, Ok(halt));
        }
    }

    #[test]
    fn without_rules_a_checkpoint_is_always_due() {
        let mut bench = Bench::new(AdviceRules::default());
        assert_eq!(bench.at(100), (Some((true, false)), Some(0)));
        assert_eq!(bench.at(101), (None, None));
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(102).0, Some((true, false)));
    }

    #[test]
    fn seconds_count_from_the_last_seal_and_the_advice_holds_until_the_next() {
        let mut bench = Bench::new(AdviceRules { seconds: 60, ..AdviceRules::default() });
        assert_eq!(bench.at(100).0, Some((false, false)));
        assert_eq!(bench.at(159).0, None);
        assert_eq!(bench.at(160).0, Some((true, false)));
        assert_eq!(bench.at(500).0, None);
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(501).0, Some((false, false)));
    }

    #[test]
    fn every_nth_question() {
        let mut bench = Bench::new(AdviceRules { interval: 3, ..AdviceRules::default() });
        bench.advice.asked(1);
        assert_eq!(bench.at(100).0, Some((false, false)));
        bench.advice.asked(2);
        assert_eq!(bench.at(101).0, Some((true, false)), "the third is told to");
    }

    #[test]
    fn not_more_than_a_part_of_the_time_is_spent_waiting() {
        let mut bench = Bench::new(AdviceRules { overhead: 10, ..AdviceRules::default() });
        assert_eq!(bench.at(101).0, Some((true, false)));
        bench.advice.sealed(111 * SECOND, 10 * SECOND);
        assert_eq!(bench.at(112).0, Some((false, false)), "10 of 12 seconds");
        assert_eq!(bench.at(199).0, None);
        assert_eq!(bench.at(201).0, Some((true, false)), "10 of 101 seconds");
    }

    #[test]
    fn the_program_is_ended_at_a_seal_or_when_it_cannot_wait() {
        let rules = AdviceRules { end_time: 1000, end_reserve: 90, ..AdviceRules::default() };
        let stop = || Halt { exit_reason: Text::new(b"stop").ok(), ..Halt::default() };
        let mut bench = Bench::new(rules);
        bench.at(100);
        bench.halt(stop());
        assert_eq!(bench.at(101).0, Some((true, true)), "advised at once");
        assert!(bench.halted.is_empty(), "its next checkpoint is waited for");
        bench.advice.sealed(bench.cluster.now, 0);
        bench.at(102);
        assert_eq!(bench.halted, ["the halt file says stop"]);
        bench.at(104);
        assert_eq!(bench.halted.len(), 1, "once");

        // What was written before a seal is read after it, and counts for it.
        let mut bench = Bench::new(rules);
        bench.at(100);
        bench.advice.sealed(bench.cluster.now, 0);
        bench.at(101);
        bench.halt(Halt::default());
        bench.at(102);
        bench.halt(stop());
        bench.at(103);
        assert_eq!(bench.halted.len(), 1);
        // What is written after it waits for the next.
        let mut bench = Bench::new(rules);
        bench.at(100);
        bench.halt(Halt::default());
        bench.advice.sealed(bench.cluster.now, 0);
        bench.at(101);
        bench.halt(Halt::default());
        bench.at(102);
        bench.at(120);
        bench.halt(stop());
        bench.at(121);
        assert!(bench.halted.is_empty());

        bench.halt(Halt { immediate: Some(1), ..stop() });
        bench.at(122);
        assert_eq!(bench.halted, ["the halt file says stop, at once"]);
        // 5 s for the flush.
        let mut bench = Bench::new(rules);
        bench.at(904);
        assert!(bench.halted.is_empty());
        bench.at(905);
        assert_eq!(bench.halted.len(), 1);
    }

    #[test]
    fn that_programs_are_to_end_is_said_once() {
        let mut bench = Bench::new(AdviceRules { end_time: 1000, end_reserve: 90, ..AdviceRules::default() });
        let mut said = |at: u64, sealed: bool| {
            bench.cluster.now = at * SECOND;
            if sealed {
                bench.advice.sealed(bench.cluster.now, 0);
            }
            bench.advice.tick(&mut bench.cluster, 5 * SECOND);
            let notes = bench.cluster.take_outputs().into_iter().filter_map(|output| match output {
                Output::Note(_, text) => Some(text),
                _ => None,
            });
            notes.filter(|text| text.starts_with("programs are advised to end")).count()
        };
        assert_eq!([said(900, false), said(910, false), said(911, true), said(912, true)], [0, 1, 0, 0]);
        bench.cluster.settings.advice.end_time = 2000;
        bench.advice.sealed(bench.cluster.now, 0);
        bench.at(913);
        assert!(bench.advice.noted.is_none(), "the allocation was made longer");
    }

    #[test]
    fn a_marker_has_the_halt_file_read() {
        let mut bench = Bench::new(AdviceRules { seconds: 1000, ..AdviceRules::default() });
        bench.at(100);
        bench.halt(Halt::default());
        assert_eq!(bench.at(101), (None, None));
        bench.advice.marked(bench.cluster.now);
        assert_eq!(bench.at(102), (None, Some(0)));
        bench.halt(Halt { checkpoints_left: Some(1), ..Halt::default() });
        assert_eq!(bench.at(103), (None, None));
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(103), (Some((true, true)), Some(1)), "with this very seal");
        assert_eq!(bench.halted, ["no checkpoints are left by the halt file"]);
    }

    #[test]
    fn a_halt_file_that_cannot_be_read_at_a_seal_is_read_again() {
        let mut bench = Bench::new(AdviceRules { seconds: 1000, ..AdviceRules::default() });
        bench.at(100);
        bench.halt(Halt::default());
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(101).1, Some(1));
        // Whoever changes it has the lock.
        bench.advice.halt(bench.cluster.now, Err(1));
        assert_eq!((bench.at(101).1, bench.at(102).1), (None, Some(1)));
        bench.halt(Halt { exit_reason: Text::new(b"stop").ok(), ..Halt::default() });
        bench.at(103);
        assert_eq!(bench.halted, ["the halt file says stop"], "for that seal");
    }

    #[test]
    fn conditions_of_the_halt_file() {
        let halts = [
            (Halt { exit_reason: Text::new(b"stop").ok(), ..Halt::default() }, true),
            (Halt { exit_reason: Text::new(b"SCR_FINALIZE_CALLED").ok(), ..Halt::default() }, false),
            (Halt { checkpoints_left: Some(0), ..Halt::default() }, true),
            (Halt { checkpoints_left: Some(1), ..Halt::default() }, false),
            (Halt { exit_after: Some(150), ..Halt::default() }, true),
            (Halt { exit_after: Some(151), ..Halt::default() }, false),
            (Halt { exit_before: Some(160), halt_seconds: Some(10), ..Halt::default() }, true),
            (Halt { exit_before: Some(160), halt_seconds: Some(9), ..Halt::default() }, false),
            (Halt { halt_seconds: Some(100), ..Halt::default() }, true),
            (Halt { halt_seconds: Some(40), ..Halt::default() }, false),
        ];
        for (halt, ends) in halts {
            let rules = AdviceRules { seconds: 1000, end_time: 200, ..AdviceRules::default() };
            let mut bench = Bench::new(rules);
            assert_eq!(bench.at(100).0, Some((false, false)));
            bench.halt(halt.clone());
            assert_eq!(bench.at(150).0, ends.then_some((true, true)), "{halt:?}");
        }
    }

    #[test]
    fn the_halt_file_counts_checkpoints() {
        let mut bench = Bench::new(AdviceRules { seconds: 1000, ..AdviceRules::default() });
        assert_eq!(bench.at(100).1, Some(0));
        // Sealed while the file is being read.
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(101).1, None);
        bench.halt(Halt { checkpoints_left: Some(2), ..Halt::default() });
        assert_eq!(bench.at(102), (None, Some(1)), "and looked at for that seal, too");
        bench.halt(Halt { checkpoints_left: Some(1), ..Halt::default() });
        assert_eq!(bench.at(103), (None, None));
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(104), (Some((true, true)), Some(1)));
        bench.advice.halt(bench.cluster.now, Err(1));
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(105), (Some((true, true)), Some(2)), "what is known holds");
    }

    #[test]
    fn what_was_said_is_said_by_the_next_lead() {
        let mut bench = Bench::new(AdviceRules { interval: 3, ..AdviceRules::default() });
        bench.at(100);
        let before = bench.shown.unwrap();
        bench.advice.asked(2);
        assert_eq!(bench.at(101).0, Some((true, false)));
        let after = bench.shown.unwrap();
        // One node was not reached any more, one is older than the last seal.
        let older = control::Advice { sealed_us: 99 * SECOND, should_exit: true, ..before };
        bench.next_lead(200, &[before, after, older], Some(90));
        assert_eq!(bench.at(200).0, Some((true, false)), "told anew: some may not know");
        assert_eq!(bench.at(201).0, None);
        bench.advice.sealed(bench.cluster.now, 0);
        assert_eq!(bench.at(202).0, Some((false, false)));
        assert_eq!(bench.shown.unwrap().sealed_us, 201 * SECOND);
        // It ended after it was advised to, and nobody told the nodes.
        bench.next_lead(300, &[after], Some(150));
        assert_eq!(bench.at(300).0, Some((false, false)));
    }

    #[test]
    fn time_goes_on_under_the_next_lead() {
        let mut bench = Bench::new(AdviceRules { seconds: 60, overhead: 10, ..AdviceRules::default() });
        bench.advice.sealed(110 * SECOND, 10 * SECOND);
        assert_eq!(bench.at(110).0, Some((false, false)));
        let told = bench.shown.unwrap();
        bench.next_lead(160, &[told], Some(109));
        assert_eq!(bench.at(160).0, Some((false, false)));
        assert_eq!(bench.at(170).0, Some((true, false)), "60 seconds");
        bench.next_lead(160, &[control::Advice { sealed_us: 150 * SECOND, ..told }], None);
        assert_eq!(bench.at(200).0, Some((false, false)));
        assert_eq!(bench.at(201).0, Some((true, false)), "10 of 101 seconds");
        // No node knows.
        bench.next_lead(160, &[], Some(100));
        bench.cluster.settings.advice.overhead = 0;
        assert_eq!(bench.at(160).0, Some((true, false)));
        bench.next_lead(160, &[], None);
        assert_eq!(bench.at(160).0, Some((false, false)));
    }
}
