//! Files that a restart has presented before their bytes were compared with their checksums
//! (`SCRFS_RESTART=lazy`): in which order they are read, and what then becomes of the programs that
//! wait for them.
//!
//! A file that a program opens is read at once, beside a few others of that kind. The rest is read
//! behind the programs, one file at a time, and none while a program waits. A file that turns out
//! to be bad stays unread until it is replaced: its programs are sent for another source.

use std::collections::{BTreeMap, VecDeque};

use crate::control::Reason;
use crate::ids::DatasetId;
use crate::path::RelPath;

/// Files that are read at a time because programs wait for them; others wait in order.
const READERS_MAX: usize = 8;

/// What a reading has shown.
#[derive(Debug, Clone)]
pub(in crate::daemon) enum Outcome {
    /// It is as it was sealed; or it is not here, and opens find that out.
    Good,
    /// It is not.
    Bad(Reason),
    /// No file is there: another reading may have found it bad, and removed it.
    Missing(Reason),
    /// The dataset is not presented any more, or its files are others by now.
    Gone,
}

/// A file that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::daemon) struct Reading {
    pub(in crate::daemon) id: DatasetId,
    pub(in crate::daemon) path: RelPath,
    /// Programs wait for it.
    pub(in crate::daemon) waited: bool,
    /// Which presentation of the dataset it is for.
    round: u64,
}

/// What is to be done. `W` is a program that waits.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Effect<W> {
    /// Read the file; [`Verification::ended`] is to be told.
    Read(Reading),
    /// The tree is to be told that opens of these files need not wait any more.
    Verified(DatasetId, Vec<RelPath>),
    /// It may look at its file again.
    Answer(W),
    /// The bytes here are bad: it needs them from another source.
    Bring(W),
    /// All files of the dataset have been read, and these are bad: the lead is to be told, and
    /// [`Verification::told`].
    Done(Round, Vec<(RelPath, Reason)>),
    /// None of its files is unread any more, and the lead knows of the rest: that is to be
    /// recorded, unless another round has begun ([`Verification::is_current`]).
    Whole(Round),
}

/// One presentation of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) struct Round {
    pub(in crate::daemon) id: DatasetId,
    number: u64,
}

/// Whether the lead knows what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    No,
    /// It is being told, or could not be: the next lead that serves is.
    Begun,
    Yes,
    /// It was, and nothing is left to be done but to record that.
    Whole,
}

#[derive(Debug)]
struct File<W> {
    waiters: Vec<W>,
    /// It is read for those who wait.
    is_hurried: bool,
    /// It is read behind the programs.
    is_read: bool,
    bad: Option<Reason>,
}

impl<W> Default for File<W> {
    fn default() -> Self {
        Self { waiters: Vec::new(), is_hurried: false, is_read: false, bad: None }
    }
}

#[derive(Debug)]
struct Unread<W> {
    files: BTreeMap<RelPath, File<W>>,
    round: u64,
    told: Told,
}

/// See the module.
#[derive(Debug)]
pub(in crate::daemon) struct Verification<W> {
    datasets: BTreeMap<DatasetId, Unread<W>>,
    /// Files that programs wait for, and for which no reader is free.
    queue: VecDeque<(DatasetId, RelPath)>,
    hurried: usize,
    /// One is read that nobody waits for, or was when that began.
    is_reading: bool,
    /// Programs are served: until then nothing is read that nobody waits for.
    serves: bool,
    rounds: u64,
}

impl<W> Default for Verification<W> {
    fn default() -> Self {
        Self {
            datasets: BTreeMap::new(),
            queue: VecDeque::new(),
            hurried: 0,
            is_reading: false,
            serves: false,
            rounds: 0,
        }
    }
}

impl<W> Verification<W> {
    /// A restart presents the dataset, of which `files` are here and unread, before programs are
    /// served. What it was before does not count.
    pub(in crate::daemon) fn begin(&mut self, id: DatasetId, files: Vec<RelPath>) -> Vec<Effect<W>> {
        let effects = self.forget(id);
        self.serves = false;
        let files = files.into_iter().map(|path| (path, File::default())).collect();
        self.rounds += 1;
        self.datasets.insert(id, Unread { files, round: self.rounds, told: Told::No });
        effects
    }

