//! The packages: made from this build's programs by the script that makes those of a release, and installed in a root
//! that has nothing but what they say they need.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use scrfs_harness::cluster::{bin_dir, workspace};
use scrfs_harness::shell::Ran;
use serde_json::Value;

/// Both packages and what they are made from; once for all tests here.
fn packages() -> &'static Packages {
    static MADE: OnceLock<Packages> = OnceLock::new();
    MADE.get_or_init(|| {
        let script = workspace().join("deploy/package");
        Ran::of(Command::new(script).arg("--programs").arg(bin_dir()).env("LC_ALL", "C")).must();
        let out = workspace().join("target/package");
        let find = |end: &str| {
            let files = std::fs::read_dir(&out).expect("target/package").flatten().map(|entry| entry.path());
            let mut found: Vec<PathBuf> =
                files.filter(|path| path.to_string_lossy().ends_with(end)).collect();
            assert_eq!(found.len(), 1, "{end}: {found:?}");
            found.remove(0)
        };
        Packages { deb: find(".deb"), rpm: find(".rpm"), staged: out.join("root") }
    })
}

struct Packages {
    deb: PathBuf,
    rpm: PathBuf,
    staged: PathBuf,
}

/// A command on this machine.
fn run(line: &str) -> Ran {
    Ran::of(Command::new("timeout").args(["-k", "5", "120", "bash", "-euc", line]).env("LC_ALL", "C"))
}

/// Files and links, without directories.
fn files(listing: &str) -> BTreeSet<String> {
    listing.lines().map(|line| line.trim_start_matches('.').to_owned()).collect()
}

/// What a new administrator and a new user do, in namespaces of their own: the node has a name and no network.
const SESSION: &str = r#"
root=$1
mount --bind /dev "$root/dev"
mount -t tmpfs -o size=256m,mode=1777 tmpfs "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --bind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
hostname node0
ip link set lo up
printf '127.0.0.1 localhost node0\n' >"$root/etc/hosts"
echo 'ann:x:4711:4711::/tmp:/bin/sh' >>"$root/etc/passwd"
echo 'ann:x:4711:' >>"$root/etc/group"
cat >"$root/tmp/session" <<'END'
set -eu
scrfs --version
scrfs doctor --json >/tmp/doctor.json || { cat /tmp/doctor.json; exit 1; }
cat /tmp/doctor.json
mkdir -p /scr /pfs
chown ann /pfs
printf 'scrfs /scr fuse.scrfs noauto,nofail,job_user=ann,job_id=7 0 0\n' >/etc/fstab
mount /scr
export SCR_JOB_ID=7 HOME=/tmp
alias as_ann='setpriv --reuid ann --regid ann --init-groups'
cd /pfs
as_ann scrfs-run --hosts node0 -- sh -euc 'mkdir /scr/ck.1; echo data >/scr/ck.1/a; touch /scr/ck.1/.complete'
as_ann scrfs-ctl list
cd /
umount /scr || scrfs umount /scr
test ! -e /scr/ck.1
if mount -t fuse.scrfs -o frobnicate scrfs /scr; then exit 1; fi
END
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C sh /tmp/session
"#;

#[test]
fn the_deb_works_in_a_clean_root() {
    let packages = packages();
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    let script = workspace().join("tests/clean_root.py");
    Ran::of(Command::new(&script).arg(&root).arg(&packages.deb)).must();
    // Its dependencies are declared: dpkg refuses it where they are missing.
    let bare = place.path().join("bare");
    std::fs::create_dir_all(bare.join("var/lib/dpkg/info")).unwrap();
    std::fs::write(bare.join("var/lib/dpkg/status"), "").unwrap();
    let refused = run(&format!("dpkg --root={} --install {}", bare.display(), packages.deb.display()));
    assert!(!refused.ok() && refused.err.contains("depends on fuse3"), "{refused}");

    let session = place.path().join("session");
    std::fs::write(&session, SESSION).unwrap();
    let held = "unshare --mount --pid --uts --ipc --net --fork --kill-child --propagation private";
    let ran = run(&format!("{held} bash -euc '. {} {}'", session.display(), root.display()));
    let said = ran.must();
    assert!(said.contains(&format!("scrfs {}", env!("CARGO_PKG_VERSION"))), "{said}");
    let report = said.lines().find_map(|line| serde_json::from_str::<Value>(line).ok()).expect("doctor's");
    assert_ne!(report["grade"], "fail", "{report}");
    assert!(said.lines().any(|line| line.starts_with("1\t") && line.ends_with("\tck.1")), "{said}");
    assert!(ran.err.contains("unknown option frobnicate"), "{ran}");

    // Removed, it leaves what the administrator may have changed, and nothing else.
    run(&format!("dpkg --root={} --remove scrfs", root.display())).must();
    let left = run(&format!("cd {}; find . -name '*scrfs*' ! -path './var/*' ! -type d", root.display()));
    assert_eq!(left.must(), "./etc/scrfs.conf");
}

