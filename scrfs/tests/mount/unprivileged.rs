//! A mount by a user without rights, through fusermount3.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Mounted, SCRFS, in_namespace, mode_of, wait_until};

/// An account that every Debian has, and that owns nothing else.
const NOBODY: &str = "nobody";
const UID: u32 = 65534;

/// A machine as udev leaves it: everybody may open /dev/fuse, and write into a fresh /dev/shm.
fn open_devices(m: &Mounted) {
    let bind =
        |from: &Path, to: &str| mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), MsFlags::empty(), Some("mode=1777")).unwrap();
    let device = Path::new("/dev/shm/fuse");
    let number = fs::metadata("/dev/fuse").unwrap().rdev();
    let kind = nix::sys::stat::SFlag::S_IFCHR;
    nix::sys::stat::mknod(device, kind, nix::sys::stat::Mode::empty(), number).unwrap();
    mode_of(device, 0o666);
    bind(device, "/dev/fuse");
    mode_of(&m.dir.path().join("cache"), 0o1777);
    mode_of(m.dir.path(), 0o1777);
    std::os::unix::fs::chown(&m.mount_point, Some(UID), Some(UID)).unwrap();
}

/// What `script` prints, as nobody, beside the mount point; it has to succeed.
fn as_nobody(m: &Mounted, script: &str) -> String {
    run_as(m, UID, script)
}

fn run_as(m: &Mounted, uid: u32, script: &str) -> String {
    let output = Command::new("timeout")
        .args(["-k", "2", "60", "setpriv", "--clear-groups"])
        .args([format!("--reuid={uid}"), format!("--regid={uid}")])
        .args(["bash", "-ec"])
        .arg(script)
        .current_dir(m.dir.path())
        .env("SCRFS", SCRFS)
        .env("HOME", m.dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn worker() -> i32 {
    let lock = fs::read_to_string("/dev/shm/nobody/scr.u/worker.lock").unwrap();
    lock.lines().next().unwrap().parse().unwrap()
}

#[test]
fn a_user_mounts_writes_and_unmounts() {
    in_namespace(&[], |m| {
        assert!(m.unmount(&[]).status.success());
        open_devices(m);
        as_nobody(m, &format!("$SCRFS mount --user {NOBODY} --job-id u --cache-base $HOME/cache scr"));
        let status = as_nobody(m, "cat scr/.scrfs/status");
        assert!(status.contains("plain (passthrough needs CAP_SYS_ADMIN"), "{status}");
        as_nobody(
            m,
            "mkdir scr/a; exec 3> scr/a/f; head -c 3000000 /dev/urandom > data; cat data >&3; cmp data scr/a/f; \
             ln -s f scr/a/l; mv scr/a/f scr/a/g; test \"$(stat -c %U:%h scr/a/g)\" = nobody:1; cmp data scr/a/g",
        );
        let before = worker();
        kill(Pid::from_raw(before), Signal::SIGKILL).unwrap();
        wait_until("a new worker", || worker() != before);
        as_nobody(
            m,
            "cmp data scr/a/g; echo more >> scr/a/g; test $(stat -c %s scr/a/g) = 3000005; rm -r scr/a",
        );
        // It is nobody's own: fusermount3 lets no other user in.
        let denied = fs::metadata(&m.mount_point).unwrap_err();
        assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
        run_as(m, 1, "! $SCRFS umount scr 2> /dev/shm/said; grep -q 'was mounted by nobody' /dev/shm/said");
        // fusermount3's own words.
        as_nobody(
            m,
            "mkdir not; chmod 0555 not; ! $SCRFS mount --job-id v --cache-base $HOME/cache not 2> said; cat said; \
             grep -q 'no write access' said; grep -q 'hint: without root' said",
        );
        as_nobody(m, "$SCRFS umount scr; ! mountpoint -q scr; ls -A scr | wc -l | grep -qx 0");
    });
}

#[test]
fn root_unmounts_what_a_user_has_mounted() {
    in_namespace(&[], |m| {
        assert!(m.unmount(&[]).status.success());
        open_devices(m);
        as_nobody(m, &format!("$SCRFS mount --user {NOBODY} --job-id u --cache-base $HOME/cache scr"));
        as_nobody(m, "echo data > scr/f");
        let former = worker();
        assert!(super::scrfs(&["reload"]).arg(&m.mount_point).status().unwrap().success());
        wait_until("a new worker", || worker() != former);
        assert!(m.unmount(&[]).status.success());
        as_nobody(m, "! mountpoint -q scr");
        let supervisor = fs::read_to_string("/dev/shm/nobody/scr.u/supervisor.lock").unwrap();
        wait_until("its end", || super::has_ended(supervisor.trim().parse().unwrap()));
    });
}
