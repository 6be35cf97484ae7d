use std::ffi::OsString;

use super::*;
use crate::launcher::{Launcher, Said, Task};

/// One launcher for each of a thousand would take minutes after every crash.
#[test]
fn doubt_takes_a_bounded_number_of_launchers() {
    let all: Vec<usize> = (0..1000).collect();
    for (hosts, most, sizes) in [
        (1000, 1, vec![1000]),
        (1000, AT_ONCE, [vec![63; 15], vec![55]].concat()),
        (16, AT_ONCE, vec![1; 16]),
        (3, AT_ONCE, vec![1; 3]),
        (0, AT_ONCE, vec![]),
    ] {
        let got: Vec<usize> = groups(&all[..hosts], most).map(<[usize]>::len).collect();
        assert_eq!(got, sizes, "{hosts} {most}");
        assert_eq!(groups(&all[..hosts], most).flatten().copied().collect::<Vec<_>>(), all[..hosts]);
    }
}

#[test]
fn nodes_that_are_there_are_not_given_up_for_their_scheduler() {
    let restarting = BTreeSet::from([1, 2]);
    for (answers, missing, is_right, expected) in [
        (true, &[][..], true, false),
        (false, &[], true, false),
        (false, &[1], false, true),
        (true, &[1], false, false),
        (true, &[1, 2], true, true),
        (true, &[1, 3], true, false),
    ] {
        let blamed = blames_scheduler(answers, missing, &restarting, is_right);
        assert_eq!(blamed, expected, "{answers} {missing:?} {is_right}");
    }
}

#[test]
fn hosts_with_and_without_domain() {
    assert!(same_host("n1.cluster", "n1") && same_host("n1", "n1") && !same_host("n1", "n10"));
    assert!(!same_host("10.0.0.2", "10.0.0.3") && same_host("10.0.0.2", "10.0.0.2"));
}

/// A script in place of a launcher; `$1` is the list of hosts.
#[derive(Debug)]
struct Script(String);

impl Launcher for Script {
    fn name(&self) -> &'static str {
        "script"
    }
    fn line(&self, task: Task) -> CommandLine {
        let words = ["-c", &self.0, "script", &task.hosts.join(",")].map(OsString::from);
        let environment = std::env::vars_os().collect();
        CommandLine { program: "/bin/sh".into(), arguments: words.to_vec(), environment, directory: None }
    }
    fn understand(&self, _: &str, _: u32) -> Option<Said> {
        None
    }
}

fn looker(script: &str) -> Looker {
    let launcher: Arc<dyn Launcher> = Arc::new(Script(script.to_owned()));
    let (environment, user_file) = (BTreeMap::new(), BTreeMap::new());
    Looker {
        lines: Lines { launcher: Arc::clone(&launcher), service: launcher, environment, user_file },
        ctl: "/bin/false".into(),
        mount: "/scr".into(),
        checkpoint_path: None,
        token: String::new(),
        here: "here".to_owned(),
        awaited: Arc::default(),
        answered: Arc::default(),
    }
}

/// Anybody can end an srun by what is sent to its ports.
#[test]
fn a_launcher_that_dies_itself_is_asked_again_and_no_node_is_blamed() {
    let place = tempfile::tempdir().unwrap();
    let mark = place.path().join("died").display().to_string();
    let report = Report { host: "n1".to_owned(), newest: 7, ..Report::default() }.line();
    let dies = format!("test -e {mark} || {{ touch {mark}; kill -SEGV $$; }}; echo '{}'", report.trim_end());
    let looks = looker(&dies).look(0, &["n1".to_owned()], (true, Doubt::None), |_| ());
    assert_eq!((looks[0].problem.clone(), looks[0].newest), (None, 7));
    // While somebody goes on, all are asked again; who asks is told why.
    let looker = looker("kill -SEGV $$");
    let told = scrfs::lock::Mutex::leaf(Vec::new());
    let say = |text: &str| {
        told.lock().push(text.to_owned());
        looker.hurry();
    };
    let looks = looker.look(0, &["n1".to_owned()], (true, Doubt::None), say);
    let what = "script was ended by signal 11, which is not the nodes' fault";
    assert_eq!((looks[0].problem.as_deref(), looks[0].silent), (Some(what), true));
    assert_eq!(*told.lock(), [format!("nodes cannot be asked, as {what}: asking again")]);
    // A code is its own, or that of what it has started.
    let looker = self::looker("exit 139");
    let looks = looker.look(0, &["n1".to_owned()], (true, Doubt::None), |_| ());
    assert_eq!(looks[0].problem.as_deref(), Some("it cannot be reached (script ended with exit code 139)"));
}

#[test]
fn this_host_needs_no_launcher_to_be_asked_while_a_program_runs() {
    let hosts = ["here".to_owned(), "n1".to_owned()];
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("asked");
    let looker = looker(&format!("echo $1 >> {}", file.display()));
    looker.look(0, &hosts, (false, Doubt::OfOne), |_| ());
    assert!(std::fs::read_to_string(&file).unwrap().lines().all(|line| line == "n1"));
    looker.look(0, &hosts, (true, Doubt::OfOne), |_| ());
    assert!(std::fs::read_to_string(&file).unwrap().contains("here"));
}

/// As ranks with much memory are.
#[test]
fn a_node_on_which_killed_processes_are_still_ending_is_asked_until_they_have_ended() {
    let place = tempfile::tempdir().unwrap();
    let mark = place.path().join("asked").display().to_string();
    let problem = Some("process 7 of the former run does not end".to_owned());
    let ending =
        Report { host: "n1".to_owned(), problem, ending: Some(7), orphans: 2, ..Report::default() }.line();
    let good = Report { host: "n1".to_owned(), newest: 7, ..Report::default() }.line();
    let (ending, good) = (ending.trim_end(), good.trim_end());
    let script = format!("if test -e {mark}; then echo '{good}'; else touch {mark}; echo '{ending}'; fi");
    let told = scrfs::lock::Mutex::leaf(Vec::new());
    let say = |text: &str| told.lock().push(text.to_owned());
    let looks = looker(&script).look(0, &["n1".to_owned()], (true, Doubt::None), say);
    assert_eq!((looks[0].problem.as_deref(), looks[0].newest, looks[0].orphans), (None, 7, 2));
    assert_eq!(*told.lock(), ["n1: killed processes of the former run are still ending"]);
    // Nobody waits for this look.
    std::fs::remove_file(&mark).unwrap();
    let looks = looker(&script).look(1, &["n1".to_owned()], (true, Doubt::None), |_| ());
    assert!(looks[0].ending && looks[0].problem.is_some(), "{looks:?}");
}

#[test]
fn nodes_are_slow_whose_daemon_is_late_or_who_do_not_answer_in_time() {
    let hosts = ["n1", "n2", "n3", "n4"].map(str::to_owned);
    let mut asked = Asked::of(&hosts, &BTreeMap::new());
    asked.take(0, Err(Silence::TooSlow(LIMIT)));
    asked.take(1, Ok(Report { late: true, ..Report::default() }));
    asked.take(2, Ok(Report::default()));
    asked.take(3, Err(Silence::Unreachable("no route".to_owned())));
    assert_eq!([0, 1, 2, 3].map(|at| asked.is_slow(at)), [true, true, false, false]);
}
