//! What prologs and epilogs do: a mount for the scheduler's job and user, its end by the job's id,
//! and what root's daemon may still do meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Mounted, SCRFS, fails, has_ended, in_namespace, mode_of, scrfs, wait_until};

/// A job's user that this machine has no name for.
pub(super) const UID: u32 = 4242;

/// `scrfs` as a prolog of job `id` calls it.
pub(super) fn prolog(m: &Mounted, id: &str, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "60", SCRFS]).args(args);
    command.arg("--control-base").arg(m.dir.path().join("control"));
    command.arg("--cache-base").arg(m.dir.path().join("cache"));
    command.env("SLURM_JOB_ID", id).env("SLURM_JOB_UID", UID.to_string()).env("SLURM_JOB_GID", "4243");
    command.env("SCRFS_MOUNT", m.dir.path().join("mounts/%u/%j"));
    command
}

pub(super) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

pub(super) fn point(m: &Mounted, id: &str) -> PathBuf {
    m.dir.path().join(format!("mounts/{UID}/{id}"))
}

fn supervisor(m: &Mounted, id: &str) -> i32 {
    let lock = m.dir.path().join(format!("control/{UID}/scr.{id}/supervisor.lock"));
    assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o777, 0o600, "others could hold it");
    fs::read_to_string(lock).unwrap().trim().parse().unwrap()
}

#[test]
fn a_prolog_mounts_for_its_job_and_an_epilog_ends_that_one_alone() {
    in_namespace(&[], |m| {
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        for id in ["77", "78"] {
            run(&mut prolog(m, id, &["mount"]));
            let meta = fs::metadata(point(m, id)).unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (UID, 4243, 0o700));
        }
        fs::write(point(m, "78").join("kept"), "kept").unwrap();
        // A prolog that runs again has nothing to do, and one that fails harms nobody.
        run(&mut prolog(m, "77", &["mount"]));
        let busy = prolog(m, "79", &["mount"]).env("SCRFS_MOUNT", point(m, "78")).output().unwrap();
        fails(&busy, 1, "is a mount point");
        let other = prolog(m, "80", &["mount"]).env("SLURM_JOB_USER", "root").output().unwrap();
        fails(&other, 2, "on this node root is user 0");
        run(&mut prolog(m, "79", &["umount", "--job-id", "79", "--purge"]));
        // Of a mount point that is another job's nothing is unmounted.
        let theirs = point(m, "78").into_os_string().into_string().unwrap();
        let output = run(&mut prolog(m, "77", &["umount", "--job-id", "77", &theirs]));
        assert!(text(&output).contains("stays mounted"), "{output:?}");
        assert!(point(m, "77").join(".scrfs/status").exists() && point(m, "78").join("kept").exists());

        let gone = supervisor(m, "77");
        run(&mut prolog(m, "77", &["umount", "--job-id", "77"]));
        assert!(has_ended(gone) && !point(m, "77").exists(), "what was made for it is removed");
        let cache = |id: &str| m.dir.path().join(format!("cache/{UID}/scr.{id}"));
        assert!(cache("77").exists(), "it may be requeued");
        run(&mut prolog(m, "77", &["umount", "--job-id", "77", "--purge"]));
        assert!(!cache("77").exists() && cache("78").exists());
        let output = run(&mut prolog(m, "77", &["umount", "--job-id", "77", "--purge"]));
        assert!(text(&output).contains("nothing is here"), "{output:?}");

        // What nobody knows of any more; of a job that lives nothing.
        let sweep = |alive: &str| text(&run(&mut prolog(m, "1", &["sweep", "--alive", alive])));
        assert_eq!(sweep("78,t"), "");
        assert!(point(m, "78").join("kept").exists());
        let open = fs::File::open(point(m, "78").join("kept")).unwrap();
        let refused = prolog(m, "1", &["sweep", "--alive", "t"]).output().unwrap();
        fails(&refused, 1, "in use");
        drop(open);
        assert!(sweep("t").contains("scr.78 is removed"));
        assert!(!point(m, "78").exists() && !cache("78").exists());
        // The same without anybody to ask, and with one who says what cannot be understood.
        let nobody = m.dir.path().join("nobody");
        fs::create_dir(&nobody).unwrap();
        let ask = |path: &Path| {
            prolog(m, "1", &["sweep"]).env("PATH", format!("{}:/usr/bin", path.display())).output()
        };
        fails(&ask(&nobody).unwrap(), 1, "squeue");
        fs::write(nobody.join("squeue"), "#!/bin/sh\necho error: down\n").unwrap();
        mode_of(&nobody.join("squeue"), 0o755);
        fails(&ask(&nobody).unwrap(), 1, "is no job's id");
    });
}

