//! A lazy restart (`SCRFS_RESTART`) presents datasets before their bytes here were compared with
//! their checksums. They are compared when a program opens a file, and the rest behind the
//! programs: what [`super::core::verification`] decides is carried out here.
//!
//! A file with other bytes than were sealed is removed, and its programs are sent for another
//! source. When all files of a dataset have been read, its redundancy files are, and the lead is
//! told what is bad: it has that rebuilt. A file that a program waits for is read in a thread of
//! its own (`scrfs-verify`), all else in the scrubs' thread (`scrfs-scrub`).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::boundary::Completion;
use crate::caller;
use crate::caller::Caller;
use crate::control::{Event, Reason, SealedFile, VerifiedMember};
use crate::dataset::CatalogIndex;
use crate::errno::Errno;
use crate::ids::DatasetId;
use crate::lock::Mutex;
use crate::path::RelPath;
use crate::status::people::bytes_for_people;
use crate::store::beneath;
use crate::transfer::pfs::compare;
use crate::transfer::{Monitor, TransferError, copy};

use super::core::verification::{Effect, Outcome, Reading, Round, Verification};
use super::core::waiting::Wanted;
use super::node::Node;
use super::state::{Dataset, Part, Table, Trust};

/// The name of the threads that read for programs.
const VERIFIES: &str = "scrfs-verify";

/// Bytes that are compared with their checksums while programs run.
pub(super) struct Comparisons {
    /// What a restart has presented unread.
    pub(super) unread: Mutex<Verification<Opener>>,
    /// The newest scrub that was asked for.
    pub(super) scrub_round: AtomicU64,
    /// How often restarts have presented datasets.
    pub(super) presentations: AtomicU64,
    /// The daemon ends.
    ends: Monitor,
}

impl Default for Comparisons {
    fn default() -> Self {
        Self {
            unread: Mutex::leaf(Verification::default()),
            scrub_round: AtomicU64::new(0),
            presentations: AtomicU64::new(0),
            ends: Monitor::new(u64::MAX),
        }
    }
}

/// A program that opens a file.
pub(super) struct Opener {
    file: SealedFile,
    caller: Caller,
    done: Completion,
}

impl Node {
    /// `SCRFS_RESTART` of the last coordinator.
    pub(super) fn restarts_lazily(&self) -> bool {
        self.state.lock().settings.as_ref().is_some_and(|settings| settings.restart.lazy)
    }

    /// A restart lists the dataset, of which files here may be unread.
    pub(super) fn list_unread(&self, dataset: &Dataset, catalog: &Arc<CatalogIndex>) -> Result<(), Reason> {
        let id = dataset.id;
        if !self.restarts_lazily() || dataset.trust == Trust::Verified {
            self.verify_step(|unread| unread.forget(id));
            if dataset.trust == Trust::Unread {
                self.mark(id, Trust::Given)?;
            }
            self.tree.sealed(Arc::clone(catalog));
            return Ok(());
        }
        let files = member_files(dataset);
        self.verify_step(|unread| unread.begin(id, files.clone()));
        // Before programs can open anything: a next worker goes on with it.
        self.mark(id, Trust::Unread)?;
        let bytes: u64 = dataset.parts.values().map(|part| part.bytes()).sum();
        let text = format!(
            "{}: presented before its bytes here are verified ({} files, {}): each file is when it is opened, the others behind the programs (SCRFS_RESTART=lazy)",
            dataset.shown_name(),
            files.len(),
            bytes_for_people(bytes)
        );
        self.tree.sealed_unread(Arc::clone(catalog), files);
        self.events.info(Some(id), &text);
        Ok(())
    }

    /// This worker's predecessor has not read all of it.
    pub(super) fn go_on_verifying(&self, id: DatasetId) {
        let Ok(dataset) = self.dataset(id) else { return };
        if dataset.trust == Trust::Unread && is_shown(&dataset) {
            let files = member_files(&dataset);
            self.tree.unread(id, files.clone());
            self.verify_step(|unread| unread.begin(id, files));
        }
    }

    /// Programs are served: what nobody opens is read too.
    pub(super) fn verify_behind(&self) {
        self.verify_step(Verification::serve);
    }

    /// A program opens a sealed file, which may be here and unread: else the lead is asked.
    pub(super) fn verify_or_bring(&self, file: SealedFile, caller: Caller, done: Completion) {
        let (id, path) = (file.id, file.path.clone());
        let wanted = self.comparisons.unread.lock().wants(id, &path, Opener { file, caller, done });
        match wanted {
            Ok(effects) => {
                self.wake.notify_all();
                self.carry_out_verification(effects);
            }
            Err(opener) => self.bring(opener),
        }
    }

    /// These files were put in place by others, who have verified them.
    pub(super) fn files_replaced(&self, id: DatasetId, files: &[RelPath]) {
        self.verify_step(|unread| unread.replaced(id, files));
    }

