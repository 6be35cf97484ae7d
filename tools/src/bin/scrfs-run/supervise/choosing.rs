//! What looks at the nodes tell: which of them run the program next, whether it runs at all, and
//! whether one that it runs on is gone.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::wanting::held;
use super::{After, Doubt, HALTED, Look, Output, Phase, Start, Supervisor, doubting};

/// Hints.
const SEE_PROGRAM: &str = "the program's own output says why it ended; SCR_RUNS=N allows N runs";
/// What a node without a mount says.
const NO_MOUNT: &str = "is not an scrfs mount";
/// What one with another job's mount says.
const NOT_OURS: &str = "its mount is job ";
/// What one says that is another user's.
const OF_ANOTHER: &str = "answers the job's user and root only";
const MORE_HOSTS: &str = "name more hosts with --hosts, or allow fewer nodes with SCR_MIN_NODES";
const ASK_FOR_IT: &str = "a job gets its mounts from the scheduler's prolog when it asks for them (sbatch --constraint=scrfs or \
                          --comment=scrfs), or root runs `scrfs mount` on each node; --mount says where they are";
const NAME_IT: &str = "--mount names this job's own mount point; SCR_JOB_ID and SCR_USER_NAME are what the mount was made with: \
                       `scrfs-ctl jobs` shows them";
const END_THEM: &str =
    "let these end, or end them, and start again; a restart would remove the files that they write";

impl Supervisor {
    pub(super) fn look(&mut self, doubt: Doubt, out: &mut Vec<Output>) {
        self.phase = Phase::Looking;
        self.deadline = None;
        let hosts = self.plan.hosts.iter().filter(|h| !self.excluded.contains(*h)).cloned().collect();
        self.ask(hosts, true, doubt, out);
    }

    pub(super) fn ask(&mut self, hosts: Vec<String>, sweep: bool, doubt: Doubt, out: &mut Vec<Output>) {
        self.serial += 1;
        self.hold_watch();
        out.push(Output::Look { serial: self.serial, hosts, sweep, doubt });
    }

    pub(super) fn looked(
        &mut self,
        now: Duration,
        nodes: &[Look],
        halt: Option<String>,
        out: &mut Vec<Output>,
    ) {
        let (in_doubt, gone) = self.judge(nodes);
        let mut lost_used = false;
        for (node, problem) in gone {
            let host = &node.host;
            // A launcher that its scheduler ends too says nothing of it; and it may hold what is
            // to be named.
            if self.signalled.is_some() && matches!(self.phase, Phase::Naming(_)) {
                continue;
            }
            if self.excluded.insert(host.clone()) {
                if !self.says_nothing_of(host, nodes) {
                    out.push(Output::Say(format!("{host} is left out from now on: {problem}")));
                    out.push(Output::Explained);
                }
                lost_used |= self.used.contains(host);
                if self.may_be_back(node, nodes) {
                    self.unasked.insert(host.clone());
                }
            }
        }
        if matches!(self.phase, Phase::Looking | Phase::LookingToEnd(_) | Phase::Checking) {
            self.remember(nodes);
        }
        self.doubt_is_over();
        match self.phase {
            Phase::Looking => self.choose(now, nodes, halt, out),
            Phase::LookingToEnd(end) => self.looked_to_end(now, end, nodes, out),
            Phase::Naming(end) => self.name_unsaved(now, end, nodes, out),
            // Coordinators die because of it; or launchers wait for it, and coordinators never come
            // to watch one another.
            Phase::Running | Phase::Recovering if lost_used => {
                out.push(Output::Say(
                    if self.phase == Phase::Running {
                        "a node of the program is gone: ending the program"
                    } else {
                        "recovery waits for a node that is gone: once more without it"
                    }
                    .to_owned(),
                ));
                if self.phase == Phase::Running {
                    (self.code, self.own_code) = (1, None);
                }
                self.named.extend(self.used.iter().filter(|host| self.excluded.contains(*host)).cloned());
                self.clear(now, After::Look, out);
                out.push(Output::Hurry);
            }
            Phase::Recovering => {
                self.watch_on(now);
                self.doubt_later(now, &in_doubt, out);
            }
            Phase::Running => self.tell_in_doubt(&in_doubt, "the program", out),
            Phase::Checking if lost_used => self.lost_at_the_end(now, out),
            Phase::Checking if self.is_to_be_checked_again(now, &in_doubt) => {
                self.deadline = Some(now + doubting::AGAIN);
            }
            Phase::Checking if self.refusal.is_some() => self.not_launched(now, nodes, out),
            Phase::Checking => {
                self.tell_left(nodes, out);
                // It did what its signal told it, and has not done all of its work.
                let code = if self.was_signalled() { HALTED } else { 0 };
                self.end(now, code, true, out);
            }
            _ => {}
        }
    }

