//! The pointer files that were saved with a dataset: they go with it into the prefix.

use std::io::ErrorKind;

use crate::control::loose::LooseSet;

use super::super::directory::{PfsError, Prefix, Result, read_bounded, remove_tree};
use super::super::lock::POLL;
use super::super::loose;
use super::{Collection, POINTERS, is_lost, put};

/// Others may do the same at this moment, and be faster with a name.
const TRIES: usize = 3;
/// Removals of a directory in which others still make names.
const REMOVALS_MAX: usize = 50;

impl Collection {
    /// Pointer files that it is presented with; of several nodes' those that know the newest
    /// version count.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn put_pointers(&self, prefix: &Prefix, set: &LooseSet) -> Result<()> {
        if matches!(self.pointers(), Ok(Some(there)) if there.as_of >= set.as_of) {
            return Ok(());
        }
        let path = self.directory.join(POINTERS);
        put(prefix, &path, &loose::encode(set, &path)?)
    }

    fn pointers(&self) -> Result<Option<LooseSet>> {
        let path = self.directory.join(POINTERS);
        let Some(bytes) = read_bounded(&path)? else { return Ok(None) };
        loose::decode(&bytes, &path, self.age).map(Some)
    }

    /// It is in the index: its pointer files go with it, and nothing of this directory is needed
    /// any more. What a person has to know of that: what is lost, or left to the next who looks.
    pub(super) fn finish(&self, prefix: &Prefix) -> Option<String> {
        let mut told = match self.pointers() {
            Ok(None) => None,
            Ok(Some(set)) => match self.bring(prefix, &set) {
                Ok(()) => None,
                Err(error) => {
                    let text = format!("its pointer files are not in the prefix yet: {error}");
                    tracing::warn!("{text}");
                    return Some(format!("{text}; scrfs-ctl scavenge, or the next start, tries again"));
                }
            },
            Err(error) if is_lost(&error) => {
                let text = format!("its pointer files are lost: {error}");
                tracing::warn!("{text}");
                Some(format!("{text}; a restart presents none newer than the prefix has: make them again"))
            }
            Err(error) => {
                let text = format!("its pointer files cannot be read: {error}");
                tracing::warn!("{text}");
                return Some(format!("{text}; scrfs-ctl scavenge, or the next start, tries again"));
            }
        };
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "what was scavenged and is published could not be removed");
            let text = format!("what was saved of it stays: {error}");
            told = Some(told.map_or_else(|| text.clone(), |told| format!("{told}; {text}")));
        }
        told
    }

    /// Others that were about to publish it may put a name there while it is removed.
    fn remove(&self) -> Result<()> {
        let mut tries = 1;
        loop {
            match remove_tree(&self.directory) {
                Err(PfsError::Io { source, .. })
                    if source.kind() == ErrorKind::DirectoryNotEmpty && tries < REMOVALS_MAX =>
                {
                    tries += 1;
                    std::thread::sleep(POLL);
                }
                removed => return removed,
            }
        }
    }

    fn bring(&self, prefix: &Prefix, set: &LooseSet) -> Result<()> {
        let mut tries = 1;
        loop {
            if matches!(loose::read(prefix, self.age), Ok(Some(there)) if there.as_of >= set.as_of) {
                return Ok(());
            }
            match loose::put(prefix, set) {
                Err(PfsError::Io { .. }) if tries < TRIES => tries += 1,
                put => return put,
            }
        }
    }
}
