//! `scrfs-ctl status`: how a node is, what it holds, and what the loss of each node would cost.

use scrfs::status::losses;
use scrfs_tools::{Failure, Outcome, output};
use serde_json::{Value, json};

use crate::place::{Place, Seen};

/// Of all `places`, one after the other.
pub(crate) fn status(places: &[Place]) -> Outcome {
    let mut texts = Vec::new();
    for place in places {
        texts.push(place.look()?.text());
    }
    output::data(&texts.join("\n"))
}

pub(crate) fn json(place: &Place) -> Outcome {
    let value = as_json(&place.look()?).map_err(|e| Failure::system("JSON", &e.into()))?;
    output::data(&format!("{value:#}\n"))
}

/// The node's status, and what the loss of each node would cost; of a last status also when it was
/// written, and what the scheduler says of the job.
fn as_json(seen: &Seen) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(&seen.status)?;
    let ended = seen.left.as_ref().is_some_and(|left| left.ended);
    if !ended {
        value["losses"] = serde_json::to_value(losses(&seen.status))?;
    }
    if let Some(left) = &seen.left {
        value["written_us"] = left.written_us.into();
        value["age_s"] = left.age.as_secs().into();
        value["ended"] = left.ended.into();
        value["scheduler"] = left.job.as_ref().map_or(
            Value::Null,
            |job| json!({ "job": job.id, "user": job.user, "state": job.state, "nodes": job.nodes }),
        );
    }
    Ok(value)
}

#[cfg(test)]
pub(crate) mod tests {
    use scrfs::status::{
        Changed, CoordinatorStatus, DatasetStatus, Elsewhere, NodeStatus, StoreStatus, show,
    };

    pub(crate) fn dataset(id: u64, name: &str, state: &str, hosts: &[&str]) -> DatasetStatus {
        DatasetStatus {
            id,
            name: name.to_owned(),
            state: state.to_owned(),
            scheme: if id == 0 { String::new() } else { "XOR".to_owned() },
            bytes: 3 << 20,
            files: 8,
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            flushed: state == "flushed",
            flush_failed: None,
            restoring: 0,
            unread: 0,
            scrubbed: None,
            changed: None,
            current: false,
            progress: None,
            survives: if id == 0 {
                Vec::new()
            } else {
                hosts.iter().map(|h| ((*h).to_owned(), true)).collect()
            },
        }
    }

    pub(crate) fn node(datasets: Vec<DatasetStatus>) -> NodeStatus {
        NodeStatus {
            version: 1,
            host: "node0".to_owned(),
            mount_point: "/scr".to_owned(),
            mode: "passthrough".to_owned(),
            mode_reason: "kernel 6.18, CAP_SYS_ADMIN".to_owned(),
            job: "ann 77".to_owned(),
            control_directory: "/dev/shm/ann/scr.77".to_owned(),
            cache_directory: "/tmp/scr/ann/scr.77".to_owned(),
            stores: Vec::new(),
            reserve: None,
            cache_bytes: None,
            coordinator: Some(CoordinatorStatus {
                rank: 0,
                hosts: vec!["node0".to_owned(), "node1".to_owned()],
                pid: 44,
            }),
            was_attached: true,
            awaited: false,
            job_ended: false,
            supervisor_stopped: None,
            epoch: 2,
            prefix: "/pfs".into(),
            enabled: true,
            flush_every: 0,
            datasets,
            unsaved: Vec::new(),
            on_pfs: None,
            more_open: 0,
            waiting: 0,
            priority: scrfs::status::PriorityStatus::default(),
        }
    }

