//! Carries out what [`Supervisor`] decides, and tells it what happens.
//!
//! One thread owns everything and waits for one queue; small threads wait for one thing each and put it there.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use scrfs::control::ready::Ready;
use scrfs_tools::probe::RUN_VARIABLE;
use scrfs_tools::{Failure, Outcome, output};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::announce;
use crate::arguments::Job;
use crate::launcher::CommandLine;
use crate::look::Looker;
use crate::prefix;
use crate::process::{self, GRACE, Group, Streams};
use crate::supervise::{Input, Output, Start, Supervisor};

/// What is started and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Program,
    Coordinators,
    /// `scrfs-ctl wait` on a node.
    Flush,
}

/// What comes through the queue.
enum Event {
    Tell(Input),
    Ended(Part, Pid),
    /// From the coordinators of this start.
    Ready(u64, Ready),
}

/// A part that runs.
struct Running {
    group: Group,
    /// It was asked to end.
    stopped: bool,
    /// When it is killed for not doing so.
    kill_at: Option<Instant>,
}

/// Runs the job to its end; gives the exit code.
pub(crate) fn supervised(job: Job) -> Outcome<u8> {
    for binary in [&job.coordinator, &job.ctl] {
        if !binary.exists() {
            return Err(Failure::new(format!("{} is missing", binary.display())).hint(
                "scrfs-run, scrfs-ctl and scrfs-coordinator belong in one directory, the same on all nodes",
            ));
        }
    }
    if !job.enable {
        output::talk("scrfs-run: SCR_ENABLE=0: markers succeed at once, and nothing is protected");
    }
    // For as long as this process lives: no other start of this job may take its program for dead.
    let _only = job.token.hold()?;
    prefix::look(&job.prefix)?;
    process::adopt_orphans().map_err(|e| Failure::new(format!("becoming a subreaper: {e}")))?;
    let (queue, events) = mpsc::channel();
    watch_signals(&queue)?;
    let mut driver = Driver::new(job, queue);
    let code = driver.run(&events);
    driver.end_all();
    code
}

fn cannot_start(line: &CommandLine, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", line.program.display())).hint("name the launcher with --mpirun")
}

struct Driver {
    job: Job,
    looker: Looker,
    queue: Sender<Event>,
    running: BTreeMap<Part, Running>,
    /// Starts of coordinators so far.
    starts: u64,
    wake_at: Option<Instant>,
}

impl Driver {
    fn new(job: Job, queue: Sender<Event>) -> Self {
        let looker = Looker {
            mpirun: job.mpirun.clone(),
            ctl: job.ctl.clone(),
            mount: job.mount.clone(),
            token: job.token.to_string(),
        };
        Self { job, looker, queue, running: BTreeMap::new(), starts: 0, wake_at: None }
    }

    fn run(&mut self, events: &Receiver<Event>) -> Outcome<u8> {
        let begun = Instant::now();
        let mut supervisor = Supervisor::new(self.job.plan.clone(), self.job.excluded.clone());
        let mut input = Some(Input::Begin);
        loop {
            if let Some(input) = input.take() {
                self.wake_at = None;
                for wanted in supervisor.step(begun.elapsed(), input) {
                    if let Some(code) = self.carry_out(wanted)? {
                        return Ok(code);
                    }
                }
            }
            input = match self.next(events) {
                Some(event) => self.understand(event),
                None => self.wake_at.is_some_and(|at| at <= Instant::now()).then_some(Input::Tick),
            };
        }
    }

