//! Many files (semantics: "Limits"): what a dataset costs does not grow with each of them.

use std::time::{Duration, Instant};

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::place::SCR;

/// On each of the two nodes.
const FILES: usize = 50_000;
const LIMIT: Duration = Duration::from_mins(5);

/// Small files in a hundred directories; the first digit of each tells the node.
fn write(job: &Job<'_>, node: usize) {
    let script = format!(
        "import os\nfor d in range(100):\n  os.makedirs(f'{SCR}/many/{{d}}', exist_ok=True)\nfor n in range({FILES}):\n  \
         open(f'{SCR}/many/{{n % 100}}/{node}.{{n}}', 'w').write(f'{node} {{n}}')\n"
    );
    let status = job.on(node).limit(LIMIT).cmd("python3").args(["-c", &script]).status();
    assert!(status.expect("python3 starts").success());
}

/// All of them are there, with the bytes that they were given.
fn compare(job: &Job<'_>, node: usize) {
    let script = format!(
        "import os\nseen = 0\nfor d in range(100):\n  with os.scandir(f'{SCR}/many/{{d}}') as entries:\n    for e in entries:\n      \
         node, n = e.name.split('.')\n      seen += 1\n      size = e.stat().st_size\n      \
         assert size == len(n) + 2, (e.path, size)\n      \
         assert int(n) % 997 or open(e.path).read() == f'{{node}} {{n}}', e.path\nassert seen == 2 * {FILES}, seen\n"
    );
    let output =
        job.on(node).limit(LIMIT).cmd("python3").args(["-c", &script]).output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_hundred_thousand_files_in_one_dataset() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "many");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1]);
    let mut told = Vec::new();
    let mut step =
        |what: &str, begun: Instant| told.push(format!("{what} {:.1} s", begun.elapsed().as_secs_f64()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for node in [0, 1] {
            let job = &job;
            scope.spawn(move || write(job, node));
        }
    });
    step("written", begun);
    let begun = Instant::now();
    let touched = job.on(0).limit(LIMIT).run(&format!("touch {SCR}/many/.complete"));
    assert!(touched.ok(), "{touched}{}{}", job.events(0), job.events(1));
    step("sealed", begun);
    let begun = Instant::now();
    compare(&job, 1);
    step("compared", begun);
    run.stop();
    cluster.poweroff(0);
    let begun = Instant::now();
    let mut run = job.idle_within(&[1, 2], LIMIT);
    step("restarted", begun);
    let begun = Instant::now();
    compare(&job, 2);
    step("compared", begun);
    eprintln!("{}", told.join(", "));
    run.stop();
}