    /// Callers that are about to die by a signal.
    pub(super) fn end_dying_openers(&self) {
        let is_dying = |opener: &Opener| opener.caller.tid != 0 && caller::is_dying(opener.caller.tid);
        let dying = self.comparisons.unread.lock().take_waiters(is_dying);
        for opener in dying {
            (opener.done)(Err(Errno(libc::EINTR)));
        }
    }

    /// The daemon ends.
    pub(super) fn end_verification(&self) {
        self.comparisons.ends.cancel();
        let all = self.comparisons.unread.lock().end();
        for opener in all {
            (opener.done)(Err(Errno(libc::EIO)));
        }
    }

    fn verify_step(&self, step: impl FnOnce(&mut Verification<Opener>) -> Vec<Effect<Opener>>) {
        let effects = step(&mut self.comparisons.unread.lock());
        self.carry_out_verification(effects);
    }

    fn mark(&self, id: DatasetId, trust: Trust) -> Result<(), Reason> {
        let marked = self.disk.lock().change(&self.state, |table| set_trust(table, id, trust));
        marked.map_err(Reason::from)
    }

    /// Not to be called with a lock held: programs' answers take others.
    fn carry_out_verification(&self, effects: Vec<Effect<Opener>>) {
        for effect in effects {
            match effect {
                Effect::Read(reading) => self.begin_reading(reading),
                Effect::Verified(id, files) => self.tree.verified(id, &files),
                Effect::Answer(opener) => (opener.done)(Ok(())),
                Effect::Bring(opener) => self.bring(opener),
                Effect::Done(round, bad) => self.read_behind(move |node| node.all_read(round, &bad)),
                Effect::Whole(round) => self.read_behind(move |node| node.none_unread(round)),
            }
        }
    }

    fn begin_reading(&self, reading: Reading) {
        let read = |reading: Reading| {
            move |node: &Self| {
                let outcome = node.read(&reading);
                node.verify_step(|unread| unread.ended(&reading, outcome));
            }
        };
        if reading.waited {
            let (me, work) = (self.me.clone(), read(reading.clone()));
            let begun = self.config.hands.begin(VERIFIES, move || {
                if let Some(node) = me.upgrade() {
                    work(&node);
                }
            });
            let Err(error) = begun else { return };
            let text = format!("{}: no thread reads it for who waits: {error}", reading.path);
            self.events.warning(Some(reading.id), &text);
        }
        self.read_behind(read(reading));
    }

    /// In the scrubs' lane.
    fn read_behind(&self, work: impl FnOnce(&Self) + Send + 'static) {
        let me = self.me.clone();
        self.lanes.scrubs.run(move || {
            if let Some(node) = me.upgrade() {
                work(&node);
            }
        });
    }

    /// The lead is asked for a file, whose bytes here are missing or bad.
    fn bring(&self, Opener { file, caller, done }: Opener) {
        let (me, SealedFile { id, path }) = (self.me.clone(), file.clone());
        let brought = move |result: Result<(), Errno>| {
            if let Some(node) = me.upgrade().filter(|_| result.is_ok()) {
                node.tree.verified(id, std::slice::from_ref(&path));
                node.files_replaced(id, &[path]);
            }
            done(result);
        };
        self.ask(self.ids.next(), Wanted::Fetch(file), caller, Box::new(brought));
    }

    fn read(&self, reading: &Reading) -> Outcome {
        let Reading { id, ref path, .. } = *reading;
        let mut bad = Reason::from("it is nowhere");
        // It may be put elsewhere, or be replaced, while it is read.
        for _ in 0..2 {
            let Ok(dataset) = self.dataset(id) else { return Outcome::Gone };
            let Some((entry, recorded)) = dataset.file(path).filter(|_| is_shown(&dataset)) else {
                return Outcome::Gone;
            };
            let home = self.cache.home(&dataset, self.tree.as_ref());
            let opened = home.and_then(|home| self.open_sealed(&dataset, &home, path));
            let local = match opened {
                Ok(opened) => File::from(opened),
                Err(error) => {
                    let is_missing = error.kind() == io::ErrorKind::NotFound;
                    let reason = Reason::from(error).on(format_args!("{path}"));
                    return if is_missing { Outcome::Missing(reason) } else { Outcome::Bad(reason) };
                }
            };
            let read = self.checksum(reading, &local, recorded.size);
            let read = read.and_then(|seen| compare(&entry.path, seen, &recorded));
            let Err(error) = read else { return Outcome::Good };
            if !matches!(error, TransferError::Mismatch { .. }) {
                return Outcome::Bad(error.into());
            }
            match self.remove_bad(reading, &local) {
                Ok(true) => {
                    self.events.warning(Some(id), &format!("a file was bad, and is removed: {error}"));
                    return Outcome::Bad(error.into());
                }
                Ok(false) => {}
                Err(why) => {
                    let text = format!("{path}: is bad, and cannot be removed: {why}");
                    self.events.error(Some(id), &text);
                }
            }
            bad = error.into();
        }
        Outcome::Bad(bad)
    }

