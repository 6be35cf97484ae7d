//! Markers: of one process or of several at the same time, set again when they failed, and set
//! again where nothing was changed. Beside it, what their answers must be.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use scrfs::caller::Caller;
use scrfs::errno::Errno;
use scrfs::fs::{Done, FileSystem, Opened};

use crate::programs::{Answer, Asked, Draft, MAKE, Stage, find};
use crate::world::World;

/// A program whose markers fail gives up after so many.
const TRIES: usize = 4;

/// Sets the marker of the dataset with this directory.
pub(crate) fn touch(fs: &Arc<FileSystem>, me: Caller, parent: u64, (id, tell): (u64, Sender<Answer>)) {
    let closes = Arc::clone(fs);
    let done: Done<_> = Box::new(move |created: Result<(_, Opened), Errno>| match created {
        Ok((_, opened)) => {
            let (fh, files) = (opened.fh, Arc::clone(&closes));
            let done: Done<()> = Box::new(move |closed| {
                files.release(fh);
                let _ = tell.send((id, closed.map(|()| 0)));
            });
            closes.flush(me, fh, done);
        }
        Err(error) => drop(tell.send((id, Err(error)))),
    });
    fs.create(me, parent, b".complete", 0o644, MAKE, done);
}

impl World {
    /// All is written: its marker is set.
    pub(crate) fn end_draft(&mut self, draft: &mut Draft) {
        let marked = self.programs.marked.entry(draft.name.clone()).or_default();
        marked.versions.push(draft.files.clone());
        marked.began.push(self.programs.next);
        marked.newest = marked.versions.len() - 1;
        self.mark_all(draft);
    }

    /// One process sets the marker, or several do, on one node or on several.
    fn mark_all(&mut self, draft: &mut Draft) {
        let count = if self.rng.chance(30) { 2 + self.rng.below(2) } else { 1 };
        draft.stage = Stage::Marking(count, false);
        for _ in 0..count {
            let at = self.rng.below(self.machines.len());
            self.mark(at, &draft.name);
        }
    }

    fn mark(&mut self, at: usize, name: &str) {
        let machine = &self.machines[at];
        let (fs, host) = (Arc::clone(&machine.worker.fs), machine.host.clone());
        let parent = find(&fs, name);
        let marked = &self.programs.marked[name];
        let (version, is_first) = (marked.newest, marked.versions.len() < 2);
        let (id, tell) = self.ask(host.clone(), Asked::Marker(name.to_owned(), version));
        let parent = match parent {
            Ok(parent) => parent,
            Err(error) => {
                assert!(!is_first, "{name} is not on {host}: {error}");
                // It has left the caches, and with it what was begun.
                let _ = tell.send((id, Err(error)));
                return;
            }
        };
        let me = self.caller();
        self.go(move || touch(&fs, me, parent, (id, tell)));
    }

    /// The marker of what was sealed last is set again, though nothing was changed.
    pub(crate) fn mark_again(&mut self, at: usize) {
        let Some(name) = self.programs.promises.last().cloned() else { return };
        let marked = self.programs.marked.get_mut(&name).expect("its marker was set");
        let is_free = !marked.changed && !marked.broken && !marked.removing;
        let is_whole = !self.programs.absent.contains(name.as_bytes());
        let is_used = self.programs.draft.as_ref().is_some_and(|draft| draft.name == name);
        let is_known = marked.promised.map(|promised| promised + 1) == Some(marked.versions.len());
        if !is_free || !is_whole || is_used || !is_known {
            return;
        }
        // Nobody changes it meanwhile.
        marked.changed = true;
        marked.again = Some((self.programs.next, self.epoch));
        self.mark(at, &name);
    }

    pub(crate) fn marked(&mut self, id: u64, (name, version): (&str, usize), outcome: Result<u64, Errno>) {
        let is_late = self.programs.removals.late.remove(&id);
        assert!(!is_late || outcome.is_err(), "{name} was removed, and its marker ({id}) succeeds");
        if is_late {
            return;
        }
        self.check_outcome(id, (name, version), outcome);
        if outcome.is_ok() {
            let marked = self.programs.marked.get_mut(name).expect("its marker was set");
            marked.succeeded = Some((self.epoch, version));
            if !self.settings.sealing.background {
                self.programs.promise(name, version);
            }
        }
        let newest = self.programs.marked[name].newest;
        let Some(mut draft) = self.programs.draft.take() else { return };
        if let Stage::Marking(waiting, succeeded) = &mut draft.stage
            && (draft.name == name && version == newest)
        {
            *waiting -= 1;
            *succeeded |= outcome.is_ok();
            match (*waiting, *succeeded) {
                (0, true) => draft.stage = Stage::Pointing(false),
                (0, false) => return self.try_again(draft),
                _ => {}
            }
        }
        self.programs.draft = Some(draft);
    }

    /// No marker has succeeded. Files are open and writable by now.
    fn try_again(&mut self, mut draft: Draft) {
        draft.failed += 1;
        if draft.failed > TRIES || self.rng.chance(20) {
            return;
        }
        self.counts.again += 1;
        if self.rng.chance(30) {
            draft.stage = Stage::Changing(vec![format!("new{}", self.programs.next)], false);
        } else {
            self.mark_all(&mut draft);
        }
        self.programs.draft = Some(draft);
    }

    /// Who marks what was sealed and not changed since is told the same.
    fn check_outcome(&mut self, id: u64, (name, version): (&str, usize), outcome: Result<u64, Errno>) {
        let fails = self.failing() || self.lead.is_none();
        let marked = self.programs.marked.get_mut(name).expect("its marker was set");
        let again = marked.again.take_if(|(again, _)| *again == id);
        if again.is_some() {
            marked.changed = false;
        }
        let is_fine = !fails && !marked.broken && marked.lost == 0;
        let is_sealed = marked.succeeded == Some((self.epoch, version))
            || again.is_some_and(|(_, epoch)| epoch == self.epoch);
        // It may have left the caches.
        let is_there = self.programs.promises.iter().any(|other| other == name);
        let must = is_fine && is_sealed && is_there && !self.programs.absent.contains(name.as_bytes());
        assert!(!must || outcome.is_ok(), "{name} is sealed, and its marker ({id}) gets {outcome:?}");
        self.check_first_outcome(id, (name, version), outcome, is_fine);
    }

    /// Where nothing has failed, nobody has died since, and nobody removes or changes anything, a
    /// marker of what was written has to succeed.
    fn check_first_outcome(
        &mut self,
        id: u64,
        (name, version): (&str, usize),
        outcome: Result<u64, Errno>,
        is_fine: bool,
    ) {
        let marked = &self.programs.marked[name];
        let is_unhindered = is_fine && id >= self.programs.since && !marked.removing && !marked.is_odd;
        let is_newest = version == marked.newest && version + 1 == marked.versions.len();
        // What was sealed may be leaving the caches by now.
        let is_kept = marked.promised.is_none() || self.programs.kept(name).is_some();
        let is_first = version == marked.gone() && is_kept;
        // What is carried on must be there, and good.
        let is_over_good = self.counts.flips + self.counts.rotten == 0
            && self.programs.kept(name).is_some()
            && !self.programs.absent.contains(name.as_bytes());
        if !is_unhindered || !is_newest || !(is_first || is_over_good) {
            return;
        }
        // Nothing is sealed without a file.
        let has_files = !marked.versions[version].is_empty();
        assert_eq!(
            outcome.is_ok(),
            has_files,
            "nothing has failed, and the marker ({id}) of {name} version {version} gets {outcome:?}"
        );
        self.counts.sure += u64::from(has_files);
    }
}
