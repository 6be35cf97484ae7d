//! What is not sealed: a restart removes it, and nothing saves what a program that is done leaves.
//! It is named before.

use std::collections::BTreeMap;

use scrfs_tools::output::{bytes_for_people, escaped};
use scrfs_tools::probe::Stage;

use super::{Look, Output, Supervisor};

/// Files, bytes and hosts of one dataset.
#[derive(Default)]
struct Sum<'a> {
    files: u64,
    bytes: u64,
    hosts: Vec<&'a str>,
}

impl Supervisor {
    /// What a restart removes, before it does.
    pub(super) fn tell_unsealed(&self, nodes: &[Look], out: &mut Vec<Output>) {
        let what = if self.plan.end.keep_unsealed { "moves aside" } else { "removes" };
        let some = self.name_unsealed(nodes, &format!("this restart {what}"), true, out);
        if some && !self.plan.end.keep_unsealed {
            out.push(Output::Hint("--keep-unsealed has them moved aside".into()));
        }
    }

    /// What a program that is done leaves unsealed. (What is being sealed is waited for.)
    pub(super) fn tell_left(&self, nodes: &[Look], out: &mut Vec<Output>) {
        let some = self.name_unsealed(nodes, "nothing saves", false, out);
        let none = !some && nodes.iter().all(|node| node.newest == 0);
        if none {
            out.push(Output::Say("nothing was sealed: there is no checkpoint to save".to_owned()));
        }
        if some || none {
            out.push(Output::Hint(
                "`touch DIR/.complete` seals a directory; SCRFS_DATASET_PATTERN is for files beside directories".into(),
            ));
        }
    }

    fn name_unsealed(&self, nodes: &[Look], fate: &str, sealing: bool, out: &mut Vec<Output>) -> bool {
        let mut all: BTreeMap<(&str, Stage), Sum<'_>> = BTreeMap::new();
        let used = || nodes.iter().filter(|node| self.used.contains(&node.host));
        for node in used() {
            for unsealed in node.unsealed.iter().filter(|u| sealing || u.stage != Stage::Sealing) {
                let sum = all.entry((&unsealed.name, unsealed.stage)).or_default();
                sum.files = sum.files.saturating_add(unsealed.files);
                sum.bytes = sum.bytes.saturating_add(unsealed.bytes);
                sum.hosts.push(&node.host);
            }
        }
        for ((name, stage), Sum { files, bytes, hosts }) in &all {
            let (name, bytes, hosts) = (escaped(name), bytes_for_people(*bytes), hosts.join(" "));
            out.push(Output::Say(match stage {
                Stage::Open => format!("{name} is not sealed: {fate} its {files} files ({bytes}) on {hosts}"),
                Stage::Sealing => format!("{name} was being sealed: unless that is done, {fate} its files on {hosts}"),
                Stage::Changed => {
                    format!("{name} was changed since it was sealed: {fate} {files} changed files ({bytes}) on {hosts}")
                }
            }));
        }
        // Nodes have most of them in common.
        if let Some(node) = used().max_by_key(|node| node.more_unsealed).filter(|node| node.more_unsealed > 0)
        {
            out.push(Output::Say(format!("and {fate} {} more on {}", node.more_unsealed, node.host)));
        }
        !all.is_empty()
    }
}