/// Whoever has set these for `squeue` on a terminal sees fewer jobs than there are.
#[test]
fn a_sweep_asks_for_all_jobs_whatever_the_environment_says() {
    in_namespace(&[], |m| {
        let squeue = m.dir.path().join("squeue");
        let script = "#!/bin/sh\n[ -n \"$SQUEUE_STATES$SQUEUE_USERS$SLURM_CLUSTERS\" ] || echo 78\n";
        fs::write(&squeue, script).unwrap();
        mode_of(&squeue, 0o755);
        let cache = m.dir.path().join(format!("cache/{UID}/scr.78"));
        fs::create_dir_all(&cache).unwrap();
        for variable in ["SQUEUE_STATES", "SQUEUE_USERS", "SLURM_CLUSTERS"] {
            let path = format!("{}:/usr/bin:/bin", m.dir.path().display());
            run(prolog(m, "1", &["sweep"]).env("PATH", path).env(variable, "x"));
            assert!(cache.exists(), "{variable}");
        }
    });
}

/// Its account was deleted while it was mounted; or nobody says now who has accounts.
#[test]
fn a_job_of_somebody_without_an_account_is_cleared_away() {
    in_namespace(&[], |m| {
        let cache = |id: &str| m.dir.path().join(format!("cache/nobodys/scr.{id}"));
        for id in ["90", "91"] {
            run(prolog(m, id, &["mount"])
                .env("SLURM_JOB_USER", "nobodys")
                .env("SCRFS_MOUNT", m.dir.path().join(id)));
            assert!(cache(id).exists());
        }
        let hook = |words: &[&str]| {
            let mut command = prolog(m, "1", words);
            run(command.env_remove("SLURM_JOB_UID").env_remove("SLURM_JOB_GID").args(["--user", "nobodys"]))
        };
        hook(&["umount", "--job-id", "90", "--purge"]);
        assert!(!cache("90").exists() && cache("91").exists());
        hook(&["sweep", "--alive", "t"]);
        assert!(!cache("91").exists());
        let output = hook(&["umount", "--job-id", "90", "--purge"]);
        assert!(String::from_utf8_lossy(&output.stderr).contains("nothing is here"), "{output:?}");
    });
}

/// Killed when the test is done, however.
struct Frozen(i32);

impl Frozen {
    fn now(pid: i32) -> Self {
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if !has_ended(self.0) {
            let _ = kill(Pid::from_raw(self.0), Signal::SIGKILL);
        }
    }
}

/// By a debugger, or a cgroup's freezer: it does not hear that it is to end.
#[test]
fn a_frozen_daemon_does_not_keep_its_mount() {
    in_namespace(&[], |m| {
        let _open = fs::File::create(m.at("open")).unwrap();
        let worker = m.pid("worker.lock");
        let supervisor = Frozen::now(m.pid("supervisor.lock"));
        let output = m.unmount(&["--force"]);
        assert!(output.status.success(), "{output:?}");
        assert!(has_ended(supervisor.0) && has_ended(worker), "{output:?}");
        // Nothing of it is in the way of the next.
        assert!(m.mount(&[]).status.success());
        fs::write(m.at("next"), "next").unwrap();
    });
}

