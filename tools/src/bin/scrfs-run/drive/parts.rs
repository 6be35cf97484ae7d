//! The parts of a job: started, listened to, ended. What keeps one from being started is an event
//! like others.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ChildStderr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use scrfs::beside::{Beside, beside};
use scrfs::config::hosts::list;
use scrfs_tools::Failure;
use scrfs_tools::probe::RUN_VARIABLE;

use super::{Driver, Event, Running, spawn};
use crate::announce;
use crate::launcher::{CommandLine, Refusal, Restart, Said};
use crate::look::{self, Ended, same_host};
use crate::prefix;
use crate::process::{self, GRACE, Group, Streams};
use crate::supervise::{Count, Doubt, Input, Part, Start};
use crate::talk::{self, Stream};

/// How long the end of a launcher's words is waited for after its own.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// A scheduler that answers later is as good as none: the program's grace runs.
const SIGNAL_LIMIT: Duration = Duration::from_secs(5);
const WAITS: &str = "hint: other steps of this job have what it needs, to themselves (srun --exclusive, --exact): it begins when \
                     they end; `squeue --steps` names them";

/// Open MPI's mpirun that gets a second SIGTERM within five seconds ends at once, and leaves its
/// ranks behind, which may go on writing.
const ONE_TERM: Duration = Duration::from_secs(6);

impl Running {
    /// It is for the launcher to pass on.
    fn signal_launcher(&mut self, signal: Signal) {
        process::signal_leader(self.group.id(), signal);
        if signal == Signal::SIGTERM {
            self.terminated = Some(Instant::now());
        }
    }

    /// It has just been sent a SIGTERM, which ends what it has started.
    fn ends_by_now(&self) -> bool {
        self.terminated.is_some_and(|at| at.elapsed() < ONE_TERM)
    }
}

impl Driver {
    pub(super) fn tell_failed(&self, part: Part, started: Result<(), Refusal>) {
        if let Err(why) = started {
            drop(self.queue.send(Event::Tell(Input::CannotStart(part, why))));
        }
    }

    pub(super) fn look(&self, serial: u64, hosts: Vec<String>, sweep: bool, doubt: Doubt) {
        let (looker, queue) = (self.looker.clone(), self.queue.clone());
        looker.await_look(serial);
        let (prefix, mut rules) = (self.job.prefix.clone(), self.job.halt_rules);
        // Before the first run it has just been asked.
        let question = self.job.end_question.clone().filter(|_| sweep && self.starts > 0);
        let started = spawn("look", move || {
            let (nodes, end) = std::thread::scope(|scope| {
                let asking = question.map(|question| beside(scope, move || question.ask_again()));
                let say = |text: &str| drop(queue.send(Event::Say(text.to_owned())));
                let nodes = looker.look(serial, &hosts, (sweep, doubt), say);
                (nodes, asking.and_then(Beside::join))
            });
            if let Some(end) = end {
                if let Ok(at) = end {
                    rules.end_time = at.unwrap_or_default();
                }
                drop(queue.send(Event::AllocationEnds(end)));
            }
            // Before a run alone it matters, and the PFS may be slow.
            let halt = sweep.then(|| prefix::halt(&prefix, &rules)).flatten();
            drop(queue.send(Event::Tell(Input::Looked { serial, nodes, halt })));
        });
        if let Err(failure) = started {
            drop(self.queue.send(Event::Tell(Input::CannotLook(of_this_host(failure)))));
        }
    }

    pub(super) fn count_processes(&self, run: u32, hosts: Vec<String>) {
        let (looker, queue) = (self.looker.clone(), self.queue.clone());
        let launcher = self.running.get(&Part::Program).map(|part| part.group.id().as_raw().unsigned_abs());
        let coordinator = self.job.coordinator.clone();
        let count = move || {
            // A launcher waits for whoever reads what its program has said.
            let is_read = [Stream::Output, Stream::Errors].into_iter().all(talk::has_room);
            let count = match launcher.filter(|_| is_read) {
                Some(launcher) => looker.count_processes(&hosts, launcher, &coordinator),
                None => Count::Unknown,
            };
            drop(queue.send(Event::Tell(Input::Counted { run, count })));
        };
        if spawn("count", count).is_err() {
            drop(self.queue.send(Event::Tell(Input::Counted { run, count: Count::Unknown })));
        }
    }