    /// All nodes are known: start the next run, or give up.
    fn choose(&mut self, now: Duration, nodes: &[Look], halt: Option<String>, out: &mut Vec<Output>) {
        let halted = self.halted(now, halt);
        // A halted job is only saved: coordinators that attach may do so beneath a program.
        let attaches = self.start == Start::Attach && self.used.iter().all(|h| !self.excluded.contains(h));
        if !(halted.is_some() && attaches) && self.is_beneath_a_program(nodes, out) {
            self.run_to_judge = false;
            out.push(Output::Say("giving up: nothing is restarted beneath a living program".to_owned()));
            out.push(Output::Hint(END_THEM.into()));
            self.tell_memory(out);
            return self.finish(self.code, out);
        }
        let newest = nodes.iter().filter(|n| n.problem.is_none()).map(|n| n.newest).max().unwrap_or(0);
        let judged = std::mem::take(&mut self.run_to_judge);
        if newest > self.newest {
            (self.newest, self.fruitless) = (newest, 0);
            self.unlaunched.clear();
        } else {
            self.fruitless += u32::from(judged);
        }
        self.wanted.learn(nodes);
        if let Some(reason) = halted {
            return self.stay_halted(now, &reason, out);
        }
        if self.runs > 0 {
            let counted = self.counted_runs();
            if self.plan.runs.is_some_and(|most| counted >= most) {
                let why = format!("{counted} runs were allowed (SCR_RUNS)");
                return self.give_up(now, &why, SEE_PROGRAM, out);
            }
            if self.plan.runs.is_none() && self.fruitless >= 2 {
                return self.give_up(now, "two runs in a row protected nothing new", SEE_PROGRAM, out);
            }
        }
        let live: Vec<String> =
            self.plan.hosts.iter().filter(|h| !self.excluded.contains(*h)).cloned().collect();
        let last = if self.used.is_empty() { self.plan.nodes } else { self.program_hosts().len() };
        let least = self.plan.min_nodes.unwrap_or(last).max(1);
        if live.len() < least {
            if self.ask_named(out) {
                return;
            }
            let (left, all) = (live.len(), self.plan.hosts.len());
            let why = format!("{left} of {all} nodes can be used, and {least} are needed (SCR_MIN_NODES)");
            return self.give_up(now, &why, remedy(nodes), out);
        }
        self.used = self.first_of(&live, nodes, out);
        self.wanted.note_unused(&self.used, nodes);
        self.start = Start::Restart;
        let spares = live.len() - self.used.len();
        self.tell_unsealed(nodes, out);
        out.push(Output::Say(format!("run {} on {} (spares: {spares})", self.runs + 1, self.used.join(" "))));
        self.recover(now, out);
    }

    /// Runs that count for SCR_RUNS.
    pub(super) fn counted_runs(&self) -> u32 {
        self.runs.saturating_sub(self.unlaunched_runs)
    }