/// A process with a copy of this thread's mount namespace.
fn copy() -> Child {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn a_mount_that_another_namespace_has_a_copy_of() {
    in_namespace(&[], |m| {
        let mut holder = copy();
        let supervisor = m.pid("supervisor.lock");
        let told_of = |supervisor| format!("daemon, process {supervisor}, lives on: the mount namespace of");
        let told = format!("{} process {}", told_of(supervisor), holder.id());
        fails(&m.unmount(&[]), 1, &told);
        fails(&m.unmount(&[]), 1, &told);
        fails(&m.mount(&[]), 1, &told);
        holder.kill().unwrap();
        holder.wait().unwrap();
        wait_until("the supervisor ends", || has_ended(supervisor));

        // As the hint says, the daemon can be ended under them.
        assert!(m.mount(&[]).status.success());
        let mut holder = copy();
        let supervisor = m.pid("supervisor.lock");
        fails(&m.unmount(&[]), 1, &format!("kill {supervisor}"));
        kill(Pid::from_raw(supervisor), Signal::SIGTERM).unwrap();
        wait_until("the supervisor ends", || has_ended(supervisor));
        holder.kill().unwrap();
        holder.wait().unwrap();

        // Or with the job, whoever they are.
        assert!(m.mount(&[]).status.success());
        let mut holder = copy();
        let supervisor = m.pid("supervisor.lock");
        fails(&m.unmount(&[]), 1, &told_of(supervisor));
        let mut freed = scrfs(&["umount", "--force", "--purge", "--user", "root", "--job-id", "t"]);
        freed.arg("--control-base").arg(m.control_base()).arg("--cache-base").arg(m.stores());
        let freed = freed.output().unwrap();
        assert!(freed.status.success() && has_ended(supervisor), "{freed:?}");
        assert!(!m.control().exists());
        assert!(m.mount(&[]).status.success());
        holder.kill().unwrap();
        holder.wait().unwrap();
    });
}

/// Without force nothing is killed; but who asks gets an answer.
#[test]
fn a_frozen_daemon_is_named_in_time() {
    in_namespace(&[], |m| {
        let frozen = ["supervisor.lock", "worker.lock"].map(|lock| Frozen::now(m.pid(lock)));
        let mut unmount = Command::new("timeout");
        unmount.args(["-k", "2", "50", SCRFS, "umount"]).arg(&m.mount_point);
        // A job may run there: it stays mounted.
        let refused = unmount.output().unwrap();
        fails(&refused, 1, &format!("is stopped: its worker, process {}", frozen[1].0));
        fails(&refused, 1, "hint: let it go on: kill -CONT ");
        fails(&refused, 1, "or end it and its mount: scrfs umount --force --job-id t");
        let served = scrfs(&["umount", "--served"]).arg(&m.mount_point).output().unwrap();
        fails(&served, 1, "scrfs umount --force --job-id t");
        // Unmounted it is, and the daemon lives.
        let again = prolog(m, "t", &["umount", "--job-id", "t", "--user", "root"]).output().unwrap();
        fails(&again, 1, "the end of the daemon");
    });
}

/// An epilog and a sweep meet.
#[test]
fn two_that_unmount_one_job_at_once_both_succeed() {
    in_namespace(&[], |m| {
        for _ in 0..5 {
            run(&mut prolog(m, "7", &["mount"]));
            let unmount = || {
                let mut command = prolog(m, "7", &["umount", "--job-id", "7", "--purge"]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            };
            for ended in [unmount(), unmount()].map(|child| child.wait_with_output().unwrap()) {
                assert!(ended.status.success(), "{ended:?}");
            }
        }
    });
}

/// Nobody starts another worker, and the kernel lets whoever asks the mount wait.
#[test]
fn a_mount_that_does_not_answer_is_not_waited_for_without_end() {
    in_namespace(&[], |m| {
        let supervisor = Frozen::now(m.pid("supervisor.lock"));
        let worker = m.pid("worker.lock");
        kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        wait_until("the worker ends", || has_ended(worker));
        let mut reload = Command::new("timeout");
        reload.args(["-k", "2", "100", SCRFS, "reload"]).arg(&m.mount_point);
        let reload = reload.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        for told in [m.mount(&[]), reload.wait_with_output().unwrap(), m.unmount(&[])] {
            fails(&told, 1, &format!("is stopped: its supervisor, process {}", supervisor.0));
        }
        kill(Pid::from_raw(supervisor.0), Signal::SIGCONT).unwrap();
        wait_until("another worker", || m.mount(&[]).status.success());
    });
}

#[test]
fn directories_are_made_only_where_nobody_can_exchange_them() {
    in_namespace(&[], |m| {
        let shared = m.dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        let at =
            |name: &str| prolog(m, "7", &["mount"]).env("SCRFS_MOUNT", shared.join(name)).output().unwrap();
        mode_of(&shared, 0o777);
        fails(&at("a/%j"), 1, "mkdir -p");
        mode_of(&shared, 0o1777);
        chown(&shared, Some(UID), None).unwrap();
        fails(&at("a/%j"), 1, "belongs to user 4242");
        assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
        chown(&shared, Some(0), None).unwrap();
        assert!(at("a/%j").status.success());
        run(&mut prolog(m, "7", &["umount", "--job-id", "7", "--purge"]));
        assert_eq!(fs::read_dir(&shared).unwrap().count(), 0, "all of it is removed again");
    });
}

#[test]
fn names_that_another_user_made_first_do_not_stop_a_job() {
    in_namespace(&[], |m| {
        let cache = m.dir.path().join("cache");
        mode_of(&cache, 0o1777);
        // All of it as if it were the job's, with a file of the other's.
        let theirs = cache.join("4242/scr.7/tree");
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join("planted"), "").unwrap();
        for path in [&cache.join("4242"), &cache.join("4242/scr.7"), &theirs, &theirs.join("planted")] {
            chown(path, Some(1), Some(1)).unwrap();
        }
        run(&mut prolog(m, "7", &["mount"]));
        assert!(!point(m, "7").join("planted").exists());
        fs::write(point(m, "7").join("mine"), "mine").unwrap();
        run(&mut prolog(m, "7", &["umount", "--job-id", "7"]));
        // A requeued job finds its files, also when the other's have gone meanwhile.
        fs::remove_dir_all(cache.join("4242")).unwrap();
        run(&mut prolog(m, "7", &["mount"]));
        assert_eq!(fs::read_to_string(point(m, "7").join("mine")).unwrap(), "mine");
        run(&mut prolog(m, "7", &["umount", "--job-id", "7", "--purge"]));
        let left: Vec<_> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["root"], "the other mount's");
    });
}