    /// The next event; `None` when it was time for something first.
    fn next(&mut self, events: &Receiver<Event>) -> Option<Event> {
        let times = self.running.values().filter_map(|r| r.kill_at).chain(self.wake_at);
        let event = match times.min() {
            Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())).ok(),
            None => events.recv().ok(),
        };
        let now = Instant::now();
        for part in self.running.values_mut().filter(|r| r.kill_at.is_some_and(|at| at <= now)) {
            process::signal(part.group.id(), Signal::SIGKILL);
            part.kill_at = None;
        }
        event
    }

    fn understand(&mut self, event: Event) -> Option<Input> {
        match event {
            Event::Tell(input) => Some(input),
            Event::Ready(started, Ready { epoch, current }) => {
                tracing::debug!(%epoch, started, "the coordinators are ready");
                // Not of those that have ended or are to end.
                let part = self.running.get(&Part::Coordinators).filter(|_| started == self.starts)?;
                (!part.stopped).then(|| Input::Ready(current.map(OsString::from_vec)))
            }
            Event::Ended(part, pid) => {
                let code = self.reap(part, pid)?;
                Some(match part {
                    Part::Program => Input::ProgramEnded(code),
                    Part::Coordinators => Input::CoordinatorsEnded(code),
                    Part::Flush if code == 0 => Input::Flushed(Ok(())),
                    Part::Flush => Input::Flushed(Err(format!("scrfs-ctl wait ended with exit code {code}"))),
                })
            }
        }
    }

    /// The exit code, if that process is still the one that is watched.
    fn reap(&mut self, part: Part, pid: Pid) -> Option<u8> {
        if self.running.get(&part)?.group.id() != pid {
            return None;
        }
        let code = self.running.remove(&part)?.group.reap();
        if !self.running.contains_key(&Part::Program) && !self.running.contains_key(&Part::Coordinators) {
            process::end_orphans();
        }
        Some(code)
    }

    fn carry_out(&mut self, wanted: Output) -> Outcome<Option<u8>> {
        match wanted {
            Output::Look { serial, hosts, sweep, doubt } => {
                let (looker, queue) = (self.looker.clone(), self.queue.clone());
                spawn("look", move || {
                    let nodes = looker.look(&hosts, sweep, doubt);
                    drop(queue.send(Event::Tell(Input::Looked { serial, nodes })));
                })?;
            }
            Output::StartCoordinators { hosts, start } => self.start_coordinators(&hosts, start)?,
            Output::StartProgram { hosts, current } => {
                let set = [("SCRFS_CURRENT", current.unwrap_or_default()), self.mark()];
                let line = self.job.mpirun.program(&hosts, self.job.ranks_per_node, &self.job.program, &set);
                self.start(Part::Program, &line, Streams::Ours).map_err(|e| cannot_start(&line, &e))?;
            }
            Output::StopProgram => self.stop(Part::Program),
            Output::StopCoordinators => self.stop(Part::Coordinators),
            Output::AwaitFlush(host) => self.await_flush(host)?,
            Output::Wake(after) => self.wake_at = Some(Instant::now() + after),
            Output::Say(line) => output::talk(&format!("scrfs-run: {line}")),
            Output::Hint(line) => output::talk(&format!("hint: {line}")),
            Output::Finish(code) => return Ok(Some(code)),
        }
        Ok(None)
    }

    fn mark(&self) -> (&'static str, OsString) {
        (RUN_VARIABLE, self.job.token.to_string().into())
    }

    fn start(&mut self, part: Part, line: &CommandLine, streams: Streams) -> io::Result<()> {
        tracing::debug!(?part, ?line.program, ?line.arguments, "starting");
        let group = Group::start(line, streams)?;
        let (pid, queue) = (group.id(), self.queue.clone());
        self.running.insert(part, Running { group, stopped: false, kill_at: None });
        std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
            drop(process::await_end(pid));
            drop(queue.send(Event::Ended(part, pid)));
        })?;
        Ok(())
    }

    fn stop(&mut self, part: Part) {
        if let Some(running) = self.running.get_mut(&part) {
            // A second wish to stop does not wait.
            let signal = if running.stopped { Signal::SIGKILL } else { Signal::SIGTERM };
            process::signal(running.group.id(), signal);
            running.stopped = true;
            running.kill_at.get_or_insert(Instant::now() + GRACE);
        }
    }

    fn start_coordinators(&mut self, hosts: &[String], start: Start) -> Outcome {
        self.starts += 1;
        let (job, set) = (&self.job, [self.mark()]);
        let line = job.mpirun.coordinators(hosts, &job.coordinator, start, &job.mount, &set);
        self.start(Part::Coordinators, &line, Streams::Piped).map_err(|e| cannot_start(&line, &e))?;
        let (started, queue) = (self.starts, self.queue.clone());
        match self.running.get_mut(&Part::Coordinators).and_then(|part| part.group.take_output()) {
            Some(output) => spawn("coordinators", move || {
                announce::listen(output, |ready| drop(queue.send(Event::Ready(started, ready))));
            }),
            None => Ok(()),
        }
    }

    fn await_flush(&mut self, host: String) -> Outcome {
        if let Some(former) = self.running.remove(&Part::Flush) {
            process::signal(former.group.id(), Signal::SIGKILL);
            former.group.reap();
        }
        let limit = self.job.plan.flush_limit.as_secs().to_string();
        let every = self.job.flush_every.to_string();
        let command: [&OsStr; 8] = [
            self.job.ctl.as_os_str(),
            "wait".as_ref(),
            "--mount".as_ref(),
            self.job.mount.as_os_str(),
            "--limit".as_ref(),
            limit.as_ref(),
            "--every".as_ref(),
            every.as_ref(),
        ];
        let line = self.job.mpirun.tool(&[host], &command);
        self.start(Part::Flush, &line, Streams::Talk).map_err(|e| cannot_start(&line, &e))
    }

    /// Nothing that was started outlives this program.
    fn end_all(&mut self) {
        let parts: Vec<Running> = std::mem::take(&mut self.running).into_values().collect();
        for part in &parts {
            process::signal(part.group.id(), Signal::SIGTERM);
        }
        for part in parts {
            let (id, (tell, told)) = (part.group.id(), mpsc::channel());
            let waiter = std::thread::spawn(move || drop(tell.send(process::await_end(id))));
            if told.recv_timeout(GRACE).is_err() {
                process::signal(id, Signal::SIGKILL);
            }
            drop(waiter.join());
            part.group.reap();
        }
        process::end_orphans();
    }
}

fn watch_signals(queue: &Sender<Event>) -> Outcome {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|e| Failure::new(format!("listening for signals: {e}")))?;
    let queue = queue.clone();
    spawn("signals", move || {
        for signal in signals.forever() {
            drop(queue.send(Event::Tell(Input::Signal(u8::try_from(signal).unwrap_or(0)))));
        }
    })
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|e| Failure::new(format!("starting a thread: {e}")))
}
