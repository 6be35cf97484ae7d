//! What people read when something is wrong: a line that says what, a line with a remedy, and the
//! documented exit code. All of it is in `snapshots/`, one page a program, so that a change of
//! words is seen as one. `INSTA_UPDATE=always cargo test -p scrfs-tests messages` writes the pages.

use std::fmt::Write as _;

use scrfs_harness::Cluster;
use scrfs_harness::cluster::workspace;
use scrfs_harness::place::JOB_UID;
use scrfs_harness::shell::Ran;

/// Exit codes that the manual knows; what a program of the user's gives is its own. 32 is
/// mount(8)'s; 75 and 78 are the coordinators', which only scrfs-run sees.
const CODES: [i32; 6] = [0, 1, 2, 32, 75, 78];

/// Commands, as root where the line begins with `#` and as the job's user where it begins with `$`.
fn page(cluster: &Cluster, lines: &[&str], broken: &mut Vec<String>) -> String {
    let mut page = String::new();
    for line in lines {
        let (who, command) = line.split_once(' ').expect("who and what");
        let uid = if who == "#" { 0 } else { JOB_UID };
        let ran = cluster.on(0).user(uid).run(&format!("cd /tmp/bad; {command}"));
        let line = told(line);
        let _ = write!(page, "{line}\n{}{}[exit {}]\n\n", told(&ran.out), told(&ran.err), ran.code);
        broken.extend(problem(&ran).map(|problem| format!("{line}: {problem}: {ran}")));
    }
    page
}

/// Nothing that differs from run to run.
fn told(text: &str) -> String {
    let top = workspace().display().to_string();
    let mut text = text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]").replace(&top, "[TOP]");
    for before in ["process ", "kill "] {
        let parts = text.split(before).enumerate();
        let without = parts.map(|(nth, part)| match part.trim_start_matches(|c: char| c.is_ascii_digit()) {
            rest if nth > 0 && rest.len() < part.len() => format!("[PID]{rest}"),
            _ => part.to_owned(),
        });
        text = without.collect::<Vec<_>>().join(before);
    }
    text
}

/// Of what a coordinator that was started alone says: without times, and without what its MPI adds.
fn of_coordinator(page: &str) -> String {
    let mut is_mpi = false;
    let mut kept = String::new();
    for line in page.lines() {
        if line.starts_with("-----") {
            is_mpi = !is_mpi;
        } else if !is_mpi && !line.contains("ORTE_ERROR_LOG") {
            let words: Vec<&str> =
                line.split(' ').filter(|word| !word.ends_with('Z') || !word.starts_with("20")).collect();
            kept += &words.join(" ");
            kept.push('\n');
        }
    }
    kept
}

/// What breaks the rule that holds for all of them.
fn problem(ran: &Ran) -> Option<&'static str> {
    let remedies = ["hint: ", "For more information, try '--help'.", "Usage: "];
    if !CODES.contains(&ran.code) {
        return Some("an exit code that is not documented");
    } else if ran.code == 0 && !ran.err.contains("hint: ") {
        return Some("it was not refused, and nothing was said");
    } else if ran.err.contains("panicked") {
        return Some("a panic");
    } else if !remedies.iter().any(|word| ran.err.contains(word)) {
        return Some("no remedy");
    }
    // Clap's own have several lines, ours have two, and before them what scrfs-run has to say by
    // the way.
    let by_the_way = ["scrfs-run: launcher: ", "scrfs-run: warning: ", " is left out from now on: "];
    let said = of_coordinator(&ran.err);
    let lines = said.lines().filter(|line| !by_the_way.iter().any(|words| line.contains(words)));
    (ran.err.contains("hint: ") && lines.count() > 2).then_some("not one clear line and a remedy")
}