#[test]
fn roots_daemon_has_given_up_what_it_does_not_need() {
    in_namespace(&[], |m| {
        let field = |pid: i32, name: &str| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
            u64::from_str_radix(&line, 16).unwrap()
        };
        let bit = |number: u32| 1_u64 << number;
        // CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, SETPCAP,
        // SYS_PTRACE, SYS_ADMIN, SYS_NICE, MKNOD, LEASE, SETFCAP.
        let worker =
            [0, 1, 2, 3, 4, 6, 7, 8, 19, 21, 23, 27, 28, 31].into_iter().fold(0, |all, one| all | bit(one));
        let resource = bit(24);
        for (lock, kept) in [("worker.lock", worker), ("supervisor.lock", worker | resource)] {
            let pid = m.pid(lock);
            for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
                assert_eq!(field(pid, set) & !kept, 0, "{lock} {set}");
            }
            assert_eq!(field(pid, "CapInh:"), 0);
            assert_eq!((field(pid, "NoNewPrivs:"), field(pid, "Seccomp:")), (1, 2), "{lock}");
        }
        // With it, suid and sgid bits would survive the writes of programs.
        assert_eq!(field(m.pid("worker.lock"), "CapEff:") & bit(4), 0, "CAP_FSETID");
        // So has the next one, which goes on serving.
        fs::write(m.at("f"), "f").unwrap();
        let former = m.pid("worker.lock");
        kill(Pid::from_raw(former), Signal::SIGKILL).unwrap();
        wait_until("a new worker", || fs::read(m.at("f")).is_ok() && m.pid("worker.lock") != former);
        assert_eq!(field(m.pid("worker.lock"), "CapEff:") & !worker, 0);
    });
}

#[test]
fn a_stale_mount_elsewhere_is_cleaned() {
    in_namespace(&[], |m| {
        let other = m.dir.path().join("other");
        fs::create_dir(&other).unwrap();
        let mut command = Command::new(SCRFS);
        command.args(["mount", "--user", "root", "--job-id", "other", "--control-base"]);
        command.arg(m.dir.path().join("control")).arg("--cache-base").arg(m.dir.path().join("cache"));
        assert!(command.arg(&other).status().unwrap().success());
        let control = m.dir.path().join("control/root/scr.other");
        for lock in ["supervisor.lock", "worker.lock"] {
            let pid: i32 = fs::read_to_string(control.join(lock)).unwrap().trim().parse().unwrap();
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            wait_until("it ends", || has_ended(pid));
        }
        let table = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(table().contains("scr.other"));
        assert!(m.unmount(&[]).status.success());
        assert!(m.mount(&[]).status.success());
        assert!(!table().contains("scr.other"), "the stale mount is there");
    });
}

