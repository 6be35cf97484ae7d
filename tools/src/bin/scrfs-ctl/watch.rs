//! `scrfs-ctl status --watch`: on a terminal the status and a bar for each dataset that is on its
//! way; else a line for each change.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use scrfs::status::people::bytes_for_people;
use scrfs::status::{DatasetStatus, NodeStatus};
use scrfs_tools::{Failure, Outcome};

use crate::place::{Place, Seen};

/// What has bytes to be done; sealing waits for writers, and has none.
const BAR: &str = "{prefix:<28} [{bar:30}] {bytes:>11} of {total_bytes:<11} {bytes_per_sec}";
const WAITS: &str = "{prefix:<28} {spinner} {msg}";
/// What is not known in bytes.
const WAITING: &str = "has no figures yet";

/// Until it is interrupted, or nobody answers any more.
pub(crate) fn watch(place: &Place, period: Duration) -> Outcome {
    if io::stdout().is_terminal() { on_terminal(place, period) } else { in_lines(place, period) }
}

fn on_terminal(place: &Place, period: Duration) -> Outcome {
    let mut screen = Screen::new()
        .map_err(|e| Failure::new(format!("the bars: {e}")).hint("`scrfs-ctl status` shows the same once"))?;
    loop {
        screen.show(&place.look()?);
        sleep(period);
    }
}

fn in_lines(place: &Place, period: Duration) -> Outcome {
    let mut before = None;
    let mut out = io::stdout().lock();
    loop {
        let seen = place.look()?;
        let mut text = changes(before.as_ref(), &seen.status).join("\n");
        if let (Some(left), None) = (&seen.left, &before) {
            text = format!("{}\n{text}", left.heading());
        }
        if !text.is_empty() {
            match writeln!(out, "{text}").and_then(|()| out.flush()) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                other => other.map_err(|e| Failure::system("standard output", &e))?,
            }
        }
        before = Some(seen.status);
        sleep(period);
    }
}

/// Names a dataset from one look to the next: open ones have no id.
fn key(d: &DatasetStatus) -> (u64, &str) {
    (d.id, &d.name)
}

/// A line for each that differs; at first for each.
fn changes(before: Option<&NodeStatus>, now: &NodeStatus) -> Vec<String> {
    let mut lines = Vec::new();
    let served = |status: &NodeStatus| match &status.coordinator {
        Some(c) => format!("epoch {}: {} coordinators", status.epoch, c.hosts.len()),
        None => "no coordinator: nothing new is protected".to_owned(),
    };
    if before.is_none_or(|before| served(before) != served(now)) {
        lines.push(served(now));
    }
    let known: Vec<&DatasetStatus> = before.iter().flat_map(|before| &before.datasets).collect();
    // Oldest first, as they happened.
    for d in now.datasets.iter().rev() {
        let line = line(d);
        if !known.iter().any(|other| key(other) == key(d) && self::line(other) == line) {
            lines.push(line);
        }
    }
    let gone = known.iter().filter(|old| old.id != 0 && !now.datasets.iter().any(|d| key(d) == key(old)));
    lines.extend(gone.map(|old| format!("{} {}: gone from the cache", old.id, old.name.escape_debug())));
    lines
}

fn line(d: &DatasetStatus) -> String {
    let id = if d.id == 0 { "-".to_owned() } else { d.id.to_string() };
    let bytes = match d.progress {
        Some((done, all)) => format!(", {} of {}", bytes_for_people(done), bytes_for_people(all)),
        None if d.state == "open" => String::new(),
        None => format!(", {}", bytes_for_people(d.bytes)),
    };
    let flushed = if d.flushed && d.state != "flushed" { ", on the PFS" } else { "" };
    format!("{id} {}: {}{bytes}{flushed}", d.name.escape_debug(), d.state)
}

/// It is on its way.
fn moves(d: &DatasetStatus) -> bool {
    d.progress.is_some() || matches!(d.state.as_str(), "sealing" | "encoding" | "flushing")
}

struct Screen {
    all: MultiProgress,
    text: ProgressBar,
    bars: BTreeMap<(u64, String), ProgressBar>,
    bar: ProgressStyle,
    waits: ProgressStyle,
}

impl Screen {
    fn new() -> Result<Self, indicatif::style::TemplateError> {
        let all = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::stdout());
        let text = all.add(ProgressBar::no_length());
        text.set_style(ProgressStyle::with_template("{msg}")?);
        let (bar, waits) = (ProgressStyle::with_template(BAR)?, ProgressStyle::with_template(WAITS)?);
        Ok(Self { all, text, bars: BTreeMap::new(), bar, waits })
    }

    fn show(&mut self, seen: &Seen) {
        self.text.set_message(seen.text().trim_end().to_owned());
        let moving: Vec<_> = seen.status.datasets.iter().rev().filter(|d| moves(d)).collect();
        self.bars.retain(|(id, name), bar| {
            let stays = moving.iter().any(|d| key(d) == (*id, name));
            if !stays {
                bar.finish_and_clear();
                self.all.remove(bar);
            }
            stays
        });
        for d in moving {
            let all = &self.all;
            let bar =
                self.bars.entry((d.id, d.name.clone())).or_insert_with(|| all.add(ProgressBar::no_length()));
            bar.set_prefix(format!("{} {}", d.name.escape_debug(), d.state));
            if let Some((done, total)) = d.progress {
                bar.set_style(self.bar.clone());
                bar.set_length(total);
                bar.set_position(done);
            } else {
                bar.set_style(self.waits.clone());
                bar.set_message(WAITING);
                bar.tick();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{dataset, node};

    #[test]
    fn a_line_for_each_change() {
        let open = node(vec![dataset(0, "ck.2", "open", &[]), dataset(1, "ck.1", "protected", &["node0"])]);
        assert_eq!(
            changes(None, &open),
            ["epoch 2: 2 coordinators", "1 ck.1: protected, 3.0 MiB", "- ck.2: open"]
        );
        assert_eq!(changes(Some(&open), &open), Vec::<String>::new());
        let mut encoding = dataset(2, "ck.2", "encoding", &["node0"]);
        encoding.progress = Some((1 << 20, 3 << 20));
        let mut next = node(vec![encoding]);
        next.coordinator = None;
        assert_eq!(
            changes(Some(&open), &next),
            [
                "no coordinator: nothing new is protected",
                "2 ck.2: encoding, 1.0 MiB of 3.0 MiB",
                "1 ck.1: gone from the cache"
            ]
        );
    }

    #[test]
    fn bars_are_for_what_is_on_its_way() {
        for (state, on_its_way) in
            [("open", false), ("sealing", true), ("encoding", true), ("sealed", false), ("flushing", true)]
        {
            assert_eq!(moves(&dataset(1, "ck", state, &[])), on_its_way, "{state}");
        }
        // The templates can be read.
        assert!(Screen::new().is_ok());
    }
}