    fn checksum(&self, reading: &Reading, local: &File, size: u64) -> Result<copy::Seen, TransferError> {
        let mut file = Wanting { file: local, node: self, reading };
        let monitor = Monitor::new(u64::MAX);
        copy::checksum(&mut file, size, &monitor).map_err(TransferError::io(&reading.path, "read"))
    }

    /// Removes the file that was read, which is still open, so that no other has its number; false
    /// where another one is there by now. Of a next generation that has begun also the name that
    /// shares it.
    fn remove_bad(&self, reading: &Reading, local: &File) -> io::Result<bool> {
        let Reading { id, ref path, .. } = *reading;
        // Nothing is put in place meanwhile.
        let mut generations = self.generations.lock();
        let is_wanted = self.comparisons.unread.lock().is_wanted(reading);
        let Some(dataset) = self.dataset(id).ok().filter(|_| is_wanted) else { return Ok(false) };
        let home = self.cache.home(&dataset, self.tree.as_ref())?;
        let inode = rustix::fs::fstat(local)?.st_ino;
        let is_it = |directory: &OwnedFd| {
            let there = beneath::open_file(directory.as_fd(), path);
            there.is_ok_and(|file| rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_ino == inode))
        };
        if !is_it(&home) {
            return Ok(false);
        }
        if dataset.life.is_overwritten() {
            generations.forget_aside(id, inode, path);
            let tree = self.cache.tree(id, &dataset.name)?;
            // Programs enter what they change before they do; with the journal's lock they have
            // done so, or will find the name gone.
            let journal = self.journal.lock();
            if is_it(&tree) && !Self::is_programs_own(&journal, &dataset, path)? {
                beneath::remove_tree(tree.as_fd(), path)?;
            }
        }
        beneath::remove_tree(home.as_fd(), path)?;
        Ok(true)
    }

    /// All files of it have been read. In the scrubs' lane.
    fn all_read(&self, round: Round, bad: &[(RelPath, Reason)]) {
        let id = round.id;
        let is_wanted = || self.state.lock().served() && self.comparisons.unread.lock().is_current(round);
        // A lead that does not serve yet is told when it does.
        let Some(dataset) = self.dataset(id).ok().filter(|_| is_wanted()) else { return };
        let files = |part: &Part| {
            let of_part = bad.iter().filter(|(path, _)| part.file(path).is_some());
            Reason::all(of_part.map(|(_, reason)| reason.clone())).map_or(Ok(()), Err)
        };
        let recorded = dataset.parts.iter().filter(|(_, part)| part.recorded);
        let monitor = &self.comparisons.ends;
        let members = recorded.map(|(member, part)| VerifiedMember {
            member: *member,
            files: files(part),
            redundancy: self.verify_redundancy(&dataset, *member, part, monitor),
        });
        let members: Vec<VerifiedMember> = members.collect();
        if monitor.is_cancelled() || !is_wanted() {
            return;
        }
        self.note_verified(id, &members);
        // Bad files stay unread; of bad redundancy data nothing else is known here.
        let is_protected = members.iter().all(|member| member.redundancy.is_ok());
        let is_told = {
            let state = self.state.lock();
            state.send_request(Event::Verified { id, members });
            state.served()
        };
        if is_told && is_protected {
            self.verify_step(|unread| unread.told(round));
        }
    }

    /// In the scrubs' lane.
    fn none_unread(&self, round: Round) {
        let mut disk = self.disk.lock();
        // A restart that presents it again begins a round first, and records that then.
        if !self.comparisons.unread.lock().is_current(round) {
            return;
        }
        if let Err(error) = disk.change(&self.state, |table| set_trust(table, round.id, Trust::Given)) {
            let text = format!("that it is verified cannot be recorded: {error}");
            return self.events.warning(Some(round.id), &text);
        }
        drop(disk);
        self.verify_step(
            |unread| if unread.is_current(round) { unread.forget(round.id) } else { Vec::new() },
        );
    }
}

fn set_trust(table: &mut Table, id: DatasetId, trust: Trust) {
    if let Some(dataset) = table.datasets.get_mut(&id) {
        dataset.trust = trust;
    }
}

/// The files of the members that are here.
fn member_files(dataset: &Dataset) -> Vec<RelPath> {
    let recorded = dataset.parts.values().filter(|part| part.recorded);
    let files = recorded.flat_map(|part| &part.files);
    files.map(|(entry, _)| entry.path.clone()).collect()
}

/// Programs see it, or a next generation that shares its files.
fn is_shown(dataset: &Dataset) -> bool {
    dataset.life.is_complete() && dataset.life.has_name() && !dataset.life.is_leaving()
}

/// A file that is read while somebody is to know what is in it.
struct Wanting<'a> {
    file: &'a File,
    node: &'a Node,
    reading: &'a Reading,
}

impl Read for Wanting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.node.comparisons.unread.lock().is_wanted(self.reading) {
            return Err(io::Error::other("it is not wanted any more"));
        }
        self.file.read(buffer)
    }
}
