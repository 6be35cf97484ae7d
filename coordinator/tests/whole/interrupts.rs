//! Programs that act in the middle of a node's work, between two blocks of a flush. Beside it, what
//! a flush must publish.

use std::path::Path;

use scrfs::faults::Interruption;
use scrfs::ids::DatasetId;

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

    /// The datasets in the prefix, with their files.
    pub(crate) fn published(&self) -> Vec<(String, Contents)> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(self.directory.path().join("pfs")).expect("a prefix").flatten() {
            let name = entry.file_name().into_string().expect("text");
            if name.starts_with('.') || !entry.file_type().expect("a type").is_dir() {
                continue;
            }
            let mut found = Contents::new();
            read(&entry.path(), "", &mut found);
            found.retain(|path, _| !path.starts_with(".scr/"));
            all.push((name, found));
        }
        all
    }

    /// A dataset was published: it, or a newer one of its name, can be fetched from now on.
    pub(crate) fn note_published(&mut self, id: DatasetId) {
        let name = String::from_utf8(self.programs.names[&id].clone()).expect("its name");
        let all = self.published();
        let (_, files) = all.into_iter().find(|(other, _)| *other == name).expect("it was published");
        let marked = &self.programs.marked[&name];
        let version = marked.versions.iter().position(|version| *version == files);
        let began = marked.began[version.expect("one that was marked")];
        self.programs.published.insert(name, began);
    }

    /// Each dataset in the prefix has the bytes of one version that was marked.
    pub(crate) fn check_published(&self) {
        for (name, found) in self.published() {
            let marked = &self.programs.marked[&name];
            let versions: Vec<String> = marked.versions.iter().map(shown).collect();
            let is_one = marked.versions.contains(&found);
            assert!(is_one, "{name} in the prefix is of no one version: {}, {versions:#?}", shown(&found));
        }
    }
}
