use std::os::unix::fs::symlink;

use super::super::Options;
use super::super::lock::Lock;
use super::super::stores::tests::{options, table_of};
use super::*;
use crate::control::directory::{SUPERVISOR_LOCK, WORKER_LOCK};
use crate::patience::until;
use crate::store::Store;

#[test]
fn directories_tell_their_jobs() {
    let of = |path: &str| of_directory(Path::new(path)).map(|job| (job.user, job.id));
    let job = |user: &str, id: &str| Some((user.to_owned(), id.to_owned()));
    assert_eq!(of("/run/scrfs/ann/scr.77"), job("ann", "77"));
    assert_eq!(of("/dev/shm/ann.0123456789abcdef/scr.77.batch"), job("ann", "77.batch"));
    assert_eq!(of("/dev/shm/ann.b/scr.7"), job("ann.b", "7"));
    assert_eq!((of("/dev/shm/ann/other"), of("/scr.7")), (None, None));
}

#[test]
fn a_purge_takes_this_jobs_and_follows_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["run/ann/scr.7", "run/ann/scr.77", "shm/ann/scr.7/tree/d", "shm/bob/scr.7", "kept"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("kept/file"), "").unwrap();
    symlink(at("kept"), at("shm/ann/scr.7/tree/d/out")).unwrap();
    symlink(at("kept"), at("run/ann/scr.7/out")).unwrap();
    let bases = Bases { control: at("run"), caches: vec![at("shm")] };
    let order = |user: Option<&str>, purge| Order {
        job_id: "7".into(),
        user: user.map(str::to_owned),
        mount_point: None,
        unsaved: Unsaved::GiveUp,
        purge,
        despite: Despite::Nothing,
    };
    assert!(matches!(unmount(&order(None, true), &bases), Err(MountError::WhoseJob { .. })));
    assert_eq!(unmount(&order(Some("ann"), false), &bases).unwrap(), Vec::<String>::new());
    assert_eq!(unmount(&order(Some("ann"), true), &bases).unwrap().len(), 2);
    let there = |name: &str| at(name).exists();
    assert!(!there("run/ann/scr.7") && !there("shm/ann"));
    assert!(there("run/ann/scr.77") && there("shm/bob/scr.7") && there("kept/file"));
    // Again: there is nothing to do.
    assert_eq!(unmount(&order(Some("ann"), true), &bases).unwrap(), ["job 7: nothing is here"]);
}

#[test]
fn datasets_that_nobody_can_save_stay() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("shm/ann/scr.7");
    let dataset = cache.join("dataset.3");
    fs::create_dir_all(&dataset).unwrap();
    let bases = Bases { control: dir.path().join("run"), caches: vec![dir.path().join("shm")] };
    let order = |unsaved| Order {
        job_id: "7".into(),
        user: None,
        mount_point: None,
        unsaved,
        purge: true,
        despite: Despite::Nothing,
    };
    let saves = order(Unsaved::Save(Duration::from_secs(1)));
    let kept = unmount(&saves, &bases).unwrap_err();
    assert!(matches!(&kept, MountError::NotSaved { why, .. } if why.contains("not mounted")), "{kept}");
    assert!(dataset.exists());
    // There is nothing to be saved, or nobody wants that.
    fs::remove_dir(&dataset).unwrap();
    unmount(&saves, &bases).unwrap();
    assert!(!cache.exists());
    fs::create_dir_all(&dataset).unwrap();
    unmount(&order(Unsaved::GiveUp), &bases).unwrap();
    assert!(!cache.exists());
}

/// What `scrfs mount` makes for a job, which has sealed a dataset.
fn mounted_once(options: &Options) -> Places {
    let control = Places::make_control(options).unwrap().control;
    let (_, places) = stores::settle(options, &control).unwrap();
    fs::create_dir(places.cache.join("dataset.3")).unwrap();
    Store::open(&control).unwrap().commit("node.scrinfo", &table_of(3, false)).unwrap();
    places
}

fn save_and_purge(options: &Options) -> Result<Vec<String>, MountError> {
    let order = Order {
        job_id: options.job_id.clone(),
        user: Some(options.user.clone()),
        mount_point: None,
        unsaved: Unsaved::Save(Duration::from_secs(1)),
        purge: true,
        despite: Despite::Nothing,
    };
    let caches = options.cache_bases.clone();
    unmount(&order, &Bases { control: options.control_base.clone(), caches })
}

