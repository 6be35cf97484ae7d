//! A node's status as text for people: `scrfs-ctl status` and `/scr/.scrfs/status`.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{CellAlignment, Table, presets};

use super::losses::{Loss, Lost, LostPart, Presented, hosts, losses};
use super::people::{bytes_for_people, hosts_for_people};
use super::{Changed, Elsewhere, HIDDEN, NodeStatus, SEALED, StoreStatus};

/// Coordinators learn of a lost node by MPI; a daemon alone does not.
const UNWATCHED: &str =
    "without coordinators nobody watches the other nodes: one that is lost already still counts here\n";

/// How the node is, what it holds, and what the loss of each node would cost.
pub fn show(s: &NodeStatus) -> String {
    let mut text = show_ended(s);
    if !s.datasets.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{}", trimmed(&table_of_losses(s)));
        if hosts(s).len() > 1 {
            let _ = writeln!(text, "of what is not sealed only that of {} is known here", s.host);
        }
        if s.was_attached && s.coordinator.is_none() && hosts(s).len() > 1 {
            text.push_str(UNWATCHED);
        }
    }
    text
}

/// The same of a job that has ended: no node's loss costs it anything any more.
pub fn show_ended(s: &NodeStatus) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{} on {}: {} ({})", s.mount_point, s.host, s.mode, s.mode_reason);
    let job = s.job.split_once(' ').map_or_else(|| s.job.clone(), |(user, id)| format!("{id} of {user}"));
    let epoch = if s.epoch == 0 { "no epoch yet".to_owned() } else { format!("epoch {}", s.epoch) };
    let _ = writeln!(text, "job {job}, {epoch}, {}", coordinator(s));
    let _ = writeln!(text, "cache {}, control directory {}", s.cache_directory, s.control_directory);
    if !s.prefix.is_empty() {
        let _ = writeln!(text, "prefix {}", s.prefix);
    }
    if s.stores.len() > 1 {
        text.extend(s.stores.iter().map(shown_store));
    }
    if let Some((taken, limit)) = s.cache_bytes {
        let (taken, limit) = (bytes_for_people(taken), bytes_for_people(limit));
        let _ = writeln!(text, "the cache has taken {taken} of {limit} (SCRFS_CACHE_BYTES)");
    }
    if let Some((held, wanted)) = s.reserve {
        let (held, wanted) = (bytes_for_people(held), bytes_for_people(wanted));
        let _ = writeln!(
            text,
            "the control directory's file system is full: {held} of {wanted} kept back for records are left; make room there"
        );
    }
    if let Some(supervisor) = s.supervisor_stopped {
        let _ = writeln!(
            text,
            "its supervisor, process {supervisor}, is stopped, and replaces no worker that dies: kill -CONT {supervisor}"
        );
    }
    if !s.enabled {
        text.push_str("SCR_ENABLE=0: markers succeed at once, and nothing is protected\n");
    }
    if s.waiting > 0 {
        let _ = writeln!(text, "requests of programs that wait: {}", s.waiting);
    }
    if s.priority.raised {
        let why = if s.priority.why.is_empty() { "a program has just waited" } else { &s.priority.why };
        let _ = writeln!(text, "daemon and coordinator go first ({}): {why}", s.priority.how);
    } else if let Some(why) = s.priority.hindrance() {
        let _ = writeln!(text, "daemon and coordinator do not go before programs that spin: {why}");
    }
    for gone in &s.unsaved {
        let _ = writeln!(
            text,
            "{} (dataset {}) is not on the PFS, and has left the caches: its flush failed: {}",
            gone.name.escape_debug(),
            gone.id,
            gone.reason
        );
    }
    if let Some(gone) = newest_on_pfs(s) {
        let name = gone.name.escape_debug();
        let _ = writeln!(
            text,
            "{name} (dataset {}) has left the caches: a restart fetches it from the PFS",
            gone.id
        );
    }
    if s.datasets.is_empty() {
        text.push_str("no datasets\n");
        return text;
    }
    let _ = writeln!(text, "\n{}", trimmed(&datasets(s)));
    if s.datasets.iter().any(|d| d.current) {
        text.push_str("* current: what a restart presents\n");
    }
    if s.datasets.iter().any(|d| d.state == SEALED) {
        text.push_str(
            "sealed: complete, and not protected: the loss of a node that holds it would take files of it along\n",
        );
    }
    if s.datasets.iter().any(|d| d.state == HIDDEN) {
        text.push_str(
            "hidden: the last restart did not present it; what this node has of it stays for now\n",
        );
    }
    for (dataset, failure) in s.datasets.iter().filter_map(|d| Some((d, d.flush_failed.as_ref()?))) {
        let after = if failure.given_up {
            "failed, and nobody should wait for it"
        } else {
            "failed and is tried again"
        };
        let _ = writeln!(text, "{}: its flush {after}: {}", dataset.name, failure.reason);
    }
    for dataset in s.datasets.iter().filter(|d| d.restoring > 0) {
        let _ = writeln!(
            text,
            "{}: {} of its members are on no node yet: they are being restored, and an open of a file of theirs waits",
            dataset.name.escape_debug(),
            dataset.restoring
        );
    }
    for dataset in s.datasets.iter().filter(|d| d.unread > 0) {
        let _ = writeln!(
            text,
            "{}: {} of its files here are not verified yet since the restart: an open of one waits for that",
            dataset.name.escape_debug(),
            dataset.unread
        );
    }
    for (dataset, scrubbed) in s.datasets.iter().filter_map(|d| Some((d, d.scrubbed.as_ref()?))) {
        if let Some(left) = &scrubbed.left {
            let _ = writeln!(text, "{}: bad bytes that a scrub could not mend: {left}", dataset.name);
        }
    }
    for (dataset, changed) in s.datasets.iter().filter_map(|d| Some((d, d.changed.as_ref()?))) {
        let _ = writeln!(text, "{}: {}", dataset.name.escape_debug(), shown_change(changed));
    }
    text
}