    pub(super) fn ask_end(&self) {
        let (question, queue) = (self.job.end_question.clone(), self.queue.clone());
        let nobody = || Err("nobody can be asked".to_owned());
        let ask = move || {
            let asked = question.map_or_else(nobody, |question| question.ask_again());
            drop(queue.send(Event::AllocationEnds(asked)));
        };
        if let Err(failure) = spawn("end", ask) {
            drop(self.queue.send(Event::AllocationEnds(Err(failure.message))));
        }
    }

    pub(super) fn start_program(
        &mut self,
        hosts: &[String],
        current: Option<OsString>,
        run: u32,
    ) -> Result<(), Refusal> {
        let set = [
            ("SCRFS_CURRENT", current.unwrap_or_default()),
            ("SCRFS_MOUNT", self.job.mount.clone().into()),
            ("SCRFS_HOSTS", list(hosts).into()),
            ("SCRFS_RUN", run.to_string().into()),
            self.mark(),
        ];
        self.touched.extend(hosts.iter().cloned());
        let ones: &[String] = if self.job.ranks_per_node == 1 { hosts } else { &[] };
        self.started_on.insert(Part::Program, ones.to_vec());
        let line = self.job.lines.program(hosts, self.job.ranks_per_node, &self.job.program, &set);
        let streams = Streams::Program { input: self.input.give()?, errors: true };
        self.start(Part::Program, &line, streams).map_err(|e| cannot_start(&line, &e))
    }

    fn mark(&self) -> (&'static str, OsString) {
        (RUN_VARIABLE, self.job.token.to_string().into())
    }