    /// As many of `live` as run the program, in their order, and where the newest dataset could not
    /// be had without them, all that hold it. First come nodes that hold a protected dataset, the
    /// newest before others: coordinators do not run on nodes that are left out, so what is there
    /// would be as good as lost. Of the rest those come last that the scheduler takes out of use.
    fn first_of(&self, live: &[String], nodes: &[Look], out: &mut Vec<Output>) -> Vec<String> {
        let looks: HashMap<&String, &Look> = nodes.iter().map(|node| (&node.host, node)).collect();
        let leaving = |host: &String| looks.get(host).and_then(|node| node.leaving.as_ref());
        let replaced = replaced(live, &looks);
        let keeps = |host: &String| held(looks.get(host)?).filter(|_| replaced != Some(host));
        let mut order: Vec<&String> = live.iter().collect();
        order.sort_by_key(|host| (Reverse(keeps(host)), leaving(host).is_some()));
        let newest = order.first().and_then(|host| keeps(host)).filter(|_| self.wanted.reaches_out);
        let holders = newest.map_or(0, |newest| order.iter().filter(|h| keeps(h) == Some(newest)).count());
        let most = self.plan.nodes.max(holders).max(1);
        let chosen: BTreeSet<&String> = order.into_iter().take(most).collect();
        for (host, state) in live.iter().filter_map(|host| Some((host, leaving(host)?))) {
            let how = match (chosen.contains(host), keeps(host)) {
                (false, _) => "is used last",
                (true, Some(_)) => "is used all the same, as it holds a protected dataset",
                (true, None) => "is used all the same, for want of others",
            };
            out.push(Output::Say(format!("{host} {how}: the scheduler says that it is {state}")));
        }
        live.iter().filter(|host| chosen.contains(host)).cloned().collect()
    }

    /// Something of the job lives that is not this run's. Who merely writes in the mount counts at
    /// the first start: later on it is known that the program has ended, and a stray writer must
    /// not keep it from coming back.
    pub(super) fn is_beneath_a_program(&self, nodes: &[Look], out: &mut Vec<Output>) -> bool {
        let mut found = false;
        for node in nodes {
            if node.orphans > 0 {
                out.push(Output::Say(format!(
                    "{}: ended {} processes that a former scrfs-run of this job, which is dead, had left",
                    node.host, node.orphans
                )));
            }
            let writers = node.writers.iter().filter(|_| self.runs == 0);
            let living: Vec<String> = node.foreign.iter().chain(writers).map(ToString::to_string).collect();
            if !living.is_empty() {
                out.push(Output::Say(format!("alive on {}: {}", node.host, living.join(", "))));
                found = true;
            }
        }
        found
    }
}

/// What a person can do about nodes too few of which can be used.
fn remedy(nodes: &[Look]) -> &'static str {
    let problems: Vec<&String> = nodes.iter().filter_map(|node| node.problem.as_ref()).collect();
    let all_say = |words: &str| !problems.is_empty() && problems.iter().all(|p| p.contains(words));
    if all_say(NO_MOUNT) {
        ASK_FOR_IT
    } else if all_say(NOT_OURS) || all_say(OF_ANOTHER) {
        NAME_IT
    } else {
        nodes.iter().find_map(|n| n.remedy).unwrap_or(MORE_HOSTS)
    }
}

/// Of the holders of the newest dataset the one that the scheduler takes out of use and that
/// another node may replace: all other holders are there, and the dataset outlives the loss of
/// this one.
fn replaced<'a>(live: &'a [String], looks: &HashMap<&String, &Look>) -> Option<&'a String> {
    let newest = live.iter().filter_map(|host| held(looks.get(host)?)).max()?;
    let holders = live.iter().filter_map(|host| Some((host, *looks.get(host)?)));
    let holders: Vec<_> = holders.filter(|(_, node)| held(node) == Some(newest)).collect();
    let wanted = holders.iter().map(|(_, node)| node.held_by).max()?;
    if holders.len() < usize::try_from(wanted).unwrap_or(usize::MAX) {
        return None;
    }
    holders.into_iter().find(|(_, node)| node.leaving.is_some() && node.expendable).map(|(host, _)| host)
}
