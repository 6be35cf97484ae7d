//! The packages: made from this build's programs by the script that makes those of a release, and
//! installed in a root that has nothing but what they say they need.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use scrfs_harness::cluster::{bin_dir, workspace};
use scrfs_harness::job::SOON;
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, programs, wait};
use serde_json::Value;

/// Both packages and what they are made from; once for all tests of a process.
fn packages() -> &'static Packages {
    static MADE: OnceLock<Packages> = OnceLock::new();
    MADE.get_or_init(|| {
        let script = workspace().join("deploy/package");
        let (out, lock) = place();
        let ran = Ran::of(
            Command::new(script).arg("--programs").arg(bin_dir()).arg("--out").arg(&out).env("LC_ALL", "C"),
        );
        ran.must();
        let find = |end: &str| {
            let files = std::fs::read_dir(&out).expect("packages").flatten().map(|entry| entry.path());
            let mut found: Vec<PathBuf> =
                files.filter(|path| path.to_string_lossy().ends_with(end)).collect();
            assert_eq!(found.len(), 1, "{end}: {found:?}");
            found.remove(0)
        };
        Packages { deb: find(".deb"), rpm: find(".rpm"), staged: out.join("root"), _lock: lock }
    })
}

/// A directory for packages that no other process uses, and the lock that says so: the tests with
/// Slurm run beside the others, and make packages too.
fn place() -> (PathBuf, File) {
    for number in 0..16 {
        let out = workspace().join(format!("target/package/tests.{number}"));
        std::fs::create_dir_all(&out).expect("a directory in target/package");
        let lock = File::create(out.join("lock")).expect("a file in target/package");
        match lock.try_lock() {
            Ok(()) => return (out, lock),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => panic!("{}: {error}", out.display()),
        }
    }
    panic!("16 processes make packages");
}

/// The package for Debian.
pub(crate) fn deb() -> &'static Path {
    &packages().deb
}

struct Packages {
    deb: PathBuf,
    rpm: PathBuf,
    staged: PathBuf,
    /// Given back when the process ends.
    _lock: File,
}

/// A command on this machine.
fn run(line: &str) -> Ran {
    Ran::of(Command::new("timeout").args(["-k", "5", "120", "bash", "-euc", line]).env("LC_ALL", "C"))
}

/// Files and links, without directories.
fn files(listing: &str) -> BTreeSet<String> {
    listing.lines().map(|line| line.trim_start_matches('.').to_owned()).collect()
}

/// What a new administrator and a new user do, in namespaces of their own: the node has a name and
/// no network.
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

/// `/run/scrfs` and `/run/pmix` are made, and left as an administrator has them.
#[test]
fn packages_change_no_mode() {
    let packages = packages();
    let place = tempfile::tempdir().unwrap();
    let (deb, rpm) = (packages.deb.display(), packages.rpm.display());
    let conf = packages.staged.join("usr/lib/tmpfiles.d/scrfs.conf");
    for (name, made) in [
        ("deb", format!("dpkg-deb -e {deb} /run/control && sh /run/control/postinst configure")),
        ("rpm", format!("rpm -qp --qf '%{{POSTIN}}' {rpm} | sh -e")),
        ("boot", format!("systemd-tmpfiles --create {}", conf.display())),
    ] {
        let script = place.path().join(name);
        let text = format!(
            "mount -t tmpfs tmpfs /run\n{made}\nstat -c %a /run/scrfs /run/pmix\n\
             chmod 711 /run/scrfs /run/pmix\n{made}\nstat -c %a /run/scrfs /run/pmix\n"
        );
        std::fs::write(&script, text).unwrap();
        let ran = run(&format!("unshare --mount --propagation private bash -eu {}", script.display()));
        assert_eq!(ran.must(), "755\n755\n711\n711", "{name}: {ran}");
    }
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
        // Pages have no date, so that they can be made again; what clap makes has empty lines
        // twice.
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
    completions_know_every_verb(&share.join("bash-completion/completions"));
    let named = run(&format!("! grep -rnE 'served' {}/*/*completions", share.display()));
    assert!(named.ok(), "what is hidden is offered: {named}");
    let recipe = workspace().join("deploy/spack/package.py");
    let parse =
        format!("python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' {}", recipe.display());
    run(&parse).must();
}

