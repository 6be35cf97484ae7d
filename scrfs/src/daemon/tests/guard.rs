//! What a job may take of a node that it shares, and what its administrator has bounded.

use super::*;
use crate::daemon::priority::is_asked_for;

/// A node with this bound of the administrator's.
fn node(directory: &Path, cache_bytes: u64) -> Arc<Node> {
    let config = NodeConfig { cache_bytes, ..Bench::config(directory) };
    let root = directory.join("cache/user/scr.j1/tree");
    let tree = Arc::new(FakeTree { root, other: None, inner: Mutex::default() });
    Node::start(config, tree).unwrap()
}

#[test]
fn the_administrators_bound_outlives_a_job_that_sets_none_and_a_worker() {
    let directory = tempfile::tempdir().unwrap();
    for epoch in 1..3 {
        let node = node(directory.path(), 1 << 30);
        assert_eq!(node.bound.limit(), 1 << 30, "epoch {epoch}: at the worker's start");
        let lead = Lead::attach(&directory.path().join("cntl"), epoch, Start::Attach, test_settings());
        assert_eq!(node.bound.limit(), 1 << 30, "epoch {epoch}: the job sets none");
        node.stop();
        drop(lead);
    }
}

#[test]
fn an_encode_that_goes_on_is_waited_for_as_the_seal_is() {
    let bench = Bench::new();
    let progress = |id| DataRequest::Progress { id: DatasetId(id), done: 1, total: 2 };
    let waits = |request: &DataRequest| is_asked_for(request, &bench.node.state.lock());
    assert!(waits(&DataRequest::Waited) && !waits(&DataRequest::Room(DatasetId(3))));
    assert!(!waits(&progress(3)), "nothing is being sealed");
    bench.node.state.lock().seals.ordered(DatasetId(3), b"ck").unwrap();
    assert!(waits(&progress(3)) && !waits(&progress(4)));
    // Nobody waits for a seal in the background.
    let mut settings = test_settings();
    settings.sealing.background = true;
    bench.node.state.lock().settings = Some(settings);
    assert!(!waits(&progress(3)));
}
