//! A place's root: a small file system of its own, with the host's directories bound into it.
//!
//! So a place has `/scr`, `/cache` and `/pfs` without a trace of them on the host, and none of the
//! host's other mounts. That matters for FUSE above all: a copied FUSE mount pins its superblock,
//! and its daemon does not end at umount.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{chdir, chroot, pivot_root};
use serde_json::Value;

use super::{Outcome, While};
use crate::cluster::read_conf;
use crate::place::{CACHE, INSIDE, PFS, Place, SCR, State};

/// Made anew in every place; all else of `/` is the host's.
const OWN: [&str; 9] = ["cache", "dev", "lost+found", "pfs", "proc", "run", "scr", "sys", "tmp"];

/// Builds the root of `place` and moves into it. The process has a new mount namespace and is
/// process 1 of its PID namespace. `state` is the cluster's directory as seen before.
pub(super) fn build(state: &State, place: Place) -> Outcome<()> {
    let conf = read_conf(state).during("reading the cluster's configuration")?;
    let text = |name: &str| conf[name].as_str().unwrap_or_default().to_owned();
    attach(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None)?;
    drop_inherited(&conf)?;

    let root = state.root();
    // `/run` is in it, and has room for the records of many files: on a real node it is a tenth of
    // the memory.
    tmpfs(&root, "256m", 0o755)?;
    for entry in fs::read_dir("/").during("reading /")?.flatten() {
        let name = entry.file_name();
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        let kind = entry.file_type().during("reading /")?;
        let here = root.join(&name);
        if kind.is_symlink() {
            let target = fs::read_link(entry.path()).during("reading /")?;
            symlink(target, here).during("linking in the new root")?;
        } else if place == Place::Head && name == "etc" {
            own_etc(&here, state)?;
        } else if kind.is_dir() {
            bind(&entry.path(), &here)?;
        }
    }
    bind(Path::new("/sys"), &root.join("sys"))?;
    devices(&root, &text("shm_size"))?;
    fs::create_dir(root.join("proc")).during("making /proc")?;
    attach(Some("proc"), &root.join("proc"), Some("proc"), MsFlags::empty(), None)?;
    tmpfs(&root.join("tmp"), &text("tmp_size"), 0o1777)?;

    let inside = below(&root, INSIDE);
    // Not what is mounted below it: the new root is.
    fs::create_dir_all(&inside).during("making the cluster's directory")?;
    attach(state.dir().to_str(), &inside, None, MsFlags::MS_BIND, None)?;
    // In a node the directory as first built, not what the head shows, is no longer in sight: hand
    // on the head's.
    let bin = if place == Place::Head { PathBuf::from(text("bin")) } else { state.dir().join("bin") };
    bind(&bin, &inside.join("bin"))?;
    share(&root, &conf)?;
    bind(&state.pfs(), &below(&root, PFS))?;
    fs::create_dir(below(&root, SCR)).during("making /scr")?;
    if let Place::Node(_) = place {
        cache(&root, state, place, &conf)?;
    }
    enter(&root)
}

/// The cluster's `/etc`: the host's files, copied, and the cluster's own. Nodes have the head's, so
/// that what is written there later is seen on all of them, and never on the host.
fn own_etc(etc: &Path, state: &State) -> Outcome<()> {
    fs::create_dir(etc).during("making /etc")?;
    for entry in fs::read_dir("/etc").during("reading /etc")?.flatten() {
        let here = etc.join(entry.file_name());
        let kind = entry.file_type().during("reading /etc")?;
        if kind.is_symlink() {
            let target = fs::read_link(entry.path()).during("reading /etc")?;
            symlink(target, here).during("linking in /etc")?;
        } else if kind.is_dir() {
            bind(&entry.path(), &here)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), here).during(format!("copying {}", entry.path().display()))?;
        }
    }
    for entry in fs::read_dir(state.etc()).during("reading the cluster's files")?.flatten() {
        fs::copy(entry.path(), etc.join(entry.file_name())).during("copying the cluster's files")?;
    }
    let site = "openmpi-mca-params.conf";
    let target = etc.join("openmpi").join(site);
    if target.exists() {
        attach(state.etc().join(site).to_str(), &target, None, MsFlags::MS_BIND, None)?;
    }
    Ok(())
}

