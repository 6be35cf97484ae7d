//! File systems that another user mounts: they say what is not so, or never answer, and nobody asks
//! them.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::jobs::{UID, point, prolog, run};
use super::{Mounted, fails, in_namespace, mode_of, scrfs};

/// The other user.
const STRANGER: u32 = 54_321;

/// What fusermount3 would have mounted for the stranger; nobody serves it, so who asks it waits for
/// ever.
struct Silent {
    path: PathBuf,
    _device: File,
}

impl Silent {
    fn new(path: &Path, kind: &str, source: &str) -> Self {
        fs::create_dir_all(path).unwrap();
        chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id={STRANGER},group_id={STRANGER},allow_other",
            device.as_raw_fd()
        );
        mount(Some(source), path, Some(kind), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self { path: path.to_owned(), _device: device }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

/// Everything that root's hooks and people do ends, and does what it should.
fn all_goes_on(m: &Mounted, id: &str) {
    run(&mut prolog(m, id, &["mount"]));
    fs::write(point(m, id).join("f"), "f").unwrap();
    run(&mut prolog(m, id, &["mount"]));
    // It says what this machine lacks.
    let report = prolog(m, id, &["doctor", "--json"]);
    let report = of_doctor(report);
    assert!(!report.contains("was cut short"), "{report}");
    run(&mut prolog(m, id, &["umount", "--job-id", id, "--purge"]));
    assert!(fs::metadata(point(m, id)).is_err(), "it is removed");
    run(&mut prolog(m, id, &["sweep", "--alive", "t"]));
    assert!(fs::read_dir(m.at("")).is_ok());
}

fn of_doctor(command: Command) -> String {
    // Its bases come from the environment.
    let (mut doctor, bases) = (scrfs(&["doctor", "--json"]), command);
    let mut arguments = bases.get_args().skip_while(|argument| *argument != "--control-base").skip(1);
    doctor.env("SCR_CNTL_BASE", arguments.next().unwrap()).env("SCR_CACHE_BASE", arguments.nth(1).unwrap());
    let output: Output = doctor.output().unwrap();
    assert!([Some(0), Some(1)].contains(&output.status.code()), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_a_stranger_mounts_at_a_name_is_passed_over_unasked() {
    in_namespace(&[], |m| {
        let bases = ["control", "cache"].map(|base| m.dir.path().join(base));
        let mut silent = Vec::new();
        for base in &bases {
            mode_of(base, 0o1777);
            for name in [&UID.to_string(), "aaa", "root.0123456789abcdef"] {
                silent.push(Silent::new(&base.join(name), "fuse", "x"));
            }
        }
        all_goes_on(m, "77");
        run(&mut prolog(m, "78", &["mount"]));
        for base in &bases {
            let names = fs::read_dir(base).unwrap().flatten().map(|entry| entry.file_name());
            let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            let ours = names.iter().filter(|name| name.starts_with(&format!("{UID}.")));
            assert_eq!(ours.count(), 1, "{names:?}");
        }
        // Nor where so few descriptors are left that nobody can tell whose it is: others are open,
        // of as many as there have to be. A worker that has some left at its start answers.
        let few = "ulimit -n 64; for open in $(seq 3 $((66 - $1))); do eval \"exec $open</dev/null\"; done
                             shift; exec \"$@\"";
        for descriptors in (4..20).chain([32, 40, 44, 48, 52, 56, 60]) {
            let command = prolog(m, "79", &["mount"]);
            let mut short = Command::new("timeout");
            short.args(["-k", "5", "20", "bash", "-c", few, "-"]);
            short.arg(descriptors.to_string()).arg(command.get_program()).args(command.get_args());
            short.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let ended = short.output().unwrap();
            assert!(![Some(124), Some(137)].contains(&ended.status.code()), "{descriptors}: {ended:?}");
            if ended.status.success() {
                run(&mut prolog(m, "79", &["umount", "--job-id", "79", "--purge"]));
            }
        }
        drop(silent);
        run(&mut prolog(m, "78", &["umount", "--job-id", "78", "--purge"]));
    });
}

#[test]
fn what_a_stranger_calls_a_mount_is_not_looked_at() {
    in_namespace(&[], |m| {
        let at = |name: &str| m.dir.path().join(name);
        let hung = Silent::new(&at("hung"), "fuse", "x");
        let named = format!("scrfs@{}", hung.path.join("ann/scr.1").display());
        let _forged = Silent::new(&at("forged"), "fuse.scrfs", &named);
        let victim = format!("scrfs@{}", m.control().display());
        let copy = Silent::new(&at("copy"), "fuse.scrfs", &victim);
        all_goes_on(m, "77");
        // Neither the one nor the other is the job's mount.
        for forged in [&at("forged"), &copy.path] {
            let refused = scrfs(&["umount", "--force"]).arg(forged).output().unwrap();
            fails(&refused, 1, "is not an scrfs mount");
        }
        assert!(m.unmount(&[]).status.success());
        assert!(m.mount(&[]).status.success());
    });
}

#[test]
fn a_mount_point_in_a_strangers_mount_is_refused_unasked() {
    in_namespace(&[], |m| {
        let at = |name: &str| m.dir.path().join(name);
        let hung = Silent::new(&at("hung"), "fuse", "x");
        symlink(hung.path.join("below"), at("link")).unwrap();
        for point in [hung.path.clone(), hung.path.join("below"), at("link")] {
            let mut command = scrfs(&["mount", "--job-id", "u", "--control-base"]);
            command.arg(at("other")).arg("--cache-base").arg(at("other")).arg(&point);
            fails(&command.output().unwrap(), 1, "is a mount of user 54321");
            for verb in ["umount", "reload"] {
                fails(&scrfs(&[verb]).arg(&point).output().unwrap(), 1, "is not an scrfs mount");
            }
        }
    });
}

#[test]
fn a_base_in_a_strangers_mount_is_refused_unasked() {
    in_namespace(&[], |m| {
        let home = m.dir.path().join("home");
        let (hung, at_home) = (
            Silent::new(&m.dir.path().join("hung"), "fuse", "x"),
            Silent::new(&home.join("hung"), "fuse", "x"),
        );
        chown(&home, Some(STRANGER), Some(STRANGER)).unwrap();
        for base in [hung.path.clone(), hung.path.join("below"), at_home.path.clone()] {
            let other = m.dir.path().join("other");
            for option in ["--cache-base", "--control-base"] {
                let mut command = scrfs(&["mount", "--job-id", "u", option]);
                let refused = command.arg(&base).arg(&other).output().unwrap();
                fails(&refused, 1, "is a mount of user 54321");
            }
            let mut sweep = scrfs(&["sweep", "--alive", "t", "--cache-base"]);
            let swept = sweep.arg(&base).arg("--control-base").arg(m.dir.path().join("control")).output();
            assert!(swept.unwrap().status.success());
        }
    });
}

#[test]
fn root_follows_no_link_of_a_user_to_a_mount_point() {
    in_namespace(&[], |m| {
        let at = |name: &str| m.dir.path().join(name);
        let link = |target: &str, name: &str, owner: u32| {
            symlink(at(target), at(name)).unwrap();
            lchown(at(name), Some(owner), Some(owner)).unwrap();
        };
        for (directory, owner) in [("of_root", 0), ("of_root/empty", 0), ("home", STRANGER)] {
            fs::create_dir(at(directory)).unwrap();
            chown(at(directory), Some(owner), Some(owner)).unwrap();
        }
        link("of_root/empty", "home/last", STRANGER);
        link("of_root", "home/on_the_way", STRANGER);
        link("of_root/empty", "shared", STRANGER);
        // The user could put another in its place.
        link("of_root/empty", "home/of_root", 0);
        link("of_root/empty", "right", 0);
        fs::create_dir(at("home/plain")).unwrap();
        let act = |verb: &str, point: &str| {
            let mut command = scrfs(&[verb]);
            if verb == "mount" {
                command.args(["--job-id", "u", "--control-base"]).arg(at("other"));
                command.arg("--cache-base").arg(at("other"));
            }
            command.arg(at(point));
            command
        };
        for point in ["home/last", "home/on_the_way/empty", "shared", "home/of_root"] {
            fails(&act("mount", point).output().unwrap(), 1, "belongs to user 54321");
            assert_eq!(fs::read_dir(at("of_root/empty")).unwrap().count(), 0, "{point}");
        }
        // Nor to a mount that is not that user's.
        run(&mut act("mount", "of_root/empty"));
        for point in ["home/last", "home/on_the_way/empty", "shared", "home/of_root"] {
            for verb in ["umount", "reload"] {
                fails(&act(verb, point).output().unwrap(), 1, "belongs to user 54321");
            }
        }
        run(&mut act("umount", "of_root/empty"));
        // Nothing is made where such a link leads.
        let behind = "home/on_the_way/new";
        for (control, cache) in [(behind, "other"), ("other", behind)] {
            let mut command = scrfs(&["mount", "--job-id", "v", "--control-base"]);
            command.arg(at(control)).arg("--cache-base").arg(at(cache)).arg(at("home/plain"));
            fails(&command.output().unwrap(), 1, "belongs to user 54321");
            assert!(!at("of_root/new").exists());
        }
        for point in ["right", "home/plain"] {
            for verb in ["mount", "mount", "umount"] {
                run(&mut act(verb, point));
            }
        }
    });
}