/// What nothing protects, in words.
fn shown_change(changed: &Changed) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let age = changed.since_us.map(|since| format!(", for {} s", now.saturating_sub(since / 1_000_000)));
    let age = age.unwrap_or_default();
    let removed = if changed.removed > 0 { format!(", {} removed", changed.removed) } else { String::new() };
    let (files, bytes) = (changed.files, bytes_for_people(changed.bytes));
    format!(
        "changed here since it was sealed{age}: {files} files, {bytes}{removed}; nothing protects that until it is sealed again"
    )
}

fn shown_store(store: &StoreStatus) -> String {
    let room = store.room.map_or_else(
        || "does not tell its room".to_owned(),
        |(free, size)| format!("{} of {} are free", bytes_for_people(free), bytes_for_people(size)),
    );
    let note = if store.note.is_empty() { String::new() } else { format!(": {}", store.note) };
    let used = if store.used { "in use" } else { "not used" };
    format!("store {}: {room}, {used}{note}\n", store.path)
}

fn coordinator(s: &NodeStatus) -> String {
    match &s.coordinator {
        Some(c) => format!("coordinator {} of {} (pid {})", c.rank, c.hosts.len(), c.pid),
        None if s.awaited => {
            "its coordinator is awaited: nothing new is protected until it attaches".to_owned()
        }
        None if s.was_attached && s.job_ended => "no coordinator now: scrfs-run has ended".to_owned(),
        None if s.was_attached => {
            "no coordinator now: nothing new is protected until scrfs-run starts one".to_owned()
        }
        None => "no coordinator yet: this mount is on its own".to_owned(),
    }
}

fn datasets(s: &NodeStatus) -> Table {
    // Something is on its way rarely: no empty column for it.
    let moving = s.datasets.iter().any(|d| d.progress.is_some());
    let mut header = vec!["id", "dataset", "state", "scheme", "files", "bytes", "on the PFS", "held by"];
    if moving {
        header.insert(7, "progress");
    }
    let mut table = plain(&header);
    for at in [0, 4, 5] {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for d in &s.datasets {
        let name = d.name.escape_debug().to_string();
        let mut row = vec![
            if d.id == 0 { "-".to_owned() } else { d.id.to_string() },
            if d.current { format!("{name} *") } else { name },
            d.state.clone(),
            if d.scheme.is_empty() { "-".to_owned() } else { d.scheme.clone() },
            d.files.to_string(),
            bytes_for_people(d.bytes),
            if d.flushed { "yes" } else { "no" }.to_owned(),
        ];
        if moving {
            row.push(d.progress.map(progress).unwrap_or_default());
        }
        row.push(if d.hosts.is_empty() {
            format!("{} (its own files only)", s.host)
        } else {
            hosts_for_people(d.hosts.iter().map(String::as_str))
        });
        table.add_row(row);
    }
    table
}

fn progress((done, all): (u64, u64)) -> String {
    format!("{} of {}", bytes_for_people(done), bytes_for_people(all))
}

/// For each node: what a restart would present if it alone died now, and what would be gone. Nodes
/// whose loss costs the same are told together.
fn table_of_losses(s: &NodeStatus) -> Table {
    let mut table = plain(&["if one of these died now", "a restart would present", "lost"]);
    for Loss { hosts, presented, lost } in losses(s) {
        let presented = match presented {
            Some(Presented { name, from_pfs: true, .. }) => format!("{} (from the PFS)", name.escape_debug()),
            Some(Presented { name, .. }) => name.escape_debug().to_string(),
            None => "nothing".to_owned(),
        };
        let lost: Vec<String> = lost.iter().map(shown_lost).collect();
        let lost = if lost.is_empty() { "nothing".to_owned() } else { lost.join(", ") };
        table.add_row([hosts_for_people(hosts), presented, lost]);
    }
    table
}

fn shown_lost(lost: &Lost<'_>) -> String {
    let name = lost.name.escape_debug();
    match lost.what {
        LostPart::Sealed => name.to_string(),
        LostPart::Unsealed => format!("{name} (not sealed)"),
        LostPart::Changes => format!("{name} (what was changed since it was sealed)"),
    }
}

/// The one that has left the caches, if nothing in them is newer.
fn newest_on_pfs(s: &NodeStatus) -> Option<&Elsewhere> {
    let newest = s.datasets.iter().filter(|d| d.is_complete()).map(|d| d.id).max();
    s.on_pfs.as_ref().filter(|gone| newest < Some(gone.id))
}

fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

/// Without the blanks that the table puts at both ends of each line.
fn trimmed(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}
