//! `scrfs/docs/semantics.md`, followed section by section: each of its headings has the test of
//! that name here, in the page's order, which tries what the section says where a program would
//! meet it. The other suites go into depth.

mod mounted;
mod sealed;
mod sealing;

use std::path::Path;

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, Running};
use scrfs_harness::place::SCR;

const HOSTS: [usize; 3] = [0, 1, 2];

/// Runs each statement of Python in /scr on `node`, one after the other in one process: it must end
/// as is said beside it, `ok` or the error's name.
#[track_caller]
fn try_out(job: &Job<'_>, node: usize, steps: &[(&str, &str)]) {
    const RUNNER: &str = "\
import errno, fcntl, mmap, os, stat, subprocess, sys, time
os.chdir(sys.argv[1])
def write(name, text, mode='w'):
    with open(name, mode) as file: file.write(text)
def read(name):
    with open(name) as file: return file.read()
def touch(name):
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644))
def eye(name, what):
    return os.getxattr(name, 'user.scrfs.' + what).decode()
for step in sys.argv[2:]:
    try:
        exec(step, globals())
        print('ok')
    except OSError as error:
        print(errno.errorcode[error.errno])
";
    let mut command = job.on(node).cmd("python3");
    command.args(["-c", RUNNER, SCR]).args(steps.iter().map(|step| step.0));
    let output = command.output().expect("python3 starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let all =
        || format!("on node {node}: {said}{}{}", String::from_utf8_lossy(&output.stderr), job.events(node));
    for (at, (statement, wanted)) in steps.iter().enumerate() {
        assert_eq!(said.lines().nth(at), Some(*wanted), "{statement}\n{}", all());
    }
    assert!(output.status.success(), "{}", all());
}

/// Mounts everywhere, coordinators and an idle program on the first three nodes.
fn begin<'a>(cluster: &'a Cluster, settings: &[(&str, &str)]) -> (Job<'a>, Running) {
    let mut job = Job::new(cluster, "semantics");
    for (name, value) in settings {
        job = job.set(name, value);
    }
    job.mount(0..cluster.size());
    let run = job.idle(&HOSTS);
    (job, run)
}

/// A dataset of a file of each node, without its marker.
fn save(job: &Job<'_>, nodes: &[usize], name: &str) {
    for node in nodes {
        let write = format!("write('{name}/f{node}', '{name} of {node}')");
        try_out(job, *node, &[(&format!("os.makedirs('{name}', exist_ok=True)"), "ok"), (&write, "ok")]);
    }
}

fn seal(job: &Job<'_>, nodes: &[usize], name: &str) {
    save(job, nodes, name);
    try_out(job, nodes[0], &[(&format!("touch('{name}/.complete')"), "ok")]);
}

/// Everything that `nodes` saved is seen on all of them.
#[track_caller]
fn is_whole(job: &Job<'_>, nodes: &[usize], of: &[usize], name: &str) {
    for node in nodes {
        for writer in of {
            let same = format!("assert read('{name}/f{writer}') == '{name} of {writer}'");
            try_out(job, *node, &[(&same, "ok")]);
        }
    }
}

#[test]
fn every_section_has_its_test() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let page = std::fs::read_to_string(top.join("scrfs/docs/semantics.md")).expect("the page");
    let named = |heading: &str| {
        let words: String = heading.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
        words.to_lowercase().split_whitespace().collect::<Vec<_>>().join("_")
    };
    let sections: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")))
        .map(named)
        .collect();
    let files = [include_str!("sealing.rs"), include_str!("sealed.rs"), include_str!("mounted.rs")];
    let tests: Vec<&str> = files
        .iter()
        .flat_map(|text| text.split("#[test]\nfn ").skip(1))
        .filter_map(|text| text.split_once("()").map(|(name, _)| name))
        .collect();
    assert_eq!(tests, sections);
}