/// A node with files that are wrong.
fn node() -> Cluster {
    let cluster = Cluster::up(1);
    let make = "mkdir -p /tmp/bad/closed /tmp/bad/full /tmp/bad/mine && cd /tmp/bad && chmod 700 closed && chmod 777 mine && \
                touch full/file plain && \
                printf 'SCR_FLUSH=often\\n' > number.conf && printf 'SCR_FLUSH\\n' > line.conf && \
                printf 'SCR_COPY_TYPE=RAID\\n' > word.conf && printf 'SCR_CACHE_BASE=/dev/shm\\nCKPT=0 STORE=/nvme\\n' \
                > store.conf && head -c 2000000 /dev/zero > long.conf && mkfifo pipe.conf && printf 'no hash file' > junk.scr";
    cluster.on(0).run(make).must();
    // What a job that is gone has left; a scheduler that does not answer.
    let more = "mkdir -p -m 700 /run/scrfs/root/scr.9 && mkdir -p /tmp/bad/away && cd /tmp/bad && \
                printf '#!/bin/sh\necho squeue: error: Unable to contact slurm controller >&2\nexit 1\n' > away/squeue && \
                chmod 755 away/squeue && mkdir -p alone job/.scr && cp -L /run/sim/bin/scrfs-run alone/ && \
                mkdir -p odd/.scr && mkfifo odd/.scr/status && printf 'no event\\n' >odd/.scr/events && chown -R 1000 job";
    cluster.on(0).run(more).must();
    cluster
}

