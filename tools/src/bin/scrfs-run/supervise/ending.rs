//! The end of a job, whichever: done, given up, asked to end, halted. The newest protected dataset
//! is brought to the PFS while coordinators live; where they do not, new ones are started for it.
//! What could not be saved is named.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::Duration;

use scrfs::config::ending::LAST;
use scrfs_tools::output::escaped;

use super::hanging::LEAVE_LIMIT;
use super::{
    ATTACH_LIMIT, After, CLEAR_LIMIT, Coordinators, Doubt, Look, Output, Phase, SaveError, Start, Supervisor,
};

/// What saves keeps to its limit by itself; its launcher gets this much more.
const LAUNCH: Duration = Duration::from_secs(15);
/// Starts of coordinators for the sake of saving.
const ATTACHES_MAX: u32 = 3;
/// Deaths of the launcher of what saves, in a job, and starts of that which failed without a word.
const CRASHES_MAX: u32 = 3;
/// After such a failure, until it is started again.
const PAUSE: Duration = Duration::from_secs(2);
/// For the nodes to say what they have.
const NAMING_LIMIT: Duration = Duration::from_secs(30);
/// Of the allocation's last seconds ([`LAST`]), those that are kept for naming what is not saved
/// when saving itself hangs, and those in which no node is asked any more.
const NAMING: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(1);
/// Signals that come so soon after one another are one asking: timeout(1), terminals and schedulers
/// send one to a process and to its group.
const ONE_ASKING: Duration = Duration::from_secs(1);
/// What to do about what is not saved.
const LATER: &str = "as long as the nodes keep their caches (under a scheduler: while the job lasts; its Epilog saves what it can), a scrfs-run with the same \
                     job id and hosts goes on from there, in the prefix that it is given; SCRFS_END_GRACE is the time that saving gets";

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

/// Where something unsaved is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holders {
    /// Who says so of itself.
    hosts: Vec<String>,
    /// On so many nodes, by what these say.
    all: usize,
}

/// The exit code when what should be on the PFS is not: whoever sees 0 takes the job's work for
/// saved.
pub(super) fn failed(code: u8) -> u8 {
    code.max(1)
}

impl Supervisor {
    /// No program runs, and none will: saves what there is, and ends.
    pub(super) fn end(&mut self, now: Duration, code: u8, done: bool, out: &mut Vec<Output>) {
        let end = self.end_of(now, code, done);
        if !self.has_to_save(done) {
            return self.clear(now, After::Finish(code), out);
        }
        self.save(now, end, out);
    }

    /// Without a run nothing is newer than what the last scrfs-run left; that may not be saved
    /// either.
    fn has_to_save(&self, done: bool) -> bool {
        (self.runs > 0 || !self.unsaved.is_empty()) && (done || !self.plan.end.grace.is_zero())
    }

    fn end_of(&self, now: Duration, code: u8, done: bool) -> End {
        let grace = self.plan.end.grace;
        let limit = if done { self.plan.flush_limit } else { grace };
        End { code, done, by: self.in_allocation(now, limit, LAST) }
    }

    /// So much time from now, or until so much before the allocation ends, if that is earlier. One
    /// that has not ended when it should have is of no account.
    fn in_allocation(&self, now: Duration, limit: Duration, before: Duration) -> Duration {
        let at = now + limit;
        let left = self.left.filter(|left| *left > now);
        left.map_or(at, |left| at.min(left.saturating_sub(before)).max(now))
    }

    pub(super) fn save(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        self.phase = Phase::Saving(end);
        match self.coordinators {
            Coordinators::Settled(_) => self.await_saved(now, end, out),
            Coordinators::Down => self.attach_to_save(now, end, out),
            // `ready` or their end comes.
            Coordinators::Starting if self.meeting.is_awaited() || self.start == Start::Attach => {
                self.deadline = Some(end.by.min(now + ATTACH_LIMIT));
            }
            Coordinators::Starting => self.deadline = Some(end.by),
            Coordinators::Leaving => self.deadline = Some(end.by.min(now + LEAVE_LIMIT)),
        }
    }

    /// Coordinators have met. Those of a restart have bytes to move before they are ready: they get
    /// all the time that saving has.
    pub(super) fn met_to_save(&mut self) {
        if let (Phase::Saving(end), Start::Restart, Coordinators::Starting) =
            (self.phase, self.start, self.coordinators)
        {
            self.deadline = Some(end.by);
        }
    }

    pub(super) fn await_saved(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        // The next one at each further try.
        let at = usize::try_from(self.save_crashes).unwrap_or(0) % self.used.len().max(1);
        let Some(host) = self.used.get(at).cloned() else { return };
        self.attach_at = None;
        let limit = end.by.saturating_sub(now).max(Duration::from_secs(1));
        let newest = !self.plan.end.grace.is_zero();
        self.deadline = Some(self.in_allocation(now, limit + LAUNCH, NAMING));
        let what = if newest { "saving the newest dataset" } else { "waiting for what is being flushed" };
        out.push(Output::Say(format!("no program runs any more: {what}, for at most {} s", limit.as_secs())));
        out.push(Output::Save { host, limit, due: end.done, newest });
    }

