//! What a new administrator and a new user do who have the package and its pages, and nothing else:
//! mount, run LAMMPS, lose a node, read status, halt, resume. The programs and hooks are those of
//! the package; the lines are cut from its pages as people read them, and edited as a user would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use scrfs_harness::Config;
use scrfs_harness::cluster::bin_dir;
use scrfs_harness::shell::Ran;

use super::*;

/// The job's directory on the PFS.
const NAME: &str = "melt";

/// The package's files, as `/` gets them.
struct Package {
    place: tempfile::TempDir,
}

impl Package {
    /// As the `.deb` has it.
    fn unpacked() -> Self {
        let place =
            tempfile::Builder::new().prefix("scrfs-package-").tempdir_in("/tmp").expect("a directory");
        let root = place.path().join("root");
        Ran::of(Command::new("dpkg-deb").arg("-x").arg(crate::install::deb()).arg(&root)).must();
        // Of the simulated cluster, not of the package.
        fs::copy(bin_dir().join("scrfs-simnode"), root.join("usr/bin/scrfs-simnode")).expect("a copy");
        fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("chmod");
        Self { place }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.place.path().join("root/usr").join(path)
    }

    /// A manual page as a terminal shows it, without its margin.
    fn manual(&self, page: &str) -> String {
        let path = self.path(&format!("share/man/{page}.gz"));
        let shown = "MANWIDTH=200 man -E ascii -l \"$0\" | col -bx";
        let ran = Ran::of(Command::new("bash").args(["-euo", "pipefail", "-c", shown]).arg(path));
        let text = ran.must().lines().map(str::trim).collect::<Vec<_>>().join("\n");
        assert!(text.len() > 1000, "{ran}");
        text
    }

    fn document(&self, name: &str) -> String {
        fs::read_to_string(self.path("share/doc/scrfs").join(name)).expect("a document of the package")
    }
}

/// From the line that begins with `first` to the one that begins with `last`, both included.
#[track_caller]
fn cut(text: &str, first: &str, last: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(first));
    let mut found = Vec::new();
    loop {
        let line = lines.next().unwrap_or_else(|| panic!("no lines from {first} to {last} in\n{text}"));
        found.push(line);
        if line.starts_with(last) {
            return found.join("\n") + "\n";
        }
    }
}

/// What a user changes in something copied; each is there.
#[track_caller]
fn edited(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from} is not in\n{text}");
        text.replace(from, to)
    })
}

/// The user's files, by the pages: the batch script for three nodes and a spare, and LAMMPS's input
/// for a small box and more steps than there is time for.
fn furnish(package: &Package, directory: &Path) {
    let script = cut(&package.manual("man7/scrfs.7"), "#!/bin/sh", "exec scrfs-run");
    let script = edited(
        &script,
        &[
            ("--nodes=5", "--nodes=4"),
            ("--nodes 4", "--nodes 3"),
            ("--ntasks-per-node=4", "--ntasks-per-node=1"),
            ("exec ", "scrfs doctor\nexec "),
            ("./simulate", "lmp -in in.melt -log none"),
        ],
    );
    fs::write(directory.join("job.sh"), script).expect("the PFS can be written");
    let page = package.document("programs.md");
    let (_, lammps) = page.split_once("\nA whole input").expect("the page's input for LAMMPS");
    let code: Vec<&str> = lammps.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let input = cut(&code.join("\n"), "units", "if              \"${now} < 1000\"");
    let input = edited(&input, &[("0 20 0 20 0 20", "0 8 0 8 0 8"), ("${now} < 1000", "${now} < 1000000")]);
    fs::write(directory.join("in.melt"), input).expect("the PFS can be written");
}

/// Steps of LAMMPS's table in the job's output, in order of time.
fn steps(output: &str) -> Vec<u64> {
    let mut of_table = false;
    let mut found = Vec::new();
    for line in output.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Step") => of_table = true,
            Some("Loop") => of_table = false,
            Some(word) if of_table && words.count() >= 4 => found.extend(word.parse::<u64>().ok()),
            _ => {}
        }
    }
    found
}

