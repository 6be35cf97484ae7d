//! The end of a job, whichever: done, given up, asked to end, halted. The newest protected dataset is brought to the PFS
//! while coordinators live; where they do not, new ones are started for it. What could not be saved is named.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{ATTACH_LIMIT, After, CLEAR_LIMIT, Coordinators, Look, Output, Phase, Start, Supervisor};

/// What saves keeps to its limit by itself; its launcher gets this much more.
const LAUNCH: Duration = Duration::from_secs(15);
/// Starts of coordinators for the sake of saving.
const ATTACHES_MAX: u32 = 3;
/// For the nodes to say what they have.
const NAMING_LIMIT: Duration = Duration::from_secs(30);
/// Signals that come so soon after one another are one asking: timeout(1), terminals and schedulers send one to a process and
/// to its group.
const ONE_ASKING: Duration = Duration::from_secs(1);
/// What to do about what is not saved.
const LATER: &str = "as long as the nodes keep their caches (under a scheduler: while the job lasts), a scrfs-run with the same \
                     job id, hosts and prefix goes on from there; SCRFS_END_GRACE is the time that saving gets";

/// How the job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// The exit code.
    pub(super) code: u8,
    /// The program is done: what is due by `SCR_FLUSH` is waited for too.
    pub(super) done: bool,
    /// Saving is given up at this time.
    pub(super) by: Duration,
}

/// The exit code when what should be on the PFS is not: whoever sees 0 takes the job's work for saved.
pub(super) fn failed(code: u8) -> u8 {
    code.max(1)
}

impl Supervisor {
    /// No program runs, and none will: saves what there is, and ends.
    pub(super) fn end(&mut self, now: Duration, code: u8, done: bool, out: &mut Vec<Output>) {
        let end = self.end_of(now, code, done);
        // Without a run nothing is newer than what the last scrfs-run left.
        if self.runs == 0 || (!done && self.plan.end.grace.is_zero()) {
            return self.clear(now, After::Finish(code), out);
        }
        self.save(now, end, out);
    }

    fn end_of(&self, now: Duration, code: u8, done: bool) -> End {
        let grace = self.plan.end.grace;
        let limit = if done { self.plan.flush_limit.max(grace) } else { grace };
        End { code, done, by: now + limit }
    }

    pub(super) fn save(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        self.phase = Phase::Saving(end);
        match self.coordinators {
            Coordinators::Settled(_) => self.await_saved(now, end, out),
            Coordinators::Down => self.attach_to_save(now, end, out),
            // `ready` or their end comes.
            Coordinators::Starting => self.deadline = Some(end.by.min(now + ATTACH_LIMIT)),
        }
    }

    pub(super) fn await_saved(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        let Some(host) = self.used.first().cloned() else { return };
        let limit = end.by.saturating_sub(now).max(Duration::from_secs(1));
        let newest = !self.plan.end.grace.is_zero();
        self.deadline = Some(now + limit + LAUNCH);
        let what = if newest { "saving the newest dataset" } else { "waiting for what is being flushed" };
        out.push(Output::Say(format!("no program runs any more: {what}, for at most {} s", limit.as_secs())));
        out.push(Output::Save { host, limit, due: end.done, newest });
    }

    /// With all nodes of the last run programs' places are as they were; where one is lost, its part is rebuilt.
    pub(super) fn attach_to_save(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        let lost = self.used.iter().any(|host| self.excluded.contains(host));
        if lost {
            let live = self.plan.hosts.iter().filter(|host| !self.excluded.contains(*host));
            self.used = live.take(self.plan.nodes.max(1)).cloned().collect();
        }
        if self.save_attaches >= ATTACHES_MAX || now >= end.by || self.used.is_empty() {
            return self.cannot_save(now, end, out);
        }
        self.save_attaches += 1;
        self.deadline = Some(end.by.min(now + ATTACH_LIMIT));
        out.push(Output::Say("starting coordinators to save the newest dataset".to_owned()));
        self.start_coordinators(if lost { Start::Restart } else { Start::Attach }, true, out);
    }

    pub(super) fn saved(&mut self, now: Duration, result: Result<(), String>, out: &mut Vec<Output>) {
        let Phase::Saving(end) = self.phase else { return };
        // Coordinators that died meanwhile are on their way back; their `ready` asks again.
        if !self.is_settled() {
            return;
        }
        let code = result.as_ref().map_or_else(|_| failed(end.code), |()| end.code);
        if let Err(why) = result {
            out.push(Output::Say(format!("not all is saved: {why}")));
        }
        self.clear(now, After::Finish(code), out);
    }

