//! Bits on storage that flip, between two runs and while programs run.

use crate::world::World;

impl World {
    /// A bit of a file in some node's cache is another one now: that node is as good as lost to one
    /// dataset.
    pub(crate) fn flip(&mut self) {
        let at = self.rng.below(self.machines.len());
        let (seed, host) = (self.rng.number(), self.machines[at].host.clone());
        if let Some(path) = self.machines[at].flip(seed, &[String::new()]) {
            self.say(|| format!("=== a bit of {} on {host} flips", path.display()));
            self.programs.lost();
            self.programs.marked.values_mut().for_each(|marked| marked.flips += 1);
            self.counts.flips += 1;
        }
    }

    /// The same while programs run, in what was sealed last and is not being changed.
    pub(crate) fn flip_sealed(&mut self, at: usize) {
        let Some(name) = self.programs.promises.last().cloned() else { return };
        let Some(id) = self.programs.kept(&name) else { return };
        let marked = &self.programs.marked[&name];
        let is_used = self.programs.draft.as_ref().is_some_and(|draft| draft.name == name);
        let is_changing = marked.changed || marked.broken || marked.removing || is_used;
        let is_absent = self.programs.absent.contains(name.as_bytes());
        if is_changing || is_absent || self.programs.is_marking(&name) {
            return;
        }
        let (seed, host) = (self.rng.number(), self.machines[at].host.clone());
        let below = [format!("tree/{name}"), format!("dataset.{}", id.0)];
        let Some(path) = self.machines[at].flip(seed, &below) else { return };
        let path = path.to_str().expect("text").to_owned();
        self.say(|| format!("=== a bit of {path} on {host} flips while programs run"));
        let marked = self.programs.marked.get_mut(&name).expect("its marker was set");
        (marked.lost, marked.flips) = (marked.lost + 1, marked.flips + 1);
        if let Some(file) = path.strip_prefix("tree/") {
            self.programs.flipped.insert((host, file.to_owned()));
        }
        self.counts.rotten += 1;
    }
}