    fn start(&mut self, part: Part, line: &CommandLine, streams: Streams) -> io::Result<()> {
        tracing::debug!(?part, ?line.program, ?line.arguments, "starting");
        let mut group = Group::start(line, streams)?;
        let (pid, queue) = (group.id(), self.queue.clone());
        let watched =
            group.take_errors().map(|errors| self.listen(part, pid, errors)).transpose().and_then(|heard| {
                std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
                    drop(process::await_end(pid));
                    // What it said belongs before its end; but what it has left behind may keep the
                    // pipe open.
                    if let Some(heard) = heard {
                        let _ = heard.recv_timeout(LAST_WORDS);
                    }
                    drop(queue.send(Event::Ended(part, pid)));
                })
            });
        match watched {
            Ok(_) => drop(
                self.running.insert(part, Running { group, stopped: false, terminated: None, kill_at: None }),
            ),
            Err(error) => {
                process::signal(pid, Signal::SIGKILL);
                group.reap();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Understands what a launcher says, and passes on the rest. The answer comes when it has
    /// ended.
    fn listen(&self, part: Part, pid: Pid, errors: ChildStderr) -> io::Result<Receiver<()>> {
        let launcher = self.job.lines.of(part);
        let (launcher, queue, log) = (Arc::clone(launcher), self.queue.clone(), self.log.clone());
        let (wait, raw) = (part == Part::Program, self.job.raw_launcher_output);
        let (tell, told) = mpsc::channel();
        let pid = pid.as_raw().unsigned_abs();
        // Our own programs say what is wrong in lines; their launcher and the library add blocks.
        let fence = launcher.fence().filter(|_| part != Part::Program && !raw);
        std::thread::Builder::new().name("errors".to_owned()).spawn(move || {
            let mut waits = false;
            // The program's words wait for whoever reads them; nobody waits with our own.
            let speak = |bytes: &[u8]| if wait { talk::pass_on(bytes, true) } else { talk::say(bytes) };
            let pass = |bytes: &[u8]| {
                if fence.is_some_and(|fence| bytes.starts_with(fence.as_bytes())) {
                    log.add(bytes);
                    drop(queue.send(Event::Folded(bytes.to_vec())));
                } else {
                    speak(bytes);
                }
            };
            let said = |said: Said, bytes: &[u8]| {
                if raw {
                    speak(bytes);
                } else {
                    log.add(bytes);
                    if !matches!(said, Said::Lost(_) | Said::Waits) {
                        drop(queue.send(Event::Folded(bytes.to_vec())));
                    }
                }
                match said {
                    Said::Lost(hosts) => {
                        for host in hosts {
                            drop(queue.send(Event::Lost(host)));
                        }
                    }
                    Said::Refused(refusal) => drop(queue.send(Event::Tell(Input::Refused(refusal)))),
                    // It says so again and again.
                    Said::Waits if !std::mem::replace(&mut waits, true) => {
                        talk::line(String::from_utf8_lossy(bytes).trim_end());
                        talk::line(WAITS);
                    }
                    Said::NotLaunched(failed) => drop(queue.send(Event::NotLaunched(part, failed))),
                    Said::Failed(what) if part == Part::Coordinators => {
                        drop(queue.send(Event::Tell(Input::LauncherFailed(what))));
                    }
                    Said::Noise | Said::Failed(_) | Said::Waits => {}
                }
            };
            talk::listen(errors, launcher, pid, pass, said);
            let _ = tell.send(());
        })?;
        Ok(told)
    }

    /// Its launcher passes it on to the ranks, or the scheduler sends it to them.
    pub(super) fn signal_program(&mut self, signal: u8) {
        let (Some(running), Ok(signal)) =
            (self.running.get_mut(&Part::Program), Signal::try_from(i32::from(signal)))
        else {
            return;
        };
        let (program, queue) = (running.group.id(), self.queue.clone());
        let pid = program.as_raw().unsigned_abs();
        let Some(line) = self.job.lines.signal(signal, pid) else {
            return running.signal_launcher(signal);
        };
        let send = move || {
            let why = match look::bounded(&line, SIGNAL_LIMIT, true) {
                Ok(Ended { code: Some(0), .. }) => return,
                Ok(Ended { code: Some(_), output, .. }) => output.trim_end().to_owned(),
                Ok(Ended { code: None, .. }) => format!("no answer in {} s", SIGNAL_LIMIT.as_secs()),
                Err(error) => error.to_string(),
            };
            drop(queue.send(Event::NotSignalled(program, signal, why)));
        };
        if let Err(failure) = spawn("signal", send) {
            drop(self.queue.send(Event::NotSignalled(program, signal, failure.message)));
        }
    }

    /// The second best: some launchers end the program at some signals.
    pub(super) fn signal_launcher(&mut self, program: Pid, signal: Signal, why: &str) {
        let running = self.running.get_mut(&Part::Program);
        if let Some(running) = running.filter(|running| running.group.id() == program) {
            let name = self.job.lines.launcher.name();
            talk::tell(&format!(
                "the scheduler did not send the program {signal} ({why}): {name} gets it, and may end the program"
            ));
            running.signal_launcher(signal);
        }
    }

    pub(super) fn stop(&mut self, part: Part) {
        if let Some(running) = self.running.get_mut(&part) {
            let asks = match part {
                Part::Coordinators => self.job.lines.service.stop_signal(),
                _ => Signal::SIGTERM,
            };
            match asks {
                // A second wish to stop does not wait.
                _ if running.stopped => process::signal(running.group.id(), Signal::SIGKILL),
                Signal::SIGTERM if running.ends_by_now() => {}
                Signal::SIGTERM => process::signal(running.group.id(), asks),
                _ => process::signal_leader(running.group.id(), asks),
            }
            running.stopped = true;
            running.kill_at.get_or_insert(Instant::now() + GRACE);
        }
    }

    pub(super) fn start_coordinators(
        &mut self,
        hosts: &[String],
        program: &[String],
        start: Start,
        keep: bool,
    ) -> Result<(), Refusal> {
        self.starts += 1;
        self.touched.extend(hosts.iter().cloned());
        self.started_on.insert(Part::Coordinators, hosts.to_vec());
        if start == Start::Restart {
            self.tell_folded();
        }
        let job = &self.job;
        let mut set = vec![self.mark()];
        if keep {
            set.push(("SCRFS_KEEP_UNSEALED", "1".into()));
        }
        let restart = Restart { not_before: self.floor.unwrap_or(0), name: job.token.name.clone() };
        let binary = &job.coordinator;
        let line = job.lines.coordinators((hosts, program), binary, start, &job.mount, &restart, &set);
        self.start(Part::Coordinators, &line, Streams::Piped).map_err(|e| cannot_start(&line, &e))?;
        let (started, queue, log) = (self.starts, self.queue.clone(), self.log.clone());
        let fence = self.job.lines.service.fence().filter(|_| !self.job.raw_launcher_output);
        let output = self.running.get_mut(&Part::Coordinators).and_then(|part| part.group.take_output());
        let Some(output) = output else { return Ok(()) };
        let listening = spawn("coordinators", move || {
            // Open MPI's daemons say some of what they say on standard output.
            let mut folding = Folding { fence, in_block: false };
            let talk = |bytes: &[u8]| {
                if folding.takes(bytes) {
                    log.add(bytes);
                    drop(queue.send(Event::Folded(bytes.to_vec())));
                } else {
                    talk::say(bytes);
                }
            };
            announce::listen(output, |word| drop(queue.send(Event::Said(started, word))), talk);
        });
        // Nobody would hear of them; their end follows.
        if listening.is_err() {
            self.stop(Part::Coordinators);
        }
        Ok(())
    }

    pub(super) fn save(
        &mut self,
        host: String,
        limit: Duration,
        due: bool,
        newest: bool,
    ) -> Result<(), Refusal> {
        if let Some(former) = self.running.remove(&Part::Save) {
            process::signal(former.group.id(), Signal::SIGKILL);
            former.group.reap();
        }
        let (limit, every) = (limit.as_secs().to_string(), self.job.flush_every.to_string());
        let mount = self.job.mount.as_os_str();
        let mut command: Vec<&OsStr> =
            vec![self.job.ctl.as_os_str(), "save".as_ref(), "--mount".as_ref(), mount, "--limit".as_ref()];
        command.push(limit.as_ref());
        if newest {
            command.push("--newest".as_ref());
        }
        if due {
            command.extend([OsStr::new("--every"), every.as_ref()]);
        }
        let is_here = same_host(&host, &self.job.token.host);
        let lines = &self.job.lines;
        let line = if is_here { lines.here(&command) } else { lines.tool(&[host], &command) };
        self.start(Part::Save, &line, Streams::Talk).map_err(|e| cannot_start(&line, &e))
    }
}

/// Which lines are of a launcher's blocks.
struct Folding {
    fence: Option<&'static str>,
    in_block: bool,
}

impl Folding {
    fn takes(&mut self, line: &[u8]) -> bool {
        let is_fence = self.fence.is_some_and(|fence| line.starts_with(fence.as_bytes()));
        let takes = is_fence || self.in_block;
        self.in_block ^= is_fence;
        takes
    }
}

fn cannot_start(line: &CommandLine, error: &io::Error) -> Refusal {
    Refusal {
        what: format!("{} cannot be started: {error}", line.program.display()),
        hint: "--launcher names another launcher, --launcher-program says where it is; `ulimit -a` shows what this host allows",
    }
}

fn of_this_host(failure: Failure) -> Refusal {
    Refusal { what: failure.message, hint: "`ulimit -a` shows what this host allows" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Open MPI prints it.
    const FENCE: &str = "------------------------------------------------------------";

    #[test]
    fn blocks_are_folded_and_lines_go_on() {
        let lines = ["one", FENCE, "firewall", FENCE, "two", FENCE, "firewall", FENCE];
        let taken = |fence| {
            let mut folding = Folding { fence, in_block: false };
            lines.map(|line| folding.takes(format!("{line}\n").as_bytes()))
        };
        assert_eq!(taken(None), [false; 8]);
        assert_eq!(taken(Some(FENCE)), [false, true, true, true, false, true, true, true]);
    }
}