#[test]
fn both_packages_have_the_staged_files() {
    let packages = packages();
    let staged = run(&format!("cd {}; find . ! -type d", packages.staged.display()));
    let staged = files(staged.must());
    for path in [
        "/usr/bin/scrfs",
        "/usr/bin/scrfs-coordinator",
        "/usr/sbin/mount.fuse.scrfs",
        "/usr/lib/systemd/system/scrfs@.service",
        "/usr/lib/tmpfiles.d/scrfs.conf",
        "/etc/scrfs.conf",
        "/usr/share/man/man7/scrfs.7.gz",
        "/usr/share/bash-completion/completions/scrfs-ctl",
        "/usr/share/doc/scrfs/semantics.md",
    ] {
        assert!(staged.contains(path), "{path}");
    }
    let deb = run(&format!("dpkg-deb --fsys-tarfile {} | tar -t | grep -v '/$'", packages.deb.display()));
    assert_eq!(files(deb.must()), staged);
    let fields = run(&format!("dpkg-deb -f {} Depends", packages.deb.display()));
    for needed in ["fuse3", "libc6 (>=", "libopenmpi", "openmpi-bin"] {
        assert!(fields.must().contains(needed), "{fields}");
    }

    let place = tempfile::tempdir().unwrap();
    let (root, rpm) = (place.path().join("root"), packages.rpm.display());
    // No distribution of RPMs is here: that its dependencies can be had is not shown by this.
    let install =
        format!("rpm --root {} --dbpath /var/lib/rpm --nodeps --noscripts --install {rpm}", root.display());
    run(&format!("mkdir -p {}; {install}", root.display())).must();
    let installed = run(&format!("cd {}; find . ! -type d ! -path './var/*'", root.display()));
    assert_eq!(files(installed.must()), staged);
    let needs = run(&format!("rpm -qp --requires {rpm}"));
    assert!(needs.must().lines().any(|line| line == "fuse3"), "{needs}");
    assert!(!needs.must().contains("libmpi"), "{needs}");
}

#[test]
fn units_manuals_and_completions_are_sound() {
    let staged = &packages().staged;
    let unit = staged.join("usr/lib/systemd/system/scrfs@.service");
    // The unit's programs have to be where it says.
    let verify = format!(
        "mount -t overlay -o lowerdir={0}/usr/bin:/usr/bin overlay /usr/bin; \
         cp {1} /run/scrfs@scr.service; systemd-analyze verify --man=no /run/scrfs@scr.service 2>&1",
        staged.display(),
        unit.display()
    );
    let own_run = "mount -t tmpfs tmpfs /run;";
    let verified = run(&format!("unshare --mount --propagation private bash -euc '{own_run} {verify}'"));
    assert_eq!(verified.must(), "", "{verified}");

    let share = staged.join("usr/share");
    let mut pages = 0;
    for page in run(&format!("find {}/man -type f", share.display())).must().lines() {
        pages += 1;
        let rendered = run(&format!("MANWIDTH=100 man --warnings -E UTF-8 -l {page} | col -bx"));
        let name = Path::new(page).file_name().unwrap().to_string_lossy().replace(".gz", "");
        let title = name.rsplit_once('.').unwrap().0.to_owned();
        assert!(rendered.must().contains(&title), "{rendered}");
        assert_eq!(rendered.err, "", "{page}");
        // Pages have no date, so that they can be made again; what clap makes has empty lines twice.
        let lint = format!(
            "zcat {page} | mandoc -T lint -W warning | grep -vE 'missing date|paragraph macro' || true"
        );
        assert_eq!(run(&lint).must(), "", "{page}");
    }
    assert_eq!(pages, 6);
    for verb in ["mount", "umount", "reload", "doctor"] {
        let found = run(&format!("zgrep -c '^\\.SS {verb}$' {}/man/man8/scrfs.8.gz", share.display()));
        assert_eq!(found.must(), "1", "{verb}");
    }
    let check = format!(
        "cd {}; for f in bash-completion/completions/*; do bash -n $f; done; \
         for f in zsh/vendor-completions/*; do zsh -n $f; done; ls bash-completion/completions \
         zsh/vendor-completions fish/vendor_completions.d | grep -c scrfs",
        share.display()
    );
    assert_eq!(run(&check).must(), "12");
    let recipe = workspace().join("deploy/spack/package.py");
    let parse =
        format!("python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' {}", recipe.display());
    run(&parse).must();
}
