//! The node as coordinators and tools see it: takes one coordinator at a time, of the newest epoch,
//! and answers questions.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::config::NO_JOB;
use crate::control::server::{Greeting, LinkHandle, Peer, Refusal, Service};
use crate::control::{Answer, Ask, Command, DataReply, DataRequest, Reason, Start};
use crate::ids::Epoch;
use crate::store::Store;
use crate::transfer::user::Identity;

use super::bound::bound_of;
use super::core::desk::Input;
use super::eyes::Advised;
use super::node::Node;
use super::remedies;
use super::state::Attached;

/// There while records of what programs do with files are taken.
pub(super) const RECORD_IO: &str = "record-io";
/// The epoch of the job that has ended, in decimal digits.
const JOB_ENDED: &str = "job-ended";
/// Bytes of that.
const DIGITS_MAX: u64 = 20;

impl Service for Node {
    fn attach(&self, greeting: Greeting, peer: &Peer, link: &LinkHandle) -> Result<(), Refusal> {
        let mut disk = self.disk.lock();
        let highest = self.state.lock().table.epoch;
        let refused = |reason: String, lasting: bool| {
            self.events.warning(None, &format!("a coordinator was refused: {reason}"));
            Err(Refusal { reason, highest, lasting })
        };
        let refuse = |reason: String| refused(reason, false);
        let epoch = greeting.epoch;
        // Else it would seal and flush another job's checkpoints as its own. A mount without a
        // scheduler has no job.
        let (mine, its) = (&self.config.job_id, &greeting.settings.job_id);
        if mine != its && mine != NO_JOB {
            return refused(format!("it is of job {its}, and this mount of job {mine} (SCR_JOB_ID)"), true);
        }
        if let Some(other) = self.of_another_run(&greeting.settings.restart.name) {
            return refused(other, true);
        }
        if let Some(other) = self.of_another_path(greeting.settings.checkpoint_path.as_deref()) {
            return refuse(other);
        }
        if epoch < highest {
            return refuse(format!("epoch {epoch} is older than {highest}"));
        }
        let left = self.left_prefix(&greeting.settings);
        if let Err(error) = disk.change(&self.state, |table| table.begin_epoch(epoch, left.is_some())) {
            let reason = Reason::from(error);
            let remedy = remedies::of_control(&reason, &self.config.host);
            return refuse(format!("epoch {epoch} cannot be recorded: {reason}{remedy}"));
        }
        if let Err(error) = disk.record_settings(&greeting.settings) {
            // With the former prefix a new worker would believe what is flushed to this one.
            if left.is_some() {
                return refuse(format!("the new prefix cannot be recorded: {error}"));
            }
            self.events.error(None, &format!("the job's settings cannot be kept: {error}"));
        }
        if let Some(left) = left {
            self.state.lock().losses.elsewhere();
            let prefix = String::from_utf8_lossy(&greeting.settings.prefix);
            self.events.info(
                None,
                &format!(
                    "the prefix was {left} and is {prefix}: what was flushed to the former one is not in it"
                ),
            );
        }
        if greeting.start == Start::Restart
            && let Err(error) = disk.forget_advice()
        {
            self.events.error(None, &format!("the former program's advice cannot be removed: {error}"));
        }
        let text = format!(
            "coordinator {} of {} attached with epoch {epoch} ({:?})",
            greeting.rank,
            greeting.hosts.len(),
            greeting.start
        );
        let identity = Identity::of_peer(peer);
        let former = {
            let mut state = self.state.lock();
            if state.stopping {
                return Err(Refusal { reason: "the daemon ends".into(), highest, lasting: false });
            }
            state.former_epoch = highest;
            state.settings = Some(greeting.settings.clone());
            state.identity = Some(identity);
            self.tree.attached();
            if greeting.start == Start::Restart {
                // What was advised and asked was the former program's.
                state.advised = Advised::default();
            }
            self.tree.follow(&greeting.settings);
            self.follow_bound(bound_of(&self.config, Some(&greeting.settings)));
            self.give_up_seals(&mut state);
            // Nothing follows: it is asked when it serves.
            drop(self.desk_step(&mut state, Input::Attached));
            state.attached.replace(Attached {
                link: link.clone(),
                greeting,
                pid: peer.pid,
                served: false,
                transfers: Vec::new(),
            })
        };
        drop(disk);
        self.priority.attached(peer);
        self.tell_priority();
        self.wake.notify_all();
        self.events.info(None, &text);
        if let Some(former) = former {
            former.transfers.iter().for_each(crate::transfer::Monitor::cancel);
            former.link.close();
        }
        self.in_records(link.id(), Self::discard_unfinished);
        Ok(())
    }

