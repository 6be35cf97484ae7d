//! The mount by itself.

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::{Cluster, wait};

use super::{HOSTS, begin, save, seal, try_out};

#[test]
fn without_coordinators() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "semantics").set("SCRFS_COORDINATOR_WAIT", "2s");
    job.mount(HOSTS);
    // None has ever come.
    try_out(
        &job,
        0,
        &[("os.mkdir('alone'); write('alone/f', 'x')", "ok"), ("touch('alone/.complete')", "EIO")],
    );
    try_out(&job, 1, &[("os.stat('alone')", "ENOENT")]);
    let mut run = job.idle(&HOSTS);
    save(&job, &HOSTS, "d");
    run.stop();
    // They are gone: directories wait for their successors in vain, files go on.
    wait::until_true("the end of the coordinators", SOON, || {
        job.status(0).is_some_and(|status| status["coordinator"].is_null())
    });
    try_out(
        &job,
        0,
        &[
            ("begun = time.monotonic(); os.mkdir('d/sub')", "ok"),
            ("assert time.monotonic() - begun > 1.5", "ok"),
            ("write('d/f0', 'more', 'a'); assert read('d/f0') == 'd of 0more'", "ok"),
            ("touch('d/.complete')", "EIO"),
        ],
    );
}

#[test]
fn eyes_scrfs_and_user_scrfs() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[]);
    seal(&job, &HOSTS, "ck");
    try_out(
        &job,
        1,
        &[
            ("assert '.scrfs' not in os.listdir('.')", "ok"),
            (
                "names = ['current', 'events', 'metrics', 'need_checkpoint', 'post', 'should_exit', 'status', 'status.json']",
                "ok",
            ),
            ("assert sorted(os.listdir('.scrfs')) == names", "ok"),
            (
                "assert read('.scrfs/current').strip() == 'ck' and os.stat('.scrfs/current').st_size == 0",
                "ok",
            ),
            (
                "assert read('.scrfs/need_checkpoint') == '1\\n' and read('.scrfs/should_exit') == '0\\n'",
                "ok",
            ),
            ("write('.scrfs/new', '')", "EPERM"),
            ("os.unlink('.scrfs/status')", "EPERM"),
            ("write('.scrfs/post', 'a message')", "ok"),
            ("assert 'a message' in read('.scrfs/events')", "ok"),
            ("assert eye('ck', 'id') == '1' and eye('ck', 'state') == 'protected'", "ok"),
            ("assert eye('ck/f2', 'node') == 'node2' and len(eye('ck/f2', 'crc')) == 8", "ok"),
            ("os.setxattr('ck', 'user.scrfs.id', b'2')", "EPERM"),
            ("assert os.listxattr('ck') == []", "ok"),
        ],
    );
    run.stop();
}

#[test]
fn limits() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[]);
    try_out(
        &job,
        0,
        &[
            ("os.mkdir('d'); write('d/f', 'x' * 8192); write('d/g', 'y')", "ok"),
            ("os.open('d', os.O_TMPFILE | os.O_RDWR)", "ENOTSUP"),
            ("fcntl.ioctl(open('d/f'), 0x80086601, bytearray(8))", "ENOTTY"),
            ("os.posix_fallocate(os.open('d/f', os.O_RDWR), 0, 16384)", "ok"),
            ("os.setxattr('d/f', 'system.posix_acl_access', b'\\2\\0\\0\\0')", "ENOTSUP"),
            ("assert os.stat('d/f').st_size == 16384", "ok"),
            ("assert 'nosuid' in [l for l in open('/proc/mounts') if ' /scr ' in l][0]", "ok"),
            ("assert 'nodev' in [l for l in open('/proc/mounts') if ' /scr ' in l][0]", "ok"),
            ("deep = 'd'\nwhile True: deep += '/' + 'n' * 200; os.mkdir(deep)", "ENAMETOOLONG"),
        ],
    );
    run.stop();
}

#[test]
fn not_promised() {
    // Bytes of one file that two nodes write are not brought together: each sees its own.
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[]);
    try_out(&job, 0, &[("os.mkdir('d'); write('d/shared', 'of 0')", "ok")]);
    try_out(&job, 1, &[("write('d/shared', '  of 1')", "ok")]);
    try_out(&job, 0, &[("assert read('d/shared') == 'of 0'", "ok")]);
    run.stop();
}
