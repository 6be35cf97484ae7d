//! Two users' jobs on the same nodes, at once and one after the other.

use scrfs_harness::place::USERS;

use super::*;

#[test]
fn two_users_share_nodes() {
    let cluster = Cluster::up(3);
    let slurm = Slurm::start(&cluster, SYSTEM);
    let [ours, theirs] = ["ours", "theirs"].map(|name| Saver::new(&slurm, name));
    let theirs = Saver { uid: USERS[1].1, ..theirs };
    let batches = [&ours, &theirs].map(|job| {
        let hold = format!("uneven hold={PFS}/{}/go", job.name);
        (job, job.submit("--nodes=3", "export SCR_FLUSH=1", "", &format!("2 {hold}")))
    });
    for (job, batch) in &batches {
        job.await_sealed(batch, 2);
    }
    let [(_, our_batch), (_, their_batch)] = &batches;
    let (our_mount, their_mount) = (format!("/scr/{}", our_batch.0), format!("/scr/{}", their_batch.0));
    for node in 0..3 {
        let mate = cluster.on(node).user(USERS[1].1);
        mate.run(&format!("ls {their_mount}/ck.2")).must();
        let (umount, status) =
            (format!("scrfs umount {our_mount}"), format!("scrfs-ctl status --mount {our_mount}"));
        for act in [umount, status, format!("ls {our_mount}"), format!("cat {our_mount}/ck.2/rank_0.ckpt")] {
            assert!(!mate.run(&act).ok(), "{act} on node{node} by another user");
        }
    }
    // The end of the one, and its Epilog on every node, is nothing to the other.
    theirs.let_go();
    theirs.await_state(their_batch, "COMPLETED");
    for node in 0..3 {
        let gone = || !cluster.on(node).run(&format!("grep ' {their_mount} ' /proc/self/mountinfo")).ok();
        wait::until_true(&format!("{their_mount} to go"), SOON, gone);
        cluster.on(node).job().run(&format!("ls {our_mount}/ck.2/.complete")).must();
    }
    // In turn: on the same nodes, from what the former one of the same prefix has saved there.
    let again = theirs.submit("--nodes=3", "", "", "3 uneven");
    theirs.await_state(&again, "COMPLETED");
    assert_eq!(theirs.started_after(), [0, 2], "{}", theirs.account(&again));
    cluster.on(1).job().run(&format!("ls {our_mount}/ck.2/.complete")).must();
    ours.let_go();
    ours.await_state(our_batch, "COMPLETED");
    assert_eq!(ours.started_after(), [0], "{}", ours.account(our_batch));
    // The one after the other, and from their own prefixes.
    let again = ours.submit("--nodes=3", "", "", "3 uneven");
    ours.await_state(&again, "COMPLETED");
    assert_eq!(ours.started_after(), [0, 2], "{}", ours.account(&again));
    nothing_is_left(&cluster, 0..3);
    for node in 0..3 {
        slurm.await_node(node, "idle");
    }
}

/// All jobs are mounted at one place, one after the other: what waits there to run again stays its
/// user's.
#[test]
fn users_take_turns_at_one_mount_point() {
    let cluster = Cluster::up(3);
    let slurm = Slurm::start(&cluster, "");
    let [ours, theirs] = ["ours", "theirs"].map(|name| Saver::new(&slurm, name));
    let theirs = Saver { uid: USERS[1].1, ..theirs };
    let hold = format!("2 uneven hold={PFS}/ours/go");
    let batch = ours.submit("--nodes=3 --requeue", "export SCR_FLUSH=0", "", &hold);
    ours.await_sealed(&batch, 2);
    slurm.client(0, &format!("scontrol requeuehold {}", batch.0)).must();
    (0..3).for_each(|node| slurm.await_node(node, "idle"));
    let other = theirs.submit("--nodes=3", "test $SCRFS_MOUNT = /scr || exit 9", "", "2 uneven");
    theirs.await_state(&other, "COMPLETED");
    assert_eq!(theirs.started_after(), [0], "{}", theirs.account(&other));
    (0..3).for_each(|node| slurm.await_node(node, "idle"));
    for node in 0..3 {
        let caches = cluster.on(node).run(&format!("cd {CACHE} && ls -d */*")).must().to_owned();
        assert_eq!(caches, format!("job/scr.{}", batch.0), "node{node}");
    }
    std::fs::write(slurm.directory(ours.uid, ours.name).join("go"), "").expect("the PFS can be written");
    slurm.client(0, &format!("scontrol release {}", batch.0)).must();
    ours.await_state(&batch, "COMPLETED");
    assert_eq!(ours.started_after(), [0, 2], "{}", ours.account(&batch));
    nothing_is_left(&cluster, 0..3);
}
