//! A job has its datasets in another directory than the mount was made with.

use super::*;
use crate::control::{Answer, Ask, client};

const WAIT: Duration = Duration::from_secs(20);

fn choose(bench: &Bench, wanted: &str) -> Answer {
    client::ask(&bench.control(), &Ask::CheckpointPath(wanted.into()), WAIT).unwrap()
}

#[test]
fn the_next_worker_serves_by_the_jobs_path() {
    let mut bench = Bench::new();
    assert_eq!(choose(&bench, "/scr/"), Answer::Done, "as it is");
    bench.write("run/ck/7/r0", b"x");
    bench.write("run/ck/latest", b"7");
    bench.write("scratch/x", b"y");
    let since = bench.node.begun_at(b"run");
    assert!(since > 0);
    assert_eq!(choose(&bench, "run/ck"), Answer::Reloading);
    assert_eq!(choose(&bench, "run/ck"), Answer::Reloading, "until it does");
    bench.restart();
    for _ in 0..2 {
        assert_eq!(choose(&bench, "/scr/run/ck"), Answer::Done);
        let journal = bench.node.journal.lock();
        assert_eq!(journal.rank_of(&path("7/r0")), Some(7));
        assert_eq!(journal.names(), [b"7".to_vec()], "what is elsewhere is no dataset's");
        drop(journal);
        assert_eq!(bench.node.begun_at(b"7"), since);
        bench.restart();
    }
    assert_eq!(
        choose(&bench, "."),
        Answer::Failed(r#"checkpoint path ".": path "." has an empty, `.` or `..` component"#.into())
    );
}

#[test]
fn it_stays_where_sealed_datasets_are() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    let Answer::Failed(reason) = choose(&bench, "run") else { panic!("while coordinators are at work") };
    assert!(reason.contains("coordinators are at work"), "{reason}");
    bench.write("ck/a", b"x");
    lead.seal(1, "ck");
    drop(lead);
    bench.restart();
    let Answer::Failed(reason) = choose(&bench, "run") else { panic!("a dataset is sealed") };
    assert_eq!(
        reason,
        "SCRFS_CHECKPOINT_PATH=run: dataset ck of this job is in the mount's root: leave the path as it is, or give the job's datasets up (scrfs umount --job-id ID --purge)"
    );
}

#[test]
fn coordinators_with_another_path_are_refused() {
    let bench = Bench::new();
    let mut settings = test_settings();
    settings.checkpoint_path = Some(b"elsewhere".to_vec());
    let (epoch, rank, hosts, start) = (Epoch(1), NodeRank(0), vec!["n0".into()], Start::Attach);
    let role = Role::Coordinator { epoch, rank, hosts, start, settings: Box::new(settings) };
    let Err(refused) = Link::connect(&bench.control(), role, WAIT) else { panic!("it was let in") };
    let refused = refused.to_string();
    assert!(
        refused.contains("SCRFS_CHECKPOINT_PATH is elsewhere for the job and the mount's root in this mount"),
        "{refused}"
    );
}