    /// There are no coordinators to do it: the nodes tell what they have.
    pub(super) fn cannot_save(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        out.push(Output::Say("coordinators do not come back: nothing more can be saved now".to_owned()));
        if self.coordinators != Coordinators::Down {
            out.push(Output::StopCoordinators);
        }
        let hosts: Vec<String> =
            self.used.iter().filter(|host| !self.excluded.contains(*host)).cloned().collect();
        if hosts.is_empty() {
            return self.clear(now, After::Finish(end.code), out);
        }
        self.phase = Phase::Naming(end);
        self.deadline = Some(now + NAMING_LIMIT);
        self.ask(hosts, false, true, out);
    }

    pub(super) fn name_unsaved(&mut self, now: Duration, end: End, nodes: &[Look], out: &mut Vec<Output>) {
        let mut unsaved: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for node in nodes {
            if let Some(what) = &node.unsaved {
                unsaved.entry(what).or_default().push(&node.host);
            }
        }
        for (what, hosts) in &unsaved {
            let hosts = hosts.join(" ");
            out.push(Output::Say(format!("not on the PFS: {what}; it is in the caches of {hosts}")));
        }
        let mut code = end.code;
        if !unsaved.is_empty() {
            out.push(Output::Hint(LATER));
            code = failed(code);
        }
        self.clear(now, After::Finish(code), out);
    }

    /// A person or the scheduler wants the end; a second time, at once.
    pub(super) fn signal(&mut self, now: Duration, signal: u8, out: &mut Vec<Output>) {
        if self.signalled.replace(now).is_some_and(|last| now.saturating_sub(last) < ONE_ASKING) {
            return;
        }
        let code = 128_u8.saturating_add(signal);
        let ends = matches!(
            self.phase,
            Phase::Stopping(_)
                | Phase::Saving(_)
                | Phase::Naming(_)
                | Phase::Clearing(After::Finish(_) | After::Save(_))
        );
        let saves = self.runs > 0 && !self.plan.end.grace.is_zero();
        out.push(Output::Say(format!(
            "signal {signal}: ending the job{}",
            if ends { " at once" } else { "" }
        )));
        if ends || !saves {
            return self.clear(now, After::Finish(code), out);
        }
        let end = self.end_of(now, code, false);
        self.attach_at = None;
        if self.phase == Phase::Clearing(After::Look) {
            self.phase = Phase::Clearing(After::Save(end));
        } else if self.program_up {
            self.phase = Phase::Stopping(end);
            self.deadline = Some(now + CLEAR_LIMIT);
            out.push(Output::StopProgram);
        } else {
            self.save(now, end, out);
        }
    }

    /// What a restart removes, before it does.
    pub(super) fn tell_unsealed(&self, nodes: &[Look], out: &mut Vec<Output>) {
        let what = if self.plan.end.keep_unsealed { "moves aside" } else { "removes" };
        let some = self.name_unsealed(nodes, &format!("this restart {what}"), out);
        if some && !self.plan.end.keep_unsealed {
            out.push(Output::Hint("--keep-unsealed has them moved aside"));
        }
    }

    /// What a program that is done leaves unsealed.
    pub(super) fn tell_left(&self, nodes: &[Look], out: &mut Vec<Output>) {
        let some = self.name_unsealed(nodes, "nothing saves", out);
        let none = !some && nodes.iter().all(|node| node.newest == 0);
        if none {
            out.push(Output::Say("nothing was sealed: there is no checkpoint to save".to_owned()));
        }
        if some || none {
            out.push(Output::Hint(
                "`touch DIR/.complete` seals a directory; SCRFS_DATASET_PATTERN is for files beside directories",
            ));
        }
    }

    fn name_unsealed(&self, nodes: &[Look], fate: &str, out: &mut Vec<Output>) -> bool {
        let mut all: BTreeMap<&str, (u64, u64, Vec<&str>)> = BTreeMap::new();
        for node in nodes.iter().filter(|node| self.used.contains(&node.host)) {
            for unsealed in &node.unsealed {
                let (files, bytes, hosts) = all.entry(&unsealed.name).or_default();
                *files = files.saturating_add(unsealed.files);
                *bytes = bytes.saturating_add(unsealed.bytes);
                hosts.push(&node.host);
            }
        }
        for (name, (files, bytes, hosts)) in &all {
            let (bytes, hosts) = (scrfs_tools::output::bytes_for_people(*bytes), hosts.join(" "));
            out.push(Output::Say(format!(
                "{name} is not sealed: {fate} its {files} files ({bytes}) on {hosts}"
            )));
        }
        !all.is_empty()
    }
}
