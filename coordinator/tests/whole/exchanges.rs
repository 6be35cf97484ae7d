//! Programs that exchange two directories. In one of them is a third, which tells them apart.

use std::sync::Arc;

use scrfs::errno::Errno;
use scrfs::fs::{Done, ROOT};

use crate::checks::all;
use crate::machine::Machine;
use crate::programs::{Asked, find};
use crate::world::World;

const BOTH: [&str; 2] = ["one", "two"];

fn has(machine: &Machine, name: &str) -> bool {
    find(&machine.worker.fs, &format!("{name}/within")).is_ok()
}

impl World {
    /// What is missing is made; then the two are exchanged.
    pub(crate) fn exchange(&mut self, at: usize) {
        let is_it = |path: &str| path.split('/').next().is_some_and(|top| BOTH.contains(&top));
        let busy = self.programs.asked.values().any(|(_, asked)| match asked {
            Asked::Mkdir(path) => is_it(path),
            Asked::Exchange(_) => true,
            _ => false,
        });
        if busy {
            return;
        }
        let machine = &self.machines[at];
        let (fs, host) = (Arc::clone(&machine.worker.fs), machine.host.clone());
        let missing = BOTH.into_iter().find(|name| find(&fs, name).is_err());
        let from = BOTH.into_iter().find(|name| has(machine, name));
        let make = match (missing, from) {
            (Some(name), _) => Some((ROOT, name, name)),
            (None, None) => find(&fs, "one").ok().map(|one| (one, "within", "one/within")),
            (None, Some(_)) => None,
        };
        let me = self.caller();
        if let Some((parent, name, path)) = make {
            let (id, tell) = self.ask(host, Asked::Mkdir(path.to_owned()));
            let done: Done<_> = Box::new(move |made| {
                let _ = tell.send((id, made.map(|_| 0)));
            });
            fs.mkdir(me, parent, name.as_bytes(), 0o755, done);
        } else if let Some(from) = from {
            let (id, tell) = self.ask(host, Asked::Exchange(from.to_owned()));
            let done: Done<()> = Box::new(move |outcome| {
                let _ = tell.send((id, outcome.map(|()| 0)));
            });
            let [one, two] = BOTH.map(|name| (ROOT, name.as_bytes()));
            fs.rename(me, one, two, libc::RENAME_EXCHANGE, done);
        }
    }

    /// The two were exchanged, or were not.
    pub(crate) fn exchanged(&mut self, from: &str, outcome: Result<u64, Errno>) {
        // A node may have failed to do what all had decided: it is behind the others then.
        self.programs.unsure |= outcome.is_err() && self.failing();
        // Without coordinators one node has done it alone.
        if outcome.is_err() || self.lead.is_none() || self.programs.unsure {
            return;
        }
        for machine in &self.machines {
            let host = &machine.host;
            assert!(!has(machine, from), "{from} was exchanged, and is what it was on {host}");
        }
        self.counts.exchanges += 1;
    }

    /// With everything at rest: the same directories are everywhere.
    pub(crate) fn check_directories(&self) {
        // A node may have failed to make one that all had decided to make.
        if self.failing() {
            return;
        }
        let directories = |machine: &Machine| {
            let mut all = all(&machine.worker.fs);
            all.retain(|path| path.ends_with('/'));
            all
        };
        let first = directories(&self.machines[0]);
        for machine in &self.machines {
            let here = directories(machine);
            let differ: Vec<_> = here.symmetric_difference(&first).collect();
            assert!(
                differ.is_empty(),
                "directories {differ:?} are not on all of {} and the first node",
                machine.host
            );
        }
    }
}