    fn command(&self, link: u64, command: Command) {
        self.carry_out(link, command);
    }

    fn detached(&self, link: u64, why: &str) {
        let attached = {
            let mut state = self.state.lock();
            if !state.is_attached(link) {
                return;
            }
            // Nothing follows at once.
            drop(self.desk_step(&mut state, Input::Gone));
            self.give_up_seals(&mut state);
            self.priority.detached();
            state.attached.take()
        };
        self.wake.notify_all();
        let me = self.me.clone();
        // What takes long is not for the link's thread.
        self.lanes.evictions.run(move || {
            if let Some(node) = me.upgrade() {
                node.cache.give_pages_back();
            }
        });
        if let Some(attached) = attached {
            attached.transfers.iter().for_each(crate::transfer::Monitor::cancel);
            let epoch = attached.greeting.epoch;
            self.events.warning(None, &format!("the coordinator of epoch {epoch} is gone: {why}"));
        }
    }

    fn admit_worker(&self, epoch: Epoch) -> Result<(), Refusal> {
        // Who asks for it is a new thread, and so is the one that answers.
        self.priority.joined();
        let state = self.state.lock();
        match &state.attached {
            Some(attached) if attached.greeting.epoch == epoch => Ok(()),
            Some(_) => Err(Refusal {
                reason: "another epoch's coordinator is attached".into(),
                highest: state.table.epoch,
                lasting: false,
            }),
            None => Err(Refusal {
                reason: "no coordinator is attached".into(),
                highest: state.table.epoch,
                lasting: false,
            }),
        }
    }

    fn request(&self, epoch: Epoch, request: DataRequest) -> (DataReply, Option<OwnedFd>) {
        self.attend(&request);
        self.data_request(epoch, request)
    }

    fn answer(&self, question: Ask, peer: &Peer) -> Answer {
        match question {
            Ask::Status => Answer::Status(Box::new(self.status())),
            Ask::Events(count) => Answer::Events(self.events.newest(count as usize)),
            Ask::RecordIo(on) => self.switch_records(on, peer.uid),
            Ask::Scavenge { limit_ms } => {
                Answer::Scavenged(self.scavenge(Duration::from_millis(limit_ms), peer.uid))
            }
            Ask::Flush(name) => Answer::Flush(self.want_flush(name.as_deref(), peer.uid)),
            Ask::Scrub(name) => Answer::Scrub(self.want_scrub(&name, peer.uid)),
            Ask::CheckpointPath(path) => self.choose_checkpoint_path(&path, peer.uid),
            Ask::JobEnded(epoch) => self.job_ended(epoch),
            Ask::Stop => {
                self.events.info(None, &format!("user {} asked the daemon to end", peer.uid));
                (self.config.on_stop)();
                Answer::Stopping
            }
        }
    }
}

impl Node {
    /// A new mount's state, for the workers to come.
    pub(super) fn remember_new(&self) {
        let epoch = self.state.lock().table.epoch;
        if self.config.is_new
            && epoch > Epoch(0)
            && let Answer::Failed(reason) = self.job_ended(epoch)
        {
            self.events.warning(None, &reason);
        }
    }

    /// Also for the workers to come.
    fn job_ended(&self, epoch: Epoch) -> Answer {
        let kept = self.disk.lock().store().commit(JOB_ENDED, epoch.0.to_string().as_bytes());
        self.state.lock().ended = Some(epoch);
        match kept {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    /// Begins or ends the records of what programs do with files; a successor of this worker goes
    /// on with it.
    fn switch_records(&self, on: bool, uid: u32) -> Answer {
        let disk = self.disk.lock();
        let kept = if on { disk.store().commit(RECORD_IO, b"") } else { disk.store().remove(RECORD_IO) };
        drop(disk);
        if let Err(error) = kept {
            return Answer::Failed(error.to_string());
        }
        self.tree.record_io(on);
        let what = if on { "are taken" } else { "end" };
        self.events.info(None, &format!("user {uid}: records of what programs do with files {what}"));
        Answer::Done
    }
}

/// The epoch of the job that has ended; `None`: there was none, or its record cannot be used.
pub(super) fn ended_job(store: &Store) -> Option<Epoch> {
    let digits = store.read(JOB_ENDED, DIGITS_MAX).ok().flatten()?;
    std::str::from_utf8(&digits).ok()?.parse().ok().map(Epoch)
}