fn cache(root: &Path, state: &State, place: Place, conf: &Value) -> Outcome<()> {
    let target = below(root, CACHE);
    if conf["keep_cache"].as_bool() != Some(true) {
        return tmpfs(&target, conf["cache_size"].as_str().unwrap_or("512m"), 0o1777);
    }
    let disk = state.ssd(place);
    fs::create_dir_all(&disk).during("making the disk")?;
    fs::set_permissions(&disk, Permissions::from_mode(0o1777)).during("making the disk")?;
    bind(&disk, &target)
}

/// The host's devices, but with shared memory of its own, and a `/dev/fuse` that anyone may open.
fn devices(root: &Path, shm_size: &str) -> Outcome<()> {
    let dev = root.join("dev");
    bind(Path::new("/dev"), &dev)?;
    tmpfs(&dev.join("shm"), shm_size, 0o1777)?;
    let fuse = root.join("fuse");
    let made = mknod(&fuse, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(10, 229));
    if made.is_ok() && dev.join("fuse").exists() {
        fs::set_permissions(&fuse, Permissions::from_mode(0o666)).during("making /dev/fuse")?;
        attach(fuse.to_str(), &dev.join("fuse"), None, MsFlags::MS_BIND, None)?;
    }
    Ok(())
}

/// What all places are to see although it lies in a directory that each has for itself.
fn share(root: &Path, conf: &Value) -> Outcome<()> {
    for path in conf["share"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let target = below(root, path);
        if OWN.iter().any(|own| Path::new(path).starts_with(Path::new("/").join(own))) && !target.exists() {
            bind(Path::new(path), &target)?;
        }
    }
    Ok(())
}

/// Drops inherited FUSE mounts, save where the cluster itself lies in one.
fn drop_inherited(conf: &Value) -> Outcome<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").during("reading the mounts")?;
    let mut needed: Vec<&str> =
        conf["share"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    needed.extend(conf["state"].as_str());
    for line in table.lines().rev() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(point) = before.split(' ').nth(4).map(unescape) else { continue };
        let used = point == "/" || needed.iter().any(|path| Path::new(path).starts_with(&point));
        if after.starts_with("fuse") && !after.starts_with("fusectl") && !used {
            let _ = umount2(point.as_str(), MntFlags::MNT_DETACH);
        }
    }
    Ok(())
}

/// Undoes the octal escapes of the kernel's mount tables.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Makes `root` the root and lets go of the old one.
fn enter(root: &Path) -> Outcome<()> {
    chdir(root).during("entering the new root")?;
    if pivot_root(".", ".").is_ok() {
        umount2(".", MntFlags::MNT_DETACH).during("leaving the old root")?;
    } else {
        // An initial RAM disk as root cannot be pivoted away; covering it does.
        attach(Some("."), Path::new("/"), None, MsFlags::MS_MOVE, None)?;
        chroot(".").during("entering the new root")?;
    }
    chdir("/").during("entering the new root")
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn tmpfs(target: &Path, size: &str, mode: u32) -> Outcome<()> {
    fs::create_dir_all(target).during(target.display())?;
    attach(
        Some("tmpfs"),
        target,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(&format!("size={size},mode={mode:o}")),
    )
}

fn bind(source: &Path, target: &Path) -> Outcome<()> {
    fs::create_dir_all(target).during(target.display())?;
    attach(source.to_str(), target, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)
}

fn attach(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    data: Option<&str>,
) -> Outcome<()> {
    mount(source, target, kind, flags, data).during(format!(
        "mounting {} on {}",
        source.unwrap_or("-"),
        target.display()
    ))
}
