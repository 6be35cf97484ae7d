//! What programs and monitors see on all nodes of a job: advice, messages, attributes (semantics:
//! "Eyes").

use std::fs;

use scrfs::hash::Text;
use scrfs::record::{Halt, Record};
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::SCR;
use scrfs_harness::{Cluster, wait};

const NODES: usize = 3;

fn eye(job: &Job<'_>, node: usize, name: &str) -> String {
    job.on(node).run(&format!("cat {SCR}/.scrfs/{name}")).must().to_owned()
}

fn all_see(job: &Job<'_>, name: &str, text: &str) {
    wait::until_true(name, SOON, || (0..NODES).all(|node| eye(job, node, name) == text));
}

fn attribute(job: &Job<'_>, node: usize, file: &str, name: &str) -> String {
    let line = format!("import os; print(os.getxattr('{SCR}/{file}', 'user.scrfs.{name}').decode())");
    job.on(node).run(&format!("python3 -c \"{line}\"")).must().to_owned()
}

#[test]
fn all_nodes_are_advised_the_same_and_heard() {
    let cluster = Cluster::up(NODES);
    let job = Job::new(&cluster, "eyes").set("SCR_CHECKPOINT_SECONDS", "3600");
    job.mount(0..NODES);
    let mut run = job.start(&[0, 1, 2], NODES, 1, &["/bin/sleep", "600"]);
    for node in 0..NODES {
        job.await_coordinator(node);
    }
    all_see(&job, "need_checkpoint", "0");
    all_see(&job, "should_exit", "0");

    job.on(1).run(&format!("echo hello > {SCR}/.scrfs/post")).must();
    let messages = job.host_prefix().join(".scr/messages");
    let kept = || fs::read_to_string(&messages).unwrap_or_default();
    wait::until_true("the message on the PFS", SOON, || kept().contains("hello"));
    let line: serde_json::Value = serde_json::from_str(kept().lines().next().unwrap()).unwrap();
    assert_eq!((&line["host"], &line["text"]), (&"node1".into(), &"message of user 0: hello".into()));

    // A sealed file tells the same everywhere.
    job.on(2).run(&format!("mkdir {SCR}/ck && echo bytes > {SCR}/ck/f && touch {SCR}/ck/.complete")).must();
    for node in 0..NODES {
        assert_eq!(attribute(&job, node, "ck/f", "node"), "node2");
        assert_eq!(attribute(&job, node, "ck/f", "crc"), format!("{:08x}", crc32fast::hash(b"bytes\n")));
        assert_eq!(attribute(&job, node, "ck", "state"), "protected");
        assert_eq!(eye(&job, node, "current"), "ck");
    }

    // As SCR's tools write it: one more checkpoint.
    let halt = Halt { checkpoints_left: Some(1), exit_reason: Text::new(b"").ok(), ..Halt::default() };
    let path = job.host_prefix().join(".scr/halt.scr");
    fs::write(&path, halt.encode()).unwrap();
    job.on(0).run(&format!("mkdir {SCR}/last && echo x > {SCR}/last/f && touch {SCR}/last/.complete")).must();
    all_see(&job, "should_exit", "1");
    all_see(&job, "need_checkpoint", "1");
    // Nobody waits for the file: it may be read in the midst of a change.
    let left = || Halt::decode(&fs::read(&path).unwrap()).ok().and_then(|halt| halt.checkpoints_left);
    wait::until_true("the file counts the checkpoint", SOON, || left() == Some(0));
    assert!(
        job.events(2).contains("programs are advised to end: no checkpoints are left"),
        "{}",
        job.events(2)
    );
    run.stop();
}