    /// With all nodes of the last run programs' places are as they were; where one is lost, or no
    /// coordinators have been on them, what is missing is rebuilt.
    pub(super) fn attach_to_save(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        if self.used.iter().any(|host| self.excluded.contains(host)) {
            self.start = Start::Restart;
        }
        if self.start == Start::Restart {
            self.used = self.savers();
        }
        if self.save_attaches >= ATTACHES_MAX || now >= end.by || self.used.is_empty() {
            return self.cannot_save(now, end, out);
        }
        self.save_attaches += 1;
        self.deadline = Some(end.by.min(now + ATTACH_LIMIT));
        if self.save_attaches == 1 {
            out.push(Output::Say("starting coordinators to save the newest dataset".to_owned()));
        }
        self.start_coordinators(self.start, true, out);
    }

    /// Who has something unsaved, and others until they are as many as run the program. What a look
    /// has told before the last run is of no account: what that has protected is on its nodes.
    fn savers(&self) -> Vec<String> {
        let is_stale = self.unsaved_at < self.runs;
        let told = |host: &String| self.unsaved.values().any(|holders| holders.hosts.contains(host));
        let has = |host: &&String| if is_stale { self.used.contains(*host) } else { told(host) };
        let live = || self.plan.hosts.iter().filter(|host| !self.excluded.contains(*host));
        let holders = live().filter(has).count();
        let others = live().filter(|host| !has(host));
        let chosen: BTreeSet<&String> =
            live().filter(has).chain(others).take(self.plan.nodes.max(holders).max(1)).collect();
        live().filter(|host| chosen.contains(host)).cloned().collect()
    }

    /// Coordinators that were started to save have presented a dataset: is it what is to be saved?
    pub(super) fn presented(
        &mut self,
        now: Duration,
        end: End,
        current: Option<&OsStr>,
        out: &mut Vec<Output>,
    ) {
        let current = escaped(current.unwrap_or_default().display());
        let is_it = |what: &String| what.strip_prefix(&*current).is_some_and(|rest| rest.starts_with(" ("));
        // What a later run has protected is not known here.
        let is_stale = self.unsaved_at < self.runs;
        let end = if is_stale || self.unsaved.is_empty() || self.unsaved.keys().any(is_it) {
            end
        } else {
            out.push(Output::Say("what is not saved could not be rebuilt".to_owned()));
            self.tell_memory(out);
            End { code: failed(end.code), ..end }
        };
        self.phase = Phase::Saving(end);
        self.await_saved(now, end, out);
    }

    pub(super) fn saved(&mut self, now: Duration, result: Result<(), SaveError>, out: &mut Vec<Output>) {
        let Phase::Saving(end) = self.phase else { return };
        // Coordinators that died meanwhile are on their way back; their `ready` asks again.
        if !self.is_settled() {
            return;
        }
        match result {
            Ok(()) => self.clear(now, After::Finish(end.code), out),
            Err(SaveError::Named) => {
                out.push(Output::Say("not all is saved: the lines above say what".to_owned()));
                self.clear(now, After::Finish(failed(end.code)), out);
            }
            Err(SaveError::Crashed) if now < end.by && self.save_crashes < CRASHES_MAX => {
                self.save_crashes += 1;
                self.await_saved(now, end, out);
            }
            Err(SaveError::Crashed) => {
                let why = "its launcher was ended by a signal".to_owned();
                self.saved(now, Err(SaveError::Failed(why)), out);
            }
            // Coordinators live: another node may be asked.
            Err(SaveError::Failed(why)) if now + PAUSE < end.by && self.save_crashes < CRASHES_MAX => {
                out.push(Output::Say(format!("what is to save failed ({why}): once more")));
                self.save_crashes += 1;
                self.attach_at = Some(now + PAUSE);
            }
            Err(SaveError::Failed(why)) => {
                out.push(Output::Say(format!("not all is saved: {why}")));
                self.ask_what_is_unsaved(now, End { code: failed(end.code), ..end }, out);
            }
        }
    }

    /// What saves is started again, if its coordinators serve still.
    pub(super) fn save_again(&mut self, now: Duration, out: &mut Vec<Output>) {
        if let Phase::Saving(end) = self.phase
            && self.attach_at.take_if(|at| *at <= now).is_some()
            && self.is_settled()
        {
            self.await_saved(now, end, out);
        }
    }

    /// There are no coordinators to do it: the nodes tell what they have.
    pub(super) fn cannot_save(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        out.push(Output::Say(
            "coordinators do not come back: scrfs-run itself can save nothing more".to_owned(),
        ));
        if self.coordinators != Coordinators::Down {
            out.push(Output::StopCoordinators);
        }
        self.ask_what_is_unsaved(now, end, out);
    }