/// In the shell itself.
fn completions_know_every_verb(completions: &Path) {
    let completed = |words: &[&str]| -> BTreeSet<String> {
        let (program, last) = (words[0], words.len() - 1);
        let line = format!(
            "source {0}/{program}; work=$(complete -p {program} | grep -oP '(?<=-F )\\S+'); \
             COMP_WORDS=({1}); COMP_CWORD={last}; \
             $work {program} \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\" || true; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            completions.display(),
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
        );
        run(&line).must().lines().map(str::to_owned).collect()
    };
    let expected: [(&[&str], &str); 5] = [
        (&["scrfs-ctl", "status", "--"], "--watch"),
        (&["scrfs-ctl", "halt", "--"], "--immediate"),
        (&["scrfs", "umount", "--"], "--force"),
        (&["scrfs-run", "--"], "--hosts"),
        (&["scrfs-coordinator", "--"], "--restart"),
    ];
    for (words, option) in expected {
        let found = completed(words);
        assert!(found.contains(option), "{words:?}: {found:?}");
    }
    for program in ["scrfs", "scrfs-ctl"] {
        let verbs = completed(&[program, ""]);
        let verbs: Vec<&String> = verbs.iter().filter(|word| !word.starts_with('-')).collect();
        assert!(verbs.len() > 6, "{verbs:?}");
        for verb in verbs {
            let found = completed(&[program, verb, "--"]);
            assert!(found.contains("--help"), "{program} {verb}: {found:?}");
        }
    }
}

/// What a module system does with the file; the package has no other use for it.
const MODULE: &str = r#"
set ModulesCurrentModulefile [lindex $argv 0]
proc module-whatis {text} { puts "whatis $text" }
proc conflict {name} { puts "conflict $name" }
proc prepend-path {name value} { puts "prepend $name $value" }
proc append-path {name value} { puts "append $name ($value)" }
proc setenv {name value} { puts "set $name $value" }
source $ModulesCurrentModulefile
ModulesHelp
"#;

#[test]
fn the_modulefile_finds_the_tree_that_it_is_in() {
    let staged = &packages().staged;
    let place = tempfile::tempdir().unwrap();
    // Wherever a site has unpacked the package.
    let tree = place.path().join("opt/scrfs");
    let copy = format!("mkdir -p {0}; cp -a {1}/. {0}/", tree.display(), staged.join("usr").display());
    run(&copy).must();
    let modulefile = tree.join("share/modulefiles/scrfs").join(env!("CARGO_PKG_VERSION"));
    let script = place.path().join("module.tcl");
    std::fs::write(&script, MODULE).unwrap();
    let ran = run(&format!("tclsh {} {}", script.display(), modulefile.display()));
    let said: Vec<&str> = ran.must().lines().collect();
    let tree = tree.display();
    assert!(said[0].starts_with(&format!("whatis scrfs {}: ", env!("CARGO_PKG_VERSION"))), "{ran}");
    let settings = [
        "conflict scrfs".to_owned(),
        format!("prepend PATH {tree}/bin"),
        format!("prepend MANPATH {tree}/share/man"),
        "append MANPATH ()".to_owned(),
        format!("set SCRFS_ROOT {tree}"),
    ];
    assert_eq!(said[1..], settings, "{ran}");
    assert!(ran.err.contains("man 7 scrfs") && !ran.err.contains('@'), "{ran}");
    let found = format!(
        "PATH={tree}/bin:$PATH; MANPATH={tree}/share/man:; export MANPATH; scrfs --version; man -w ls; \
         man -w scrfs-run"
    );
    let found = run(&found);
    let expected = format!("{tree}/share/man/man1/scrfs-run.1.gz");
    assert!(found.must().ends_with(&expected), "{found}");
}