    /// Programs are served, by a lead that has not heard of anything yet.
    pub(in crate::daemon) fn serve(&mut self) -> Vec<Effect<W>> {
        self.serves = true;
        for unread in self.datasets.values_mut().filter(|unread| unread.told != Told::Whole) {
            unread.told = Told::No;
        }
        let mut effects = Vec::new();
        self.go_on(&mut effects);
        effects
    }

    /// A program opens a file; given back where that is not unread.
    pub(in crate::daemon) fn wants(
        &mut self,
        id: DatasetId,
        path: &RelPath,
        waiter: W,
    ) -> Result<Vec<Effect<W>>, W> {
        let Some(file) = self.file(id, path) else { return Err(waiter) };
        file.waiters.push(waiter);
        let is_first = file.waiters.len() == 1 && !file.is_hurried;
        let mut effects = Vec::new();
        if is_first {
            self.queue.push_back((id, path.clone()));
            self.go_on(&mut effects);
        }
        Ok(effects)
    }

    /// A file was read.
    pub(in crate::daemon) fn ended(&mut self, reading: &Reading, outcome: Outcome) -> Vec<Effect<W>> {
        let Reading { id, ref path, waited, .. } = *reading;
        if waited {
            self.hurried -= 1;
        } else {
            self.is_reading = false;
        }
        let mut effects = Vec::new();
        let is_missing = matches!(outcome, Outcome::Missing(_));
        let is_current = self.is_wanted(reading);
        match (outcome, self.file(id, path).filter(|_| is_current)) {
            (_, None) => {}
            (Outcome::Gone, Some(_)) => effects = self.forget(id),
            (Outcome::Good, Some(_)) => effects = self.replaced(id, std::slice::from_ref(path)),
            (Outcome::Bad(reason) | Outcome::Missing(reason), Some(file)) => {
                if waited {
                    file.is_hurried = false;
                } else {
                    file.is_read = false;
                }
                // Whoever reads the file still has it open, and says why it was removed.
                if !is_missing || !(file.is_hurried || file.is_read) {
                    file.bad.get_or_insert(reason);
                    effects.extend(std::mem::take(&mut file.waiters).into_iter().map(Effect::Bring));
                }
            }
        }
        self.go_on(&mut effects);
        effects
    }

    /// These files are good: read, or put in the place of what was there.
    pub(in crate::daemon) fn replaced(&mut self, id: DatasetId, paths: &[RelPath]) -> Vec<Effect<W>> {
        let Some(unread) = self.datasets.get_mut(&id) else { return Vec::new() };
        let good: Vec<(RelPath, File<W>)> =
            paths.iter().filter_map(|path| unread.files.remove_entry(path)).collect();
        if good.is_empty() {
            return Vec::new();
        }
        let (paths, files): (Vec<RelPath>, Vec<File<W>>) = good.into_iter().unzip();
        let mut effects = vec![Effect::Verified(id, paths)];
        effects.extend(files.into_iter().flat_map(|file| file.waiters).map(Effect::Answer));
        self.go_on(&mut effects);
        effects
    }

    /// A lead that serves was told what [`Effect::Done`] says.
    pub(in crate::daemon) fn told(&mut self, round: Round) -> Vec<Effect<W>> {
        let is_current = self.is_current(round);
        if let Some(unread) = self.datasets.get_mut(&round.id).filter(|_| is_current)
            && unread.told == Told::Begun
        {
            unread.told = Told::Yes;
        }
        let mut effects = Vec::new();
        self.go_on(&mut effects);
        effects
    }

    /// No other presentation of the dataset has begun since.
    pub(in crate::daemon) fn is_current(&self, Round { id, number }: Round) -> bool {
        self.datasets.get(&id).is_some_and(|unread| unread.round == number)
    }

    /// The dataset's files are nobody's business any more.
    pub(in crate::daemon) fn forget(&mut self, id: DatasetId) -> Vec<Effect<W>> {
        let Some(unread) = self.datasets.remove(&id) else { return Vec::new() };
        unread.files.into_values().flat_map(|file| file.waiters).map(Effect::Answer).collect()
    }