#[test]
fn by_its_pages_alone_a_job_loses_a_node_is_halted_and_resumes() {
    let package = Package::unpacked();
    let cluster = Cluster::start(&Config { bin: package.path("bin"), ..Config::new(5) }).expect("a cluster");
    // The administrator: scrfs(7), "Under Slurm".
    let page = package.manual("man7/scrfs.7");
    let named = ["/usr/share/scrfs/slurm/", "/etc/slurm/scrfs/", "slurm.conf", "mpi.conf"];
    for told in named.into_iter().chain([SYSTEM.trim_end(), "--constraint=scrfs"]) {
        assert!(page.contains(told), "{told}: {page}");
    }
    let slurm = Slurm::start(&cluster, SYSTEM);
    let hooks = cluster.state().dir().join("slurm/hooks");
    for hook in fs::read_dir(package.path("share/scrfs/slurm")).expect("the package's hooks").flatten() {
        fs::copy(hook.path(), hooks.join(hook.file_name())).expect("a copy");
    }
    // The user.
    let directory = slurm.directory(JOB_UID, NAME);
    furnish(&package, &directory);
    let submit = || {
        let line = format!("cd {PFS}/{NAME} && sbatch --parsable --output=out.%j job.sh");
        Batch(slurm.client(JOB_UID, &line).must().to_owned())
    };
    let batch = submit();
    let await_step = |batch: &Batch, step: u64| {
        let last = || steps(&slurm.output(NAME, batch)).last().copied().unwrap_or(0);
        let seen = wait::poll(LIMIT, || (last() >= step).then_some(()));
        assert!(seen.is_some(), "step {step}: {}", slurm.account(NAME, batch));
    };
    await_step(&batch, 300);
    let output = slurm.output(NAME, &batch);
    assert!(output.contains("the job ends in"), "{output}");
    assert!(!output.contains("warn  launcher"), "{output}");
    assert!(!output.contains("warn  time limit") && !output.contains("warn  priority"), "{output}");

    // A node is lost: nobody needs to do anything.
    let before = steps(&slurm.output(NAME, &batch)).last().copied().unwrap_or(0);
    cluster.poweroff(1);
    let left_out = || {
        let output = slurm.output(NAME, &batch);
        output.lines().any(|line| line.contains("node1 ") && line.contains("is left out from now on"))
    };
    assert!(wait::poll(LIMIT, || left_out().then_some(())).is_some(), "{}", slurm.account(NAME, &batch));
    await_step(&batch, before + 400);
    let output = slurm.output(NAME, &batch);
    assert!(output.contains("Reading restart file"), "{output}");
    let after = steps(output.rsplit("Reading restart file").next().unwrap_or_default());
    assert!(after[0] > 0, "it began anew: {output}");

    // On the login node.
    let head = |line: &str| slurm.client(JOB_UID, line);
    let status = head(&format!("cd / && scrfs-ctl status --job {}", batch.0));
    let told = format!("the scheduler says of job {} of job: RUNNING", batch.0);
    assert!(status.must().contains(&told) && status.out.contains("protected"), "{status}");
    let halt = |option: &str| head(&format!("cd / && scrfs-ctl halt --prefix {PFS}/{NAME} {option}"));
    halt("").must();
    slurm.await_state(NAME, &batch, "FAILED", LIMIT);
    assert_eq!(slurm.field(&batch, "ExitCode"), "75:0", "{}", slurm.account(NAME, &batch));
    let shown = steps(&slurm.output(NAME, &batch)).last().copied().expect("steps");
    let saved = fs::read_link(directory.join("scr.current")).expect("what the job has left");
    let reached = saved.to_str().and_then(|name| name.strip_prefix("ck_")).and_then(|step| step.parse().ok());
    let reached: u64 = reached.unwrap_or_else(|| panic!("{saved:?}: {}", slurm.account(NAME, &batch)));
    // What it has printed last it may not have written out when it was ended: the C library keeps
    // up to 4 KiB, which is less than three of its reports.
    assert!((shown..=shown + 300).contains(&reached), "{reached}: {}", slurm.account(NAME, &batch));

    // Resumed: from where it was, to its end.
    assert!(halt("--list").must().contains("JOB_HALTED"));
    halt("--remove").must();
    let input = fs::read_to_string(directory.join("in.melt")).expect("the input");
    let input = edited(&input, &[("< 1000000", &format!("< {}", reached + 300))]);
    fs::write(directory.join("in.melt"), input).expect("the PFS can be written");
    let again = submit();
    slurm.await_state(NAME, &again, "COMPLETED", LIMIT);
    let output = slurm.output(NAME, &again);
    let steps = steps(&output);
    assert_eq!((steps.first(), steps.last()), (Some(&reached), Some(&(reached + 300))), "{output}");
    nothing_is_left(&cluster, [0, 2, 3, 4]);
}