#[test]
fn every_mistake_has_a_clear_line_a_remedy_and_its_exit_code() {
    let cluster = node();
    let mut broken = Vec::new();
    let scrfs = page(
        &cluster,
        &[
            "# scrfs mnt /scr",
            "# scrfs mount --frobnicate /scr",
            "# scrfs mount plain/below",
            "$ scrfs mount /no/such/directory",
            "# scrfs mount plain",
            "# scrfs mount full",
            "# scrfs mount --user nobody-here /scr",
            "# scrfs mount --user ../x /scr",
            "# scrfs mount --job-id a/b /scr",
            "# scrfs mount --checkpoint-path ../x /scr",
            "# scrfs mount --checkpoint-path .scrfs /scr",
            "# scrfs mount --cache-base relative /scr",
            "# scrfs mount --cache-base /no/such/store,/nor/this /scr",
            "# scrfs mount --cache-base /scr /scr",
            "$ SCR_CONF_FILE=number.conf scrfs mount mine",
            "$ SCR_CONF_FILE=line.conf scrfs mount mine",
            "$ SCR_CONF_FILE=word.conf scrfs mount mine",
            "$ SCR_CONF_FILE=store.conf scrfs mount mine",
            "$ SCR_CONF_FILE=long.conf scrfs mount mine",
            "$ SCR_CONF_FILE=none.conf scrfs mount mine",
            "$ SCR_CONF_FILE=pipe.conf scrfs mount mine",
            "# SCRFS_NODE_TIMEOUT=0 scrfs mount /scr",
            "# SCRFS_SEAL_TIMEOUT=soon scrfs mount /scr",
            "# SCRFS_CACHE_BYTES=much scrfs mount /scr",
            "# SCRFS_DATASET_PATTERN='(' scrfs mount /scr",
            "# SCR_NODELIST='n[4-1]' scrfs mount /scr",
            "$ scrfs mount /scr",
            "$ scrfs mount closed",
            "$ PATH=/run/sim/bin scrfs mount mine",
            "# scrfs umount /no/such/directory",
            "# scrfs reload /scr",
            "# SCRFS_LOG_TO=printer scrfs umount /scr",
            "# scrfs doctor --hosts 'n['",
            "# scrfs doctor --jsn",
            "# scrfs doctor --user nobody-here",
            "# scrfs umount --purge /scr",
            "$ scrfs try /proc/x",
            "$ scrfs try full",
            "$ scrfs try --stop mine",
            "$ scrfs try --stop --foreground mine",
            "# PATH=/run/sim/bin scrfs sweep",
            "# PATH=/tmp/bad/away:$PATH scrfs sweep",
            "# scrfs sweep --alive 1 --scheduler",
            "# scrfs sweep --limit soon",
            "# scrfs sweep --limit 18446744073709551615",
            "# scrfs sweep --save 31536001",
            "# scrfs umount --job-id 7 --save 18446744073709551615",
            "# scrfs umount --job-id 7 --save -5",
            "# scrfs sweep --alive ''",
            "# scrfs sweep --alive '1;2'",
            "# scrfs sweep --alive none,3",
            "# scrfs doctor >/dev/full",
            "$ scrfs mount \"$(printf './no\\n\\033[31mplace')\"",
            "$ scrfs try \"$(printf './no\\n\\033[31mplace/x')\"",
            "# scrfs umount --purge --job-id ''",
            "# scrfs mount --user '' --job-id 7 /scr",
            "# exec 3>&- 4>&- 5>&- 6>&- 7>&-; ulimit -n 8; scrfs mount /scr",
            "$ ulimit -f 1000; scrfs mount mine",
            "# scrfs places --user nobody-here",
            "# scrfs --help >/dev/full",
            "# scrfs mount --job-id $(head -c 50000 /dev/zero | tr '\\0' x)/ /scr",
            "# scrfs mount --$(head -c 50000 /dev/zero | tr '\\0' x) /scr",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs", scrfs);
    let run = page(
        &cluster,
        &[
            "$ scrfs-run",
            "$ scrfs-run --nodes 0 -- true",
            "$ scrfs-run --nodes two -- true",
            "$ scrfs-run --hosts node0 --nodes 2 -- true",
            "$ scrfs-run --hosts 'node[' -- true",
            "$ scrfs-run --ranks-per-node 0 -- true",
            "$ scrfs-run --frobnicate -- true",
            "$ scrfs-run --hosts '' -- true",
            "$ scrfs-run --launcher none -- /etc/passwd",
            "$ scrfs-run --launcher none -- \"$(printf './no\\nprogram')\"",
            "$ scrfs-run -- ''",
            "$ scrfs-run --launcher-arg '' -- true",
            "$ scrfs-run --flush-limit 18446744073709551615 -- true",
            "$ scrfs-run --ready-limit 0 -- true",
            "$ SCR_CONF_FILE=number.conf scrfs-run -- true",
            "$ SCR_CONF_FILE=closed/x scrfs-run -- true",
            "$ SCR_RUNS=many scrfs-run -- true",
            "$ scrfs-run true",
            "$ scrfs-run --nodes 1 ./simulate --steps 3",
            "$ scrfs-run --launcher x -- true",
            "$ scrfs-run --name a/b -- true",
            "$ SCRFS_HALT_SIGNAL=x scrfs-run -- true",
            "$ SLURM_STEP_NUM_TASKS=4 scrfs-run -- true",
            "$ /tmp/bad/alone/scrfs-run -- true",
            "$ scrfs-run --launcher mpirun --launcher-program /no/such/mpirun -- true",
            "$ scrfs-run --launcher mpirun --launcher-program /etc -- true",
            "$ scrfs-run --coordinator /etc -- true",
            "$ scrfs-run --coordinator /etc/passwd -- true",
            "$ PATH=/run/sim/bin scrfs-run --launcher mpirun -- true",
            "$ cd mine; scrfs-run --hosts node0 -- true",
            "$ cd mine; scrfs-run --hosts node0,node7 -- true",
            "# cd job; env -u OMPI_ALLOW_RUN_AS_ROOT scrfs-run --hosts node0 -- true",
            "$ cd mine; SCRFS_END_TIME=5 scrfs-run --hosts node0 -- true",
            "$ cd mine; echo SCRFS_END_TIME=5 >past.conf; SCR_CONF_FILE=past.conf scrfs-run --hosts node0 -- true",
            "$ SCR_PREFIX=/tmp/../scr/saved scrfs-run -- true",
            "$ cd mine; echo node0 >hosts; PBS_JOBID=7 PBS_NODEFILE=hosts SCRFS_END_TIME=9999999999 scrfs-run --launcher pbs -- true",
            "$ scrfs-run --version >/dev/full",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-run", run);
    cluster.on(0).run(&format!("scrfs mount --user {JOB_UID} --job-id 7 /scr")).must();
    let elsewhere = page(
        &cluster,
        &["$ cd mine; SCR_JOB_ID=8 SCRFS_END_TIME=9999999999 scrfs-run --hosts node0 -- true"],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-run-elsewhere", elsewhere);
    // Root's, of which the user may know nothing.
    cluster.on(0).run("scrfs umount /scr && scrfs mount /scr").must();
    let ctl = page(
        &cluster,
        &[
            "$ scrfs-ctl statsu",
            "$ scrfs-ctl status --mount /no/such/directory",
            "$ scrfs-ctl status --mount /scr",
            "$ scrfs-ctl list --mount plain",
            "$ scrfs-ctl records maybe",
            "$ scrfs-ctl wait --limit soon",
            "$ scrfs-ctl print junk.scr",
            "$ scrfs-ctl print none.scr",
            "$ scrfs-ctl print pipe.conf",
            "$ scrfs-ctl print closed/x.scr",
            "$ scrfs-ctl halt --prefix plain",
            "$ scrfs-ctl halt --prefix full",
            "$ scrfs-ctl halt --prefix job --before soon",
            "$ scrfs-ctl halt --prefix job --checkpoints few",
            "$ scrfs-ctl wait --limit -1",
            "$ scrfs-ctl halt --prefix job --unset all",
            "$ scrfs-ctl halt --prefix job --reason ''",
            "$ SCR_CONF_FILE=number.conf scrfs-ctl halt --prefix job",
            "$ scrfs-ctl scavenge --prefix full",
            "$ scrfs-ctl flush --mount plain",
            "# scrfs-ctl flush --mount /scr",
            "# scrfs-ctl flush ck.1 --mount /scr",
            "# scrfs-ctl flush --limit 3",
            "$ scrfs-ctl wait ck.1 --mount plain",
            "# scrfs-ctl wait ck.1 --limit 0 --mount /scr",
            "# scrfs-ctl wait --flushed",
            "$ PATH=/tmp/bad/away:$PATH scrfs-ctl jobs",
            "$ scrfs-ctl jobs --mount /scr",
            "$ scrfs-ctl events --prefix job",
            "$ scrfs-ctl events --prefix closed",
            "$ scrfs-ctl events --prefix odd",
            "$ scrfs-ctl status --prefix odd",
            "$ scrfs-ctl events -n some",
            "$ scrfs-ctl status --job 'a b'",
            "$ PATH=/tmp/bad/away:$PATH scrfs-ctl status --job 7",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-ctl", ctl);
    let coordinator = page(
        &cluster,
        &[
            "$ scrfs-coordinator",
            "$ scrfs-coordinator --attach --restart",
            "$ scrfs-coordinator --attach --frobnicate",
            "# SCR_FLUSH=often scrfs-coordinator --restart",
            "# SCR_CONF_FILE=none.conf scrfs-coordinator --restart",
            "# scrfs-coordinator --restart --program-hosts node0,node1",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-coordinator", of_coordinator(&coordinator));
    let mounted = page(
        &cluster,
        &[
            "$ scrfs umount /scr",
            "$ scrfs reload /scr",
            "# scrfs mount --job-id 8 /scr",
            "# scrfs mount /mnt",
            "# scrfs umount --job-id local --purge /mnt",
            "# scrfs umount --job-id local --save 1 /no/such/directory",
            "# cd /scr; scrfs umount /scr",
            "# scrfs try --stop /scr",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-mounted", mounted);
    let helper = workspace().join("deploy/layout/mount.fuse.scrfs").display().to_string();
    let helped = [
        "scrfs",
        "scrfs /mnt -o frobnicate=1",
        "scrfs /mnt -o ro",
        "scrfs /mnt -N /proc/1/ns/mnt",
        "scrfs /mnt -x",
        "scrfs /mnt -o job_user=nobody-here",
        "scrfs /scr -o job_id=8",
    ]
    .map(|arguments| format!("# {helper} {arguments}"));
    let helped = page(&cluster, &helped.each_ref().map(String::as_str), &mut broken);
    insta::assert_snapshot!("mount-fuse-scrfs", helped);
    let script = workspace().join("deploy/package").display().to_string();
    let tools = "mkdir -p tools; cd tools; for t in bash dirname mkdir rm cat; do ln -sf $(command -v $t) .; done; cd ..;";
    let package = [
        format!("# {script} --frobnicate"),
        format!("# {script} --programs"),
        format!("# {script} --programs /no/such/directory"),
        format!("# {tools} PATH=/tmp/bad/tools {script}"),
    ];
    let package = page(&cluster, &package.each_ref().map(String::as_str), &mut broken);
    insta::assert_snapshot!("package", package);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// `scrfs doctor` is of the mount's half.
#[cfg(feature = "fuse")]
mod doctor {
    use scrfs::doctor::checks;
    use scrfs::doctor::facts::{Facts, Kind, Leftovers, Parameters, Prefix, Program, Rights, Room, Store};
    use scrfs::doctor::skew::Skew;

    fn room(free: u64) -> Room {
        let (memory, writable, own) = (true, true, true);
        Room { memory, writable, size: 64 << 30, free, inodes: 0, free_inodes: 0, own, made_in: None }
    }

    /// A node on which everything is wrong that can be at once.
    fn ill(root: bool) -> Facts {
        let absent = |name| Program { name, path: None, says: Err("not found".into()) };
        let loader = "error while loading shared libraries: libmpi.so.40: cannot open shared object file";
        let program =
            |name: &'static str, says| Program { name, path: Some(format!("/usr/bin/{name}").into()), says };
        Facts {
            kernel: if root { "6.1.0-37-amd64" } else { "5.4.0" }.into(),
            device: Err("No such file or directory (os error 2)".into()),
            rights: Rights { root, admin: false, helper: None },
            parameters: Ok(Parameters {
                system_file: true,
                warnings: vec!["/etc/scrfs.conf:3: SCR_FLUSHH is unknown".into()],
                user: "ann".into(),
                job_id: "77".into(),
                in_job: true,
                end_time: Err("squeue: error: Unable to contact slurm controller".into()),
                cache_bytes: 0,
            }),
            launchers: vec![absent("mpirun"), program("srun", Err("srun: fatal: no configuration".into()))],
            mpi_types: Some(Err("srun: fatal: no configuration".into())),
            programs: vec![
                program("scrfs-coordinator", Err(loader.into())),
                program("scrfs-ctl", Ok("scrfs-ctl 0.0.9".into())),
                absent("scrfs-run"),
            ],
            version: "0.1.0",
            prefix: Some(Prefix {
                path: "/work/ann".into(),
                user: "ann".into(),
                kind: Ok(Kind::Local("ext4")),
                strange: Vec::new(),
                write: Err("Permission denied (os error 13)".into()),
            }),
            stores: vec![
                Store { path: "/nvme".into(), room: Err("No such file or directory (os error 2)".into()) },
                Store { path: "/dev/shm".into(), room: Ok(room(60 << 30)) },
            ],
            control: Some(Store { path: "/run/scrfs".into(), room: Ok(room(1 << 20)) }),
            memory: 32 << 30,
            cgroup: Some(16 << 30),
            leftovers: Leftovers {
                directories: vec!["/run/scrfs/ann/scr.12".into()],
                mounts: vec!["/scr/12".into()],
                cut_short: Some("no answer in 5 s".into()),
            },
            priority: Err("Operation not permitted (os error 1)".into()),
            descriptors: (1024, 1024),
            clocks: vec![
                ("node1".into(), Ok(Skew { least: 7.9, most: 8.1 })),
                ("node2".into(), Err("ssh: connect to host node2 port 22: No route to host".into())),
            ],
            now: 4000,
        }
    }

    #[test]
    fn what_the_doctor_finds_has_a_remedy() {
        let text = format!(
            "as root\n\n{}\nas a user\n\n{}",
            checks::all(&ill(true)).for_people(),
            checks::all(&ill(false)).for_people()
        );
        insta::assert_snapshot!("scrfs-doctor", text);
        let ill = text.lines().filter(|line| line.starts_with("warn") || line.starts_with("FAIL")).count();
        assert_eq!(text.matches("hint: ").count(), ill, "{text}");
        assert!(ill > 30, "{ill}");
    }
}