    /// Somebody is to know how this ends.
    pub(in crate::daemon) fn is_wanted(&self, Reading { id, path, round, .. }: &Reading) -> bool {
        let unread = self.datasets.get(id).filter(|unread| unread.round == *round);
        unread.is_some_and(|unread| unread.files.contains_key(path))
    }

    /// A file is read for programs, or will be; whatever the number of files.
    pub(in crate::daemon) fn is_waited_for(&self) -> bool {
        self.hurried > 0 || !self.queue.is_empty()
    }

    /// How many programs wait.
    pub(in crate::daemon) fn waiters(&self) -> usize {
        let files = self.datasets.values().flat_map(|unread| unread.files.values());
        files.map(|file| file.waiters.len()).sum()
    }

    /// Files of the dataset that are unread.
    pub(in crate::daemon) fn left(&self, id: DatasetId) -> usize {
        self.datasets.get(&id).map_or(0, |unread| unread.files.len())
    }

    /// Those who wait no longer: their file is still read.
    pub(in crate::daemon) fn take_waiters(&mut self, is_taken: impl Fn(&W) -> bool) -> Vec<W> {
        let files = self.datasets.values_mut().flat_map(|unread| unread.files.values_mut());
        files
            .flat_map(|file| file.waiters.extract_if(.., |waiter| is_taken(waiter)).collect::<Vec<_>>())
            .collect()
    }

    /// Nothing is read any more; those who wait.
    pub(in crate::daemon) fn end(&mut self) -> Vec<W> {
        self.serves = false;
        let datasets = std::mem::take(&mut self.datasets).into_values();
        datasets.flat_map(|unread| unread.files.into_values()).flat_map(|file| file.waiters).collect()
    }

    fn file(&mut self, id: DatasetId, path: &RelPath) -> Option<&mut File<W>> {
        self.datasets.get_mut(&id)?.files.get_mut(path)
    }

    /// Begins what may begin, and tells what has ended.
    fn go_on(&mut self, effects: &mut Vec<Effect<W>>) {
        while self.hurried < READERS_MAX
            && let Some((id, path)) = self.queue.pop_front()
        {
            // It may have been replaced, or read behind the programs, meanwhile.
            let Some(unread) = self.datasets.get_mut(&id) else { continue };
            let round = unread.round;
            let waited = |file: &&mut File<W>| !file.waiters.is_empty() && !file.is_hurried;
            let Some(file) = unread.files.get_mut(&path).filter(waited) else { continue };
            file.is_hurried = true;
            self.hurried += 1;
            effects.push(Effect::Read(Reading { id, path, waited: true, round }));
        }
        if self.serves && self.hurried == 0 && !self.is_reading {
            self.read_behind(effects);
        }
        if self.serves {
            self.tell(effects);
        }
    }

    /// The newest dataset goes first: it is that which programs go on from.
    fn read_behind(&mut self, effects: &mut Vec<Effect<W>>) {
        let next = self.datasets.iter_mut().rev().find_map(|(id, unread)| {
            let is_next = |(_, file): &(&RelPath, &mut File<W>)| file.bad.is_none() && !file.is_hurried;
            let round = unread.round;
            let (path, file) = unread.files.iter_mut().find(is_next)?;
            file.is_read = true;
            Some(Reading { id: *id, path: path.clone(), waited: false, round })
        });
        if let Some(reading) = next {
            self.is_reading = true;
            effects.push(Effect::Read(reading));
        }
    }

    fn tell(&mut self, effects: &mut Vec<Effect<W>>) {
        for (id, unread) in &mut self.datasets {
            let round = Round { id: *id, number: unread.round };
            let is_read = |file: &File<W>| file.bad.is_some() && !file.is_read && !file.is_hurried;
            if unread.told == Told::No && unread.files.values().all(is_read) {
                unread.told = Told::Begun;
                let bad = unread.files.iter();
                let bad = bad.filter_map(|(path, file)| Some((path.clone(), file.bad.clone()?)));
                effects.push(Effect::Done(round, bad.collect()));
            }
            if unread.told == Told::Yes && unread.files.is_empty() {
                unread.told = Told::Whole;
                effects.push(Effect::Whole(round));
            }
        }
    }
}

#[cfg(test)]
mod tests;
