//! Programs that act in the middle of a node's work, between two blocks of a flush. Beside it, what
//! a flush must publish.

use std::path::Path;

use scrfs::faults::Interruption;

use crate::checks::shown;
use crate::programs::Contents;
use crate::world::World;

/// All regular files below a directory, with their bytes.
fn read(directory: &Path, prefix: &str, found: &mut Contents) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_str().expect("text"));
        if entry.file_type().expect("a type").is_dir() {
            read(&entry.path(), &format!("{path}/"), found);
        } else {
            found.insert(path, std::fs::read(entry.path()).expect("a file"));
        }
    }
}

impl World {
    /// A step of a program: it is done now, or interrupts something.
    pub(crate) fn go(&mut self, step: impl FnOnce() + Send + 'static) {
        match &mut self.put_off {
            Some(put_off) => put_off.push(Box::new(step)),
            None => step(),
        }
    }

    /// What programs do in the middle of a flush, most often to what was sealed last.
    pub(crate) fn interruption(&mut self) -> Interruption {
        self.put_off = Some(Vec::new());
        for _ in 0..=self.rng.below(4) {
            if self.programs.draft.is_none() {
                self.programs.draft = self.begin_generation();
            }
            match self.rng.below(3) {
                0 => {
                    let at = self.rng.below(self.machines.len());
                    self.remove_on(at);
                }
                _ => self.write_on(),
            }
        }
        let steps = self.put_off.take().unwrap_or_default();
        Box::new(move || steps.into_iter().for_each(|step| step()))
    }

    /// Each dataset in the prefix has the bytes of one version that was marked.
    pub(crate) fn check_published(&self) {
        let prefix = self.directory.path().join("pfs");
        for entry in std::fs::read_dir(prefix).expect("a prefix").flatten() {
            let name = entry.file_name().into_string().expect("text");
            if name.starts_with('.') || !entry.file_type().expect("a type").is_dir() {
                continue;
            }
            let mut found = Contents::new();
            read(&entry.path(), "", &mut found);
            found.retain(|path, _| !path.starts_with(".scr/"));
            let marked = &self.programs.marked[&name];
            let versions: Vec<String> = marked.versions.iter().map(shown).collect();
            let is_one = marked.versions.contains(&found);
            assert!(is_one, "{name} in the prefix is of no one version: {}, {versions:#?}", shown(&found));
        }
    }
}