    fn ask_what_is_unsaved(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        let hosts: Vec<String> = self.left_in().cloned().collect();
        self.phase = Phase::Naming(end);
        self.attach_at = None;
        self.deadline = Some(self.in_allocation(now, NAMING_LIMIT, SILENCE));
        if hosts.is_empty() || self.deadline.is_some_and(|at| at <= now) {
            return self.name_from_memory(now, end, out);
        }
        self.ask(hosts, false, Doubt::OfOne, out);
    }

    /// The nodes that have run the program and are not left out.
    fn left_in(&self) -> impl Iterator<Item = &String> {
        self.used.iter().filter(|host| !self.excluded.contains(*host))
    }

    pub(super) fn name_unsaved(&mut self, now: Duration, end: End, nodes: &[Look], out: &mut Vec<Output>) {
        let unsaved = unsaved_of(nodes.iter(), self.left_in().count());
        // Who has nothing of it may not know of it.
        let is_silent = |host: &String| nodes.iter().all(|node| node.host != *host || node.problem.is_some());
        let unheard = !self.unsaved.is_empty()
            && self.unsaved.values().flat_map(|holders| &holders.hosts).all(is_silent);
        if nodes.iter().all(|node| node.problem.is_some()) || unsaved.is_empty() && unheard {
            return self.name_from_memory(now, end, out);
        }
        tell_unsaved(&unsaved, "not on the PFS", out);
        let code = if unsaved.is_empty() { end.code } else { failed(end.code) };
        self.clear(now, After::Finish(code), out);
    }

    /// No node can be asked any more.
    pub(super) fn name_from_memory(&mut self, now: Duration, end: End, out: &mut Vec<Output>) {
        if self.unsaved.is_empty() {
            out.push(Output::Say("what is not on the PFS is not known: no node says so in time".to_owned()));
            out.push(Output::Hint(LATER.into()));
        }
        self.tell_memory(out);
        self.clear(now, After::Finish(failed(end.code)), out);
    }

    /// What the nodes said last.
    pub(super) fn tell_memory(&self, out: &mut Vec<Output>) {
        tell_unsaved(&self.unsaved, "not on the PFS when the nodes were looked at last", out);
    }

    /// What a look tells of what is not saved. A node that was away may have an older dataset: that
    /// is no loss.
    pub(super) fn remember(&mut self, nodes: &[Look]) {
        let answered = || nodes.iter().filter(|node| node.problem.is_none());
        if let Some(newest) = answered().map(|node| node.newest).max() {
            let most = self.left_in().count();
            self.unsaved = unsaved_of(answered().filter(|node| node.newest == newest), most);
            self.unsaved_at = self.runs;
        }
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
                | Phase::LookingToEnd(_)
                | Phase::Clearing(After::Finish(_) | After::Save(_))
        );
        // While nodes are looked at it is not known whether anything is to be saved.
        let looks = self.phase == Phase::Looking && !self.plan.end.grace.is_zero();
        out.push(Output::Say(format!(
            "signal {signal}: ending the job{}",
            if ends { " at once" } else { "" }
        )));
        if ends || !(looks || self.has_to_save(false)) {
            return self.clear(now, After::Finish(code), out);
        }
        let end = self.end_of(now, code, false);
        self.attach_at = None;
        if self.phase == Phase::Looking {
            self.phase = Phase::LookingToEnd(end);
        } else if self.phase == Phase::Clearing(After::Look) {
            self.phase = Phase::Clearing(After::Save(end));
        } else if self.program_up {
            self.phase = Phase::Stopping(end);
            self.deadline = Some(now + CLEAR_LIMIT);
            out.push(Output::StopProgram);
        } else {
            self.save(now, end, out);
        }
    }

    /// The look that was under way when the end was asked for is over, and with it what it was to
    /// end on the nodes.
    pub(super) fn looked_to_end(&mut self, now: Duration, end: End, nodes: &[Look], out: &mut Vec<Output>) {
        if self.is_beneath_a_program(nodes, out) || !self.has_to_save(false) {
            self.tell_memory(out);
            return self.finish(end.code, out);
        }
        self.save(now, end, out);
    }
}

/// `most`: no more nodes than these can have it; not all of them have answered.
fn unsaved_of<'a>(nodes: impl Iterator<Item = &'a Look>, most: usize) -> BTreeMap<String, Holders> {
    let mut unsaved: BTreeMap<String, Holders> = BTreeMap::new();
    for node in nodes {
        if let Some(what) = &node.unsaved {
            let holders = unsaved.entry(what.clone()).or_default();
            holders.hosts.push(node.host.clone());
            let all = usize::try_from(node.held_by).unwrap_or(usize::MAX).min(most);
            holders.all = holders.all.max(all);
        }
    }
    unsaved
}

fn tell_unsaved(unsaved: &BTreeMap<String, Holders>, how: &str, out: &mut Vec<Output>) {
    for (what, Holders { hosts, all }) in unsaved {
        let names = hosts.join(" ");
        let holders = if *all > hosts.len() { format!("{all} nodes, {names} among them") } else { names };
        out.push(Output::Say(format!("{how}: {what}; it is in the caches of {holders}")));
    }
    if !unsaved.is_empty() {
        out.push(Output::Hint(LATER.into()));
    }
}