/// Where there is no dpkg, or no rpmbuild, the other package is made; where there is neither,
/// nothing is touched.
#[test]
fn each_package_needs_its_own_tools_alone() {
    let is = |name: &str, kind: &str| Path::new(name).extension().is_some_and(|found| found == kind);
    let place = tempfile::tempdir().unwrap();
    let script = workspace().join("deploy/package");
    // Everything that this machine has, but for these.
    let make = |without: &str, name: &str| {
        let (bin, out) = (place.path().join(format!("bin.{name}")), place.path().join(name));
        let hide = format!("mkdir {0}; ln -s -t {0} /usr/bin/*; cd {0}; rm -f {without}", bin.display());
        run(&hide).must();
        let ran = Ran::of(
            Command::new("timeout")
                .args(["-k", "5", "120", "bash"])
                .arg(&script)
                .arg("--out")
                .arg(&out)
                .arg("--programs")
                .arg(bin_dir())
                .env("PATH", &bin)
                .env("LC_ALL", "C"),
        );
        let entries = std::fs::read_dir(out).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut made: Vec<String> = names.filter(|name| name != "root").collect();
        made.sort();
        (ran, made)
    };
    let (ran, made) = make("dpkg* apt*", "rpm");
    ran.must();
    assert!(matches!(&made[..], [rpm] if is(rpm, "rpm")), "{made:?}");
    let (ran, made) = make("rpmbuild apt*", "deb");
    ran.must();
    assert!(matches!(&made[..], [deb] if is(deb, "deb")), "{made:?}");
    let (ran, made) = make("rpmbuild dpkg* apt*", "none");
    assert!(ran.code == 1 && ran.err.contains("hint: install dpkg-dev or rpm-build"), "{ran}");
    assert!(made.is_empty() && !place.path().join("none").exists(), "{made:?}");
}

/// A prefix whose file system does not answer is waited for as `doctor`'s page says, and named; a
/// user file that is a pipe is not waited for.
#[test]
fn what_hangs_is_waited_for_as_long_as_the_page_says() {
    let page = std::fs::read_to_string(workspace().join("scrfs/docs/install.md")).unwrap();
    assert!(page.contains("Nothing that hangs is waited for longer than 5 s."));
    let cluster = Cluster::up(1);
    let on = cluster.on(0);
    let waited = |text: &str, place: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(place) && line.contains("no answer in "));
        lines.map(str::to_owned).collect()
    };
    let piped = on.run("mkdir /tmp/pipe && mkfifo /tmp/pipe/.scrconf; scrfs doctor --prefix /tmp/pipe");
    assert!([0, 1].contains(&piped.code) && piped.to_string().contains("no regular file"), "{piped}");
    assert!(waited(&piped.out, "/tmp/pipe").is_empty(), "{piped}");

    on.run(&format!("mkdir /tmp/m && {}", programs::hanging("/tmp/m"))).must();
    let mut doctor = on.sh("exec scrfs doctor --prefix /tmp/m > /tmp/said").spawn().expect("a shell");
    let said = || on.run("cat /tmp/said").out;
    // It looks there three times, one after the other, and does not wait for ever.
    wait::until_true("the last line", SOON, || said().contains("descriptors "));
    let text = said();
    let lines = waited(&text, "/tmp/m");
    assert!(lines.len() >= 2 && lines.iter().all(|line| line.contains("no answer in 5 s")), "{text}");
    // The kernel lets no thread go that waits for such a file system before that has ended.
    on.run("pkill -KILL -f hanging[.]py").must();
    assert_eq!(doctor.wait().expect("its end").code(), Some(1), "{text}");
}