/// Living keepers that were given to the first process, which need not collect those that end.
fn lone_keepers() -> BTreeSet<String> {
    let line = "ps -e -o pid=,ppid=,stat=,comm= | \
        awk '$2 == 1 && $3 !~ /^Z/ && $4 == \"scrfs-keeper\" { print $1 }'";
    let found = Command::new("sh").args(["-c", line]).output().unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

/// A worker that has lost its supervisor: it serves until its mount goes, nothing of it stays, and
/// one that is frozen is killed.
#[test]
fn a_worker_that_is_alone_ends_with_its_mount() {
    in_namespace(&[], |m| {
        let purge = |m: &Mounted| {
            let mut command =
                prolog(m, "t", &["umount", "--job-id", "t", "--user", "root", "--purge", "--force"]);
            let ended = run(&mut command);
            assert!(ended.status.success(), "{ended:?}");
            assert!(!m.control().exists() && !m.dir.path().join("cache/root/scr.t").exists());
        };
        let before = lone_keepers();
        for turn in 0..8 {
            let (supervisor, worker) = (m.pid("supervisor.lock"), m.pid("worker.lock"));
            // Its successor begins when the supervisor is gone, in some of the turns.
            for pid in if turn % 2 == 0 { vec![worker, supervisor] } else { vec![supervisor] } {
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            }
            wait_until("the supervisor ends", || has_ended(supervisor));
            if turn % 2 == 1 {
                fs::write(m.at("f"), "served").unwrap();
                assert!(m.mount(&[]).status.success(), "it is there already");
            }
            purge(m);
            // A successor that was about to begin may be in the way.
            wait_until("the next mount", || m.mount(&[]).status.success());
        }
        wait_until("no keeper without a supervisor", || lone_keepers().is_subset(&before));
        let (supervisor, worker) = (m.pid("supervisor.lock"), m.pid("worker.lock"));
        kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
        wait_until("the supervisor ends", || has_ended(supervisor));
        let _worker = Frozen::now(worker);
        purge(m);
        assert!(has_ended(worker));
        assert!(m.mount(&[]).status.success());
    });
}

/// Another mount namespace has a copy of a mount whose daemon has died; the job is mounted again
/// meanwhile, elsewhere.
#[test]
fn a_dead_copy_is_not_the_jobs_mount() {
    in_namespace(&[], |m| {
        let mut holder = copy();
        let pid = holder.id().to_string();
        let there = |words: &[&str]| {
            let inside = ["-k", "2", "60", "nsenter", "-t", &pid, "-m", SCRFS];
            let mut command = Command::new("timeout");
            command.args(inside).args(words).arg("--control-base").arg(m.control_base());
            command.arg("--cache-base").arg(m.stores()).arg(&m.mount_point).output().unwrap()
        };
        for lock in ["supervisor.lock", "worker.lock"] {
            let pid = m.pid(lock);
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            wait_until("it ends", || has_ended(pid));
        }
        assert!(m.unmount(&[]).status.success() && m.mount(&[]).status.success());
        fs::write(m.at("f"), "bytes").unwrap();
        let same = there(&["mount", "--user", "root", "--job-id", "t"]);
        let said = String::from_utf8_lossy(&same.stderr);
        assert!(!same.status.success() && said.contains("is not mounted here now"), "{said}");
        let other = there(&["mount", "--user", "root", "--job-id", "other"]);
        assert!(other.status.success(), "{other:?}");
        let ended = there(&["umount", "--user", "root", "--job-id", "other", "--purge"]);
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(fs::read(m.at("f")).unwrap(), b"bytes", "the job's mount is served");
        holder.kill().unwrap();
        holder.wait().unwrap();
    });
}

#[test]
fn a_mistake_that_keeps_nothing_from_its_work_is_told_once() {
    in_namespace(&[], |m| {
        let mut mount = prolog(m, "77", &["mount"]);
        mount.env("SCRFS_OPERATOR_GROUP", "no-such-group").env("SCRFS_LOG", "[[[");
        let said = run(&mut mount).stderr;
        let said = String::from_utf8_lossy(&said);
        for told in ["SCRFS_OPERATOR_GROUP: there is no group \"no-such-group\"", "SCRFS_LOG=\"[[[\""] {
            assert_eq!(said.matches(told).count(), 1, "{said}");
        }
        run(&mut prolog(m, "77", &["umount", "--job-id", "77", "--purge"]));
    });
}