#[test]
fn datasets_in_a_store_that_is_away_stay() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("st")).unwrap();
    let options = options(&at("run"), &[&at("st")]);
    let places = mounted_once(&options);
    fs::rename(at("st"), at("away")).unwrap();
    let kept = |problem: &str| {
        let kept = save_and_purge(&options).unwrap_err();
        let told = format!("its store {}: {problem}; datasets of this job", at("st").display());
        assert!(matches!(&kept, MountError::NotSaved { why, .. } if why.starts_with(&told)), "{kept}");
        assert!(places.control.join(stores::RECORD).exists());
    };
    kept("no such directory");
    symlink(at("nowhere"), at("st")).unwrap();
    kept("no such directory");
    fs::remove_file(at("st")).unwrap();
    fs::write(at("st"), "").unwrap();
    kept("not a directory");
    fs::remove_file(at("st")).unwrap();
    // It comes back, or the cache in it was given up.
    fs::rename(at("away"), at("st")).unwrap();
    assert!(save_and_purge(&options).unwrap_err().to_string().contains("not mounted"));
    fs::remove_dir_all(&places.cache).unwrap();
    save_and_purge(&options).unwrap();
    assert!(!places.control.exists());
}

/// Nobody knows what was in them.
#[test]
fn stores_of_which_the_record_cannot_be_read_keep_a_job() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir.path().join("run"), &[&dir.path().join("st")]);
    let places = mounted_once(&options);
    fs::remove_dir_all(&places.cache).unwrap();
    fs::write(places.control.join(stores::RECORD), "{").unwrap();
    assert!(matches!(save_and_purge(&options), Err(MountError::Record { .. })));
    assert!(places.control.exists());
}

#[test]
fn stores_without_datasets_may_be_away() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("st")).unwrap();
    let options = options(&at("run"), &[&at("st"), &at("none")]);
    let places = mounted_once(&options);
    fs::remove_dir(places.cache.join("dataset.3")).unwrap();
    fs::remove_file(places.control.join("node.scrinfo")).unwrap();
    fs::rename(at("st"), at("away")).unwrap();
    save_and_purge(&options).unwrap();
    assert!(!places.control.exists());
    // One that the job has never used.
    fs::rename(at("away"), at("st")).unwrap();
    let places = mounted_once(&options);
    fs::remove_dir(places.cache.join("dataset.3")).unwrap();
    save_and_purge(&options).unwrap();
    assert!(!places.control.exists() && !places.cache.exists());
}

#[test]
fn a_cache_in_the_control_directory_is_no_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let both = dir.path().join("shm");
    fs::create_dir(&both).unwrap();
    let options = options(&both, &[&both]);
    let places = mounted_once(&options);
    assert!(save_and_purge(&options).unwrap_err().to_string().contains("not mounted"));
    fs::remove_dir(places.cache.join("dataset.3")).unwrap();
    assert_eq!(save_and_purge(&options).unwrap().len(), 1);
    assert!(!places.control.exists());
}

#[test]
fn a_job_that_runs_is_not_purged() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("run/ann/scr.7");
    fs::create_dir_all(&control).unwrap();
    let bases = Bases { control: dir.path().join("run"), caches: Vec::new() };
    let job = Job { user: "ann".into(), id: "7".into() };
    let held = Lock::take(&control, WORKER_LOCK).unwrap();
    assert!(matches!(purge(&job, &bases), Err(MountError::Busy { .. })));
    drop(held);
    until("the end of the job", || purge(&job, &bases).is_ok());
    assert!(!control.exists());
}

#[test]
fn what_serves_a_job_works_or_is_to_be_ended() {
    let control = tempfile::tempdir().unwrap();
    let control = control.path();
    assert!(is_unserved(control));
    // Nothing is mounted for it where this process may look.
    let lock = Lock::take(control, SUPERVISOR_LOCK).unwrap();
    assert!(!is_unserved(control));
    drop(lock);
    let holds = "exec 9> \"$0\" && flock 9 && echo $$ >&9 && kill -STOP $$";
    let mut stopped = std::process::Command::new("sh");
    let mut stopped = stopped.args(["-c", holds]).arg(control.join(SUPERVISOR_LOCK)).spawn().unwrap();
    until("the stop", || is_stopped(stopped.id()));
    assert_eq!(supervisor_of(control), Some(stopped.id()));
    assert!(is_unserved(control));
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}

/// One that is missing is left to whoever knows who has used it.
#[test]
fn stores_that_cannot_be_read_are_not_empty() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for name in
        ["st/ann/scr.7/dataset.1", "st/ann/scr.7/dataset.2", "st/ann/scr.7/tree", "st/ann/scr.8", "st/x/y"]
    {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::create_dir_all(at("two/ann/scr.7/dataset.3")).unwrap();
    fs::write(at("file"), "").unwrap();
    symlink(at("none"), at("link")).unwrap();
    let found = |names: &[&str]| {
        let caches = names.iter().map(|name| at(name)).collect();
        in_stores(&Bases { control: at("run"), caches })
    };
    let cache = |job: &str, datasets| Cache { job: job.to_owned(), user: "ann".to_owned(), datasets };
    assert_eq!(found(&["none", "link", "st", "two"]).unwrap(), [cache("7", 3), cache("8", 0)]);
    let unknown = found(&["file", "st"]).unwrap_err().to_string();
    assert!(unknown.contains("cannot read the store") && unknown.contains("file"), "{unknown}");
}