/// What mount(8) calls, with what may stand in `/etc/fstab`.
#[test]
fn options_of_fstab_reach_the_mount() {
    let cluster = Cluster::up(1);
    let helper = workspace().join("deploy/layout/mount.fuse.scrfs");
    let helper = helper.display();
    let root = cluster.on(0);
    let options = "rw,noauto,nofail,_netdev,user,user=ann,x-systemd.automount,comment=scrfs,job_user=job,job_id=9,\
                   defaults,noatime,nodiratime,relatime,exec,noexec,nosuid,nodev,\
                   cache_base=/cache:/dev/shm,control_base=/tmp/control,checkpoint_path=a/b,no_passthrough";
    root.run("mkdir -p -m 755 /tmp/control").must();
    // As `mount -f` has it: everything but the mount.
    root.run(&format!("{helper} scrfs /scr -f -o {options}")).must();
    assert_eq!(root.run("findmnt -n -t fuse.scrfs").out, "");
    root.run(&format!("{helper} scrfs /scr -n -s -v -t fuse.scrfs -o {options},frobnicate")).must();
    let flags = root.run("findmnt -n -o VFS-OPTIONS /scr").must().to_owned();
    assert!(["rw", "nosuid", "nodev", "noexec"].iter().all(|flag| flags.contains(flag)), "{flags}");
    let user = root.clone().job();
    let json = user.run("scrfs-ctl status --mount /scr --json").must().to_owned();
    let status: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status["job"], "job 9", "{json}");
    assert_eq!(status["mode"], "plain", "{json}");
    let stores = status["stores"].as_array().unwrap();
    let bases: Vec<&str> = stores.iter().filter_map(|store| store["path"].as_str()).collect();
    assert_eq!(bases, ["/cache", "/dev/shm"], "{json}");
    assert_eq!(root.run("ls -d /tmp/control/job/scr.9").must(), "/tmp/control/job/scr.9");
    user.run("mkdir -p /scr/a/b/ck.1 && echo x > /scr/a/b/ck.1/f").must();
    let list = user.run("scrfs-ctl list --mount /scr");
    assert!(list.must().ends_with("\tck.1"), "{list}");
    // Its exit codes are mount(8)'s: 1, wrong usage; 32, the mount failed.
    assert_eq!(root.run(&format!("{helper} scrfs /scr -o job_id=10")).code, 32);
    assert_eq!(root.run(&format!("{helper} scrfs /mnt -o job_id=a/b")).code, 1);
    assert_eq!(root.run(&format!("{helper} scrfs /mnt -o suid")).code, 1);
    let read_only = root.run(&format!("{helper} scrfs /mnt -s -o ro"));
    assert!(read_only.code == 1 && read_only.err.contains("cannot be read-only"), "{read_only}");
    // Where it cannot be had, there is no mount without it.
    let without = format!(
        "mkdir -p /tmp/bin /tmp/other && ln -sf /bin/false /tmp/bin/mount && PATH=/tmp/bin:$PATH {helper}"
    );
    assert_eq!(root.run(&format!("{without} scrfs /tmp/other -o job_id=11,noexec")).code, 32);
    assert!(!root.run("findmnt -n /tmp/other").ok());
    root.run("scrfs umount /scr").must();
}

/// Binds `/dev/log` in a `/dev` of its own, mounts, seals nothing, and prints what came.
const SYSLOG: &str = r#"
mkdir /run/dev
mount --rbind /dev /run/dev
mount -t tmpfs tmpfs /dev
for name in null zero full random urandom tty fuse; do touch /dev/$name; mount --bind /run/dev/$name /dev/$name; done
mkdir /dev/shm
mount --bind /run/dev/shm /dev/shm
cat >/tmp/listen.py <<'END'
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind("/dev/log")
print("bound", flush=True)
while True:
    print(listener.recv(65536).decode(), flush=True)
END
trap 'kill $(jobs -p)' EXIT
await() { for _ in {1..400}; do grep -q "$1" "$2" && return; sleep 0.05; done; cat "$2"; echo "no $1"; exit 1; }
python3 /tmp/listen.py >/tmp/syslog &
listener=$!
await bound /tmp/syslog
SCRFS_LOG_TO=syslog scrfs mount --job-id 7 /scr
kill "$listener"
wait "$listener" || true
rm /dev/log
# Nobody listens: the mount goes on, and what was lost is counted.
touch /scr/a
scrfs reload /scr
python3 /tmp/listen.py >/tmp/syslog.2 &
await bound /tmp/syslog.2
scrfs reload /scr
scrfs umount /scr
await 'log lines lost here' /tmp/syslog.2
cat /tmp/syslog /tmp/syslog.2
echo end of syslog
cat /run/scrfs/root/scr.7/daemon.log
"#;

#[test]
fn a_daemons_log_goes_to_syslog() {
    let cluster = Cluster::up(1);
    let script = format!("cat >/tmp/session <<'SESSION'\nset -eum\n{SYSLOG}\nSESSION\n");
    cluster.on(0).run(&script).must();
    let ran = cluster.on(0).run("unshare --mount --propagation private bash /tmp/session");
    let (syslog, file) = ran.must().split_once("end of syslog").unwrap();
    // LOG_DAEMON, with the severity of informational messages, and no date or level of our own.
    let first = syslog.lines().find(|line| line.starts_with('<')).unwrap_or_default();
    assert!(first.starts_with("<30>scrfs["), "{ran}");
    assert!(syslog.contains("log lines lost here: "), "{ran}");
    assert_eq!(file.trim(), "", "{ran}");
}