    #[test]
    fn the_table_says_what_a_death_would_cost() {
        let open = dataset(0, "ck.5", "open", &[]);
        let mut unprotected = dataset(4, "ck.4", "sealed", &["node0", "node1"]);
        unprotected.scheme = "SINGLE".to_owned();
        unprotected.survives = vec![("node0".to_owned(), true), ("node1".to_owned(), false)];
        let mut old = dataset(3, "ck.3", "flushing", &["node0", "node1"]);
        old.progress = Some((1 << 20, 3 << 20));
        old.current = true;
        let text = show(&node(vec![open, unprotected, old]));
        let expected = "\
/scr on node0: passthrough (kernel 6.18, CAP_SYS_ADMIN)
job 77 of ann, epoch 2, coordinator 0 of 2 (pid 44)
cache /tmp/scr/ann/scr.77, control directory /dev/shm/ann/scr.77
prefix /pfs

id  dataset  state     scheme  files    bytes  on the PFS  progress            held by
 -  ck.5     open      -           8  3.0 MiB  no                              node0 (its own files only)
 4  ck.4     sealed    SINGLE      8  3.0 MiB  no                              node[0-1]
 3  ck.3 *   flushing  XOR         8  3.0 MiB  no          1.0 MiB of 3.0 MiB  node[0-1]
* current: what a restart presents
sealed: complete, and not protected: the loss of a node that holds it would take files of it along

if one of these died now  a restart would present  lost
node0                     ck.4                     ck.5 (not sealed)
node1                     ck.3                     ck.5 (not sealed), ck.4
of what is not sealed only that of node0 is known here
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn nodes_that_cost_the_same_are_told_together() {
        let text = show(&node(vec![dataset(7, "ck.7", "protected", &["node2", "node0", "node1", "node3"])]));
        assert!(text.contains("\nnode[0-3]                 ck.7                     nothing\n"), "{text}");
        assert!(!text.contains("progress") && !text.contains('*'), "{text}");
    }

    #[test]
    fn what_has_left_the_caches_comes_from_the_pfs() {
        let gone = |id| Some(Elsewhere { id, name: format!("ck.{id}") });
        let shown = |datasets, id| show(&NodeStatus { on_pfs: gone(id), ..node(datasets) });
        let text = shown(vec![dataset(0, "ck.2", "open", &[])], 1);
        assert!(
            text.contains("\nck.1 (dataset 1) has left the caches: a restart fetches it from the PFS\n"),
            "{text}"
        );
        assert!(text.contains("ck.1 (from the PFS)      ck.2 (not sealed)\n"), "{text}");
        let text = shown(vec![dataset(2, "ck.2", "protected", &["node0", "node1"])], 1);
        assert!(!text.contains("ck.1"), "{text}");
        assert!(shown(Vec::new(), 1).contains("ck.1 (dataset 1) has left the caches"));
    }

    #[test]
    fn what_the_restart_hid_is_promised_to_nobody() {
        let mut hidden = dataset(9, "B", "hidden", &[]);
        let mut kept = dataset(8, "A", "protected", &["node0", "node1"]);
        kept.current = true;
        let text = show(&node(vec![hidden.clone(), kept]));
        assert!(text.contains("9  B        hidden "), "{text}");
        assert!(text.contains("node0 (its own files only)") && text.contains("\nhidden: "), "{text}");
        assert!(text.contains("\nnode[0-1]                 A                        nothing\n"), "{text}");
        hidden.flushed = true;
        let text = show(&node(vec![hidden]));
        assert!(text.contains("\nnode[0-1]                 nothing                  nothing\n"), "{text}");
        assert!(!text.contains('*'), "{text}");
    }

    #[test]
    fn a_flush_that_failed_is_told() {
        let mut one = dataset(7, "ck.7", "protected", &["n0", "n1"]);
        assert!(!show(&node(vec![one.clone()])).contains("flush failed"));
        one.flush_failed = Some(scrfs::status::FlushFailure { reason: "/pfs: full".into(), given_up: false });
        let text = show(&node(vec![one]));
        assert!(text.contains("\nck.7: its flush failed and is tried again: /pfs: full\n"), "{text}");
    }

    #[test]
    fn stores_and_bound_are_told_where_there_are_any() {
        let store = |path: &str, used, note: &str, room| StoreStatus {
            path: path.to_owned(),
            used,
            note: note.to_owned(),
            room,
        };
        let mut s = node(Vec::new());
        s.stores = vec![store("/nvme", true, "it has files of this job", Some((1 << 30, 4 << 30)))];
        assert!(!show(&s).contains("/nvme"));
        s.stores.push(store("/ssd", false, "no such directory", None));
        s.cache_bytes = Some((3 << 20, 40 << 20));
        let text = show(&s);
        let expected = "
store /nvme: 1.0 GiB of 4.0 GiB are free, in use: it has files of this job
store /ssd: does not tell its room, not used: no such directory
the cache has taken 3.0 MiB of 40.0 MiB (SCRFS_CACHE_BYTES)
";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn one_that_has_failed_is_lost_already() {
        let text = show(&node(vec![dataset(7, "ck", "failed", &["node0", "node1"])]));
        assert!(text.contains("\nnode[0-1]                 nothing                  ck\n"), "{text}");
    }

    /// Whichever node is lost, a restart presents what was sealed.
    #[test]
    fn what_was_changed_since_is_lost_with_any_node() {
        let mut one = dataset(7, "ck", "protected", &["node0", "node1"]);
        one.changed = Some(Changed { since_us: None, files: 2, bytes: 3 << 20, removed: 0 });
        let text = show(&node(vec![one]));
        let lost = "ck (what was changed since it was sealed)";
        assert!(
            text.contains(&format!("\nnode[0-1]                 ck                       {lost}\n")),
            "{text}"
        );
    }

    #[test]
    fn scripts_get_the_losses_too() {
        let mut unprotected = dataset(4, "ck.4", "sealed", &["node0", "node1"]);
        unprotected.survives = vec![("node0".to_owned(), true), ("node1".to_owned(), false)];
        let status = node(vec![dataset(0, "ck.5", "open", &[]), unprotected]);
        let value = super::as_json(&super::Seen { status, left: None }).unwrap();
        let open = serde_json::json!({ "name": "ck.5", "what": "unsealed" });
        let expected = serde_json::json!([
            {
                "hosts": ["node0"],
                "presented": { "id": 4, "name": "ck.4", "from_pfs": false },
                "lost": [open],
            },
            { "hosts": ["node1"], "presented": null, "lost": [open, { "name": "ck.4", "what": "sealed" }] },
        ]);
        assert_eq!(value["losses"], expected);
    }

    #[test]
    fn nodes_that_nobody_watches_may_be_lost_already() {
        let mut alone = node(vec![dataset(7, "ck.7", "protected", &["node0", "node1"])]);
        assert!(!show(&alone).contains("nobody watches"));
        alone.coordinator = None;
        assert!(show(&alone).contains("nobody watches the other nodes"), "{}", show(&alone));
        alone.datasets = vec![dataset(7, "ck.7", "sealed", &["node0"])];
        assert!(!show(&alone).contains("nobody watches"), "there is no other node");
    }

    #[test]
    fn without_coordinators_it_says_so() {
        let mut alone = node(Vec::new());
        alone.coordinator = None;
        assert!(show(&alone).contains("no coordinator now"));
        alone.was_attached = false;
        assert!(show(&alone).contains("on its own") && show(&alone).ends_with("no datasets\n"));
    }
}
