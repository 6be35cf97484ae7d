use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::control::MarkerScope;

fn sources(environment: &[(&str, &str)]) -> Sources {
    Sources {
        environment: environment.iter().map(|(n, v)| ((*n).to_owned(), OsString::from(v))).collect(),
        options: BTreeMap::new(),
        working_directory: PathBuf::from("/work/dir"),
        user: "ann".to_owned(),
        host: "node7".to_owned(),
        administrator: false,
        essential: None,
        reads_user_file: true,
    }
}

fn load(environment: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let files: BTreeMap<_, _> = files.iter().map(|(p, t)| (PathBuf::from(p), (*t).to_owned())).collect();
    Config::load(&sources(environment), |path: &Path| Ok(files.get(path).cloned()))
}

#[test]
fn a_lazy_restart_fetches_lazily_too() {
    let lazy = |environment: &[(&str, &str)]| {
        let restarting = load(environment, &[]).unwrap().restarting;
        (restarting.lazy, restarting.lazy_fetch)
    };
    assert_eq!(lazy(&[]), (false, false));
    assert_eq!(lazy(&[("SCRFS_FETCH", "lazy")]), (false, true));
    assert_eq!(lazy(&[("SCRFS_RESTART", "lazy")]), (true, true));
    assert_eq!(lazy(&[("SCRFS_RESTART", "lazy"), ("SCRFS_FETCH", "eager")]), (true, true));
}

#[test]
fn defaults_are_those_of_the_design() {
    let c = load(&[], &[]).unwrap();
    assert_eq!(c.prefix, Path::new("/work/dir"));
    assert_eq!((c.user.as_str(), c.job_id.as_str()), ("ann", "local"));
    assert_eq!(c.nodes, ["node7"]);
    assert_eq!((c.control_base, c.cache_bases), (PathBuf::from("/dev/shm"), vec![PathBuf::from("/dev/shm")]));
    assert_eq!(c.cache_bytes, 0);
    assert_eq!((c.cache_size, c.scheme, c.set_size, c.hop_distance), (2, Scheme::Xor, 8, 1));
    assert!(c.enable && c.restarting.distribute && c.restarting.fetch && !c.restarting.lazy);
    assert_eq!((c.flush_every, c.relaunch.runs, c.relaunch.min_nodes), (10, None, None));
    assert_eq!((c.seal_timeout, c.coordinator_wait), (Duration::from_secs(30), Duration::from_secs(10)));
    assert_eq!((c.jobs.block_bytes, c.jobs.encode_threads, c.list_max, c.fanout), (1 << 20, 1, 400_000, 16));
    assert!(c.warnings.is_empty());
}

#[test]
fn rules_of_sealing_and_loose_files() {
    let c = load(&[], &[]).unwrap();
    assert_eq!((c.sealing.clone(), c.loose.clone()), (SealRules::default(), LooseRules::default()));
    let c = load(
        &[
            ("SCRFS_MARKER", ".metadata,.complete"),
            ("SCRFS_MARKER_SCOPE", "ALL"),
            ("SCRFS_SEAL", "background"),
            ("SCRFS_COMMIT_ON_RENAME", r"ck\.\d+"),
            ("SCRFS_DATASET_PATTERN", r"melt\.(\d+)\..*"),
            ("SCRFS_LOOSE_MAX", "64k"),
            ("SCRFS_LOOSE_FILES", "3"),
        ],
        &[],
    )
    .unwrap();
    let Settings { sealing, loose, .. } = c.settings();
    assert_eq!((sealing.markers, sealing.scope), (vec![b".metadata".to_vec()], MarkerScope::All));
    assert_eq!((sealing.background, sealing.commit_on_rename.as_deref()), (true, Some(r"ck\.\d+")));
    assert_eq!(loose.pattern.as_deref(), Some(r"melt\.(\d+)\..*"));
    assert_eq!((loose.max_bytes, loose.max_names), (64 << 10, 3));
    for (name, bad) in [
        ("SCRFS_MARKER", "a/b"),
        ("SCRFS_MARKER_SCOPE", "some"),
        ("SCRFS_SEAL", "never"),
        ("SCRFS_COMMIT_ON_RENAME", "ck("),
        ("SCRFS_DATASET_PATTERN", "melt.*"),
        ("SCRFS_LOOSE_MAX", "0"),
        ("SCRFS_LOOSE_FILES", "x"),
        ("SCRFS_CHECKPOINT_PATH", "../x"),
        ("SCRFS_CHECKPOINT_PATH", ".scrfs"),
        ("SCRFS_GROUPS", "wanode"),
    ] {
        let text = load(&[(name, bad)], &[]).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains(bad), "{text}");
    }
}

#[test]
fn environment_beats_user_file_beats_system_file() {
    let user = ("/work/dir/.scrconf", "SCR_FLUSH=3\nSCR_SET_SIZE=4\n");
    let system = ("/etc/scrfs.conf", "SCR_FLUSH=5\nSCR_SET_SIZE=5\nSCR_CACHE_SIZE=5\n");
    let c = load(&[("SCR_FLUSH", "1")], &[user, system]).unwrap();
    assert_eq!((c.flush_every, c.set_size, c.cache_size), (1, 4, 5));
    let settings = c.settings();
    assert_eq!((settings.flush_every, settings.protections.usual.set_size, settings.cache_size), (1, 4, 5));
    assert_eq!(settings.prefix, b"/work/dir");
}

#[test]
fn user_file_follows_the_prefix_wherever_that_is_set() {
    let file = ("/pfs/job/.scrconf", "SCR_FLUSH=7\n");
    assert_eq!(load(&[("SCR_PREFIX", "/pfs/job")], &[file]).unwrap().flush_every, 7);
    assert_eq!(load(&[], &[file, ("/etc/scrfs.conf", "SCR_PREFIX=/pfs/job")]).unwrap().flush_every, 7);
    assert_eq!(
        load(&[("SCR_CONF_FILE", "mine")], &[("/work/dir/mine", "SCR_FLUSH=8")]).unwrap().flush_every,
        8
    );
    assert!(load(&[("SCR_CONF_FILE", "mine")], &[]).unwrap_err().to_string().contains("/work/dir/mine"));
}

#[test]
fn errors_name_file_line_field_and_value() {
    let e = load(&[], &[("/work/dir/.scrconf", "# x\nSCR_FLUSH=often\n")]).unwrap_err().to_string();
    for part in ["/work/dir/.scrconf:2", "SCR_FLUSH", "often", "whole number"] {
        assert!(e.contains(part), "{e}");
    }
    let e = load(&[("SCR_COPY_TYPE", "FILE")], &[]).unwrap_err().to_string();
    assert!(e.contains("environment: SCR_COPY_TYPE=\"FILE\"") && e.contains("XOR"), "{e}");
    let mut given = sources(&[("SCR_FLUSH", "2")]);
    given.give("SCR_JOB_ID", "--job-id", "a/b".into());
    let e = Config::load(&given, |_| Ok(None)).unwrap_err().to_string();
    assert!(e.starts_with("option --job-id: SCR_JOB_ID=\"a/b\": "), "{e}");
    let broken = |_: &Path| Err(io::Error::from_raw_os_error(13));
    assert!(Config::load(&sources(&[]), broken).unwrap_err().to_string().starts_with("/etc/scrfs.conf: "));
}

#[test]
fn a_prefix_that_is_away_is_no_error() {
    let away = |errno: i32| {
        move |path: &Path| {
            if path.starts_with("/work") { Err(io::Error::from_raw_os_error(errno)) } else { Ok(None) }
        }
    };
    // ENOTDIR, EACCES, EIO.
    for errno in [20, 13, 5] {
        let config = Config::load(&sources(&[]), away(errno)).unwrap();
        assert!(config.warnings[0].starts_with("/work/dir/.scrconf: "), "{:?}", config.warnings);
        assert!(Config::load(&sources(&[("SCR_CONF_FILE", "mine")]), away(errno)).is_err());
    }
    let garbage = |path: &Path| {
        if path.starts_with("/work") { Err(io::ErrorKind::InvalidData.into()) } else { Ok(None) }
    };
    assert!(Config::load(&sources(&[]), garbage).is_err());
}

#[test]
fn reed_solomon_needs_sets_larger_than_their_losses() {
    let rs = |more: &[(&str, &str)]| load(&[&[("SCR_COPY_TYPE", "rs")], more].concat(), &[]);
    let scheme = |more: &[(&str, &str)]| rs(more).map(|config| config.scheme).ok();
    assert_eq!(scheme(&[]), Some(Scheme::ReedSolomon { failures: 2 }));
    let three = [("SCR_SET_FAILURES", "3"), ("SCR_SET_SIZE", "4")];
    assert_eq!(scheme(&three), Some(Scheme::ReedSolomon { failures: 3 }));
    let e = rs(&[("SCR_SET_FAILURES", "3"), ("SCR_SET_SIZE", "3")]).unwrap_err().to_string();
    assert!(e.contains("SCR_SET_FAILURES=\"3\"") && e.contains("(3) than members of a set (3)"), "{e}");
    for bad in [("SCR_SET_FAILURES", "0"), ("SCR_SET_FAILURES", "65"), ("SCR_SET_SIZE", "97")] {
        assert!(rs(&[bad]).unwrap_err().to_string().contains(bad.0), "{bad:?}");
    }
    // Of no concern to the others.
    let xor = load(&[("SCR_SET_FAILURES", "9"), ("SCR_SET_SIZE", "97")], &[]).unwrap();
    assert_eq!((xor.scheme, xor.set_size), (Scheme::Xor, 97));
}

#[test]
fn what_the_user_file_sets_is_known() {
    let user = ("/work/dir/.scrconf", "SCR_FLUSH=3\nSCR_CNTL_BASE=/x\nSCR_SET_SIZE=4\n");
    let c = load(&[("SCR_FLUSH", "1")], &[user]).unwrap();
    let expected = [("SCR_FLUSH", "3"), ("SCR_SET_SIZE", "4")].map(|(n, v)| (n, v.to_owned()));
    assert_eq!(c.user_file, expected.into());
}

#[test]
fn what_has_no_effect_is_named() {
    let c = load(
        &[("SCRFS_MARKR", "x"), ("SCR_LOG_ENABLE", "1"), ("SCRFS_CURRENT", "ck.1"), ("SCRATCH", "/tmp")],
        &[("/work/dir/.scrconf", "SCR_FLUSHH=1\nCKPT=1 INTERVAL=1 BYPASS=1\n")],
    )
    .unwrap();
    let all = c.warnings.join("\n");
    for part in [
        "SCRFS_MARKR is unknown; ignored; is SCRFS_MARKER meant?",
        "SCR_LOG_ENABLE has no effect",
        ".scrconf:1: SCR_FLUSHH is unknown; ignored; is SCR_FLUSH meant?",
        ":2: BYPASS of CKPT has no effect",
    ] {
        assert!(all.contains(part), "{all}");
    }
    assert_eq!(c.warnings.len(), 4, "{all}");
}

#[test]
fn users_cannot_set_what_is_the_administrators() {
    let c = load(&[("SCR_CNTL_BASE", "/tmp/x")], &[]).unwrap();
    assert_eq!(c.control_base, Path::new("/dev/shm"));
    assert!(c.warnings[0].contains("SCR_CNTL_BASE is the administrator's"));
    let mut root = sources(&[("SCR_CNTL_BASE", "/tmp/x")]);
    root.administrator = true;
    assert_eq!(Config::load(&root, |_| Ok(None)).unwrap().control_base, Path::new("/tmp/x"));
    root.environment.clear();
    assert_eq!(Config::load(&root, |_| Ok(None)).unwrap().control_base, Path::new("/run/scrfs"));

    let system = ("/etc/scrfs.conf", "SCR_CACHE_BASE=/nvme,/dev/shm");
    assert_eq!(load(&[], &[system]).unwrap().cache_bases, [Path::new("/nvme"), Path::new("/dev/shm")]);
    let one = load(&[("SCR_CACHE_BASE", "/dev/shm")], &[system]).unwrap();
    assert_eq!(one.cache_bases, [Path::new("/dev/shm")]);
    let e = load(&[("SCR_CACHE_BASE", "/etc")], &[system]).unwrap_err().to_string();
    assert!(e.contains("permits only /nvme, /dev/shm"), "{e}");
}

#[test]
fn an_option_with_nothing_in_it_is_refused_where_an_empty_variable_is_the_default() {
    assert_eq!(load(&[("SCR_JOB_ID", "")], &[]).unwrap().job_id, load(&[], &[]).unwrap().job_id);
    for text in ["", " ", "\n", " , "] {
        let mut given = sources(&[]);
        given.give("SCR_JOB_ID", "--job-id", text.into());
        let error = Config::load(&given, |_| Ok(None)).unwrap_err();
        assert!(
            error.to_string().contains("--job-id") && error.hint().contains("leave --job-id out"),
            "{error}"
        );
    }
    let mut root = sources(&[("SCR_CNTL_BASE", "run/scrfs")]);
    root.administrator = true;
    let error = Config::load(&root, |_| Ok(None)).unwrap_err().to_string();
    assert!(error.contains("SCR_CNTL_BASE=\"run/scrfs\": expected an absolute path"), "{error}");
}

#[test]
fn the_bound_of_the_cache_is_in_bytes() {
    let system = ("/etc/scrfs.conf", "SCRFS_CACHE_BYTES=80GB");
    assert_eq!(load(&[], &[system]).unwrap().cache_bytes, 80 << 30);
    let none = load(&[("SCRFS_CACHE_BYTES", "0")], &[system]).unwrap();
    assert_eq!((none.cache_bytes, none.settings().cache_bytes), (0, 0));
    let e = load(&[("SCRFS_CACHE_BYTES", "much")], &[]).unwrap_err().to_string();
    assert!(e.contains("SCRFS_CACHE_BYTES=\"much\"") && e.contains("bytes"), "{e}");
}

#[test]
fn scheduler_fills_in() {
    let c = load(&[("SLURM_JOB_ID", "77"), ("SLURM_JOB_NODELIST", "n[1-2]")], &[]).unwrap();
    assert_eq!((c.job_id.as_str(), c.nodes), ("77", vec!["n1".to_owned(), "n2".to_owned()]));
    let c = load(&[("SLURM_JOB_ID", "77"), ("SCR_JOB_ID", "mine"), ("SCR_RUNS", "")], &[]).unwrap();
    assert_eq!((c.job_id.as_str(), c.relaunch.runs), ("mine", None));
    assert!(load(&[("SCR_JOB_ID", "../x")], &[]).is_err());
}

#[test]
fn a_prolog_mounts_for_the_jobs_user_at_the_jobs_own_place() {
    let system = ("/etc/scrfs.conf", "SCRFS_MOUNT=/scr/%u/%j\nSCRFS_MODE=0750\nSCRFS_OPERATOR_GROUP=ops\n");
    let words = [("SLURM_JOB_ID", "77"), ("SLURM_JOB_USER", "bob"), ("SLURM_JOB_UID", "1001")];
    let files = |path: &Path| Ok((path == Path::new(system.0)).then(|| system.1.to_owned()));
    let mut root = sources(&words);
    (root.administrator, root.user) = (true, "root".to_owned());
    let c = Config::load(&root, files).unwrap();
    assert_eq!((c.user.as_str(), c.mount.as_path(), c.mode), ("bob", Path::new("/scr/bob/77"), 0o750));
    assert_eq!(c.operator_group.as_deref(), Some("ops"));
    assert_eq!(Config::mount_point(&root, files).unwrap(), c.mount);
    // Whoever is not root is who he is, whatever the environment says; and tools ask although other
    // things are wrong.
    let mut ann = sources(&words);
    ann.environment.insert("SCR_FLUSH".to_owned(), "often".into());
    assert!(Config::load(&ann, files).is_err());
    assert_eq!(Config::mount_point(&ann, files).unwrap(), Path::new("/scr/ann/77"));
    ann.environment.insert("SCRFS_MOUNT".to_owned(), "/mine".into());
    assert_eq!(Config::mount_point(&ann, files).unwrap(), Path::new("/mine"));
    let mut bad = sources(&[("SCRFS_MOUNT", "/scr/%x")]);
    let e = Config::mount_point(&bad, files).unwrap_err().to_string();
    assert!(e.contains("SCRFS_MOUNT=\"/scr/%x\": expected %j"), "{e}");
    // What root does for a user is not for the user's file to say, nor for a file that lies about.
    bad.environment = BTreeMap::from([("SCR_CONF_FILE".to_owned(), "mine".into())]);
    (bad.administrator, bad.reads_user_file) = (true, false);
    let planted = |path: &Path| {
        Ok((path != Path::new(SYSTEM_FILE)).then(|| "SCR_JOB_ID=1\nSCR_USER_NAME=eve".to_owned()))
    };
    let c = Config::load(&bad, planted).unwrap();
    assert_eq!((c.job_id.as_str(), c.user.as_str()), (NO_JOB, "ann"));
    assert!(c.warnings[0].contains("not read for root's daemon"), "{:?}", c.warnings);
}

/// An epilog that a typo stops leaves the memory of every job on every node.
#[test]
fn what_is_not_essential_is_a_warning_for_who_ends_mounts() {
    let text = |cache: &str| format!("{cache}\nSCR_FLUSH=often\nSCR_COPY_TYPE XOR\nCKPT=many TYPE=XOR\n");
    let load = |cache: &str, essential| {
        let mut root = sources(&[("SCRFS_SEAL_TIMEOUT", "soon")]);
        root.essential = essential;
        let text = text(cache);
        Config::load(&root, |path: &Path| Ok((path == Path::new(SYSTEM_FILE)).then(|| text.clone())))
    };
    let needed: &[&str] = &["SCR_CACHE_BASE"];
    assert!(load("SCR_CACHE_BASE=/nvme", None).is_err());
    let c = load("SCR_CACHE_BASE=/nvme", Some(needed)).unwrap();
    assert_eq!(c.cache_bases, [Path::new("/nvme")]);
    let told = |c: &Config, name: &str| c.warnings.iter().filter(|told| told.contains(name)).count();
    assert_eq!(
        ["SCR_FLUSH", "conf:3: expected NAME=VALUE", "CKPT", "SCRFS_SEAL_TIMEOUT"].map(|name| told(&c, name)),
        [1; 4],
        "{:?}",
        c.warnings
    );
    for bad in ["SCR_CACHE_BASE=nvme", "SCR_CACHE_BASE /nvme"] {
        assert!(load(bad, Some(needed)).is_err(), "{bad}");
    }
}

#[test]
fn every_default_reads_as_its_kind() {
    for p in defs::PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
        let read = match p.kind {
            Kind::Bool => value::boolean(p.default).map(drop),
            Kind::Count(low, high) => value::count(p.default, low, high).map(drop),
            Kind::Bytes(low, high) => value::bytes(p.default, low, high).map(drop),
            Kind::Time => value::time(p.default).map(drop),
            Kind::Word(words) => value::word(p.default, words).map(drop),
            Kind::Paths => value::paths(p.default).map(drop),
            Kind::Hosts => hosts::expand(p.default).map(drop),
            Kind::Names => value::markers(p.default).map(drop),
            Kind::Pattern => NamePattern::new(p.default).map(drop),
            Kind::Mode => value::mode(p.default).map(drop),
            Kind::Text | Kind::Path => Ok(()),
        };
        assert_eq!(read, Ok(()), "{}", p.name);
        assert!(!defs::NOT_YET.contains(&p.name), "{}", p.name);
    }
}

/// The manual's table, and the line below it, are made from [`defs`]; `SCRFS_WRITE_DOCS=1 cargo
/// test` writes them.
#[test]
fn the_manual_has_the_table() {
    use std::fmt::Write as _;

    let mut table = "| name | kind | default | meaning |\n|---|---|---|---|\n".to_owned();
    for p in defs::PARAMETERS {
        let mark = if p.who == Who::Administrator { " (s)" } else { "" };
        writeln!(table, "| {}{mark} | {} | {} | {} |", p.name, p.kind.describe(), p.default, p.doc).unwrap();
    }
    let idle: Vec<String> = defs::NOT_YET.iter().map(|name| format!("`{name}`")).collect();
    writeln!(table, "\nAccepted with a warning, without effect: {}.", idle.join(", ")).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- parameters:begin -->\n", "<!-- parameters:end -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    if std::env::var_os("SCRFS_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        assert_eq!(found, table, "run: SCRFS_WRITE_DOCS=1 cargo test -p scrfs config");
    }
}

const STORES: (&str, &str) = ("SCR_CACHE_BASE", "/ssd,/dev/shm");

fn descriptor(interval: u32, store: Option<&str>) -> CheckpointDescriptor {
    let store = store.map(PathBuf::from);
    let group = "NODE".to_owned();
    CheckpointDescriptor { interval, scheme: Scheme::Xor, set_size: 8, hop_distance: 1, group, store }
}

#[test]
fn descriptors_name_their_stores() {
    let lines = "STORE=/ssd COUNT=2 GROUP=NODE\nSTORE=/pfs\nCKPT=0 INTERVAL=1 GROUP=NODE STORE=/dev/shm\n\
                 CKPT=1 INTERVAL=4 STORE=/ssd COPIES=8\nCKPT=2 INTERVAL=8\nCKPT=3 ENABLED=0\n";
    let c = load(&[STORES], &[("/work/dir/.scrconf", lines)]).unwrap();
    let expected = [descriptor(1, Some("/dev/shm")), descriptor(4, Some("/ssd")), descriptor(8, None)];
    assert_eq!(c.descriptors, expected);
    assert_eq!(c.settings().protections.descriptors.len(), 3);
    let all = c.warnings.join("\n");
    for part in [
        "/work/dir/.scrconf:1: COUNT of STORE has no effect",
        ":2: STORE=\"/pfs\" is not in SCR_CACHE_BASE",
        ":4: COPIES of CKPT has no effect",
    ] {
        assert!(all.contains(part), "{all}");
    }
    assert_eq!(c.warnings.len(), 3, "{all}");
    // For those who must not read that file again.
    let again = load(&[STORES, ("SCRFS_DESCRIPTORS", &c.user_file["SCRFS_DESCRIPTORS"])], &[]).unwrap();
    assert_eq!(again.descriptors, expected);
}

#[test]
fn descriptors_say_how_their_datasets_are_protected() {
    let lines = "SCR_SET_SIZE=4\nSCR_SET_FAILURES=3\nCKPT=0 TYPE=LOCAL\nCKPT=1 INTERVAL=2 TYPE=XOR HOP_DISTANCE=2\n\
                 CKPT=2 INTERVAL=4 TYPE=RS\nCKPT=3 INTERVAL=8 TYPE=RS SET_SIZE=6 SET_FAILURES=2\nCKPT=4 INTERVAL=5\n";
    let config = load(&[], &[("/work/dir/.scrconf", lines)]).unwrap();
    assert_eq!(config.warnings, [""; 0]);
    let protections = config.protections();
    let of = |id| {
        let one = protections.of(id);
        (one.scheme, one.set_size, one.hop_distance)
    };
    let rs = |failures| Scheme::ReedSolomon { failures };
    assert_eq!((of(1), of(2)), ((Scheme::Single, 4, 1), (Scheme::Xor, 4, 2)));
    assert_eq!((of(4), of(8), of(5)), ((rs(3), 4, 1), (rs(2), 6, 1), (Scheme::Xor, 4, 1)));
}

#[test]
fn failure_groups_are_those_of_this_host() {
    let lines = "GROUPS=other SWITCH=9\nGROUPS=HOST,more[1-3] power=psu1 SWITCH=0\nGROUPS=HOST SWITCH=1\n\
                 SCR_GROUP=switch\nCKPT=0 INTERVAL=2 GROUP=POWER\nCKPT=1 INTERVAL=4\nCKPT=2\n";
    let host = sources(&[]).host;
    let lines = lines.replace("HOST", &host);
    let config = load(&[], &[("/etc/scrfs.conf", &lines)]).unwrap();
    assert_eq!(config.warnings, [""; 0]);
    let expected =
        [("POWER", "psu1"), ("SWITCH", "1")].map(|(kind, group)| (kind.to_owned(), group.to_owned()));
    assert_eq!(config.groups, expected.clone().into());
    let protections = config.protections();
    let of = |id| protections.of(id).group.as_str();
    assert_eq!((of(1), of(2), of(4)), ("SWITCH", "POWER", "SWITCH"));

    // The user's lines are in place of the system's, the parameter in place of both, and stands for
    // the user's where these are not read again.
    let user = format!("GROUPS={host} SWITCH=7\n");
    let both = [("/etc/scrfs.conf", lines.as_str()), ("/work/dir/.scrconf", user.as_str())];
    let config = load(&[], &both).unwrap();
    assert_eq!(config.groups, BTreeMap::from([("SWITCH".to_owned(), "7".to_owned())]));
    let again = load(&[("SCRFS_GROUPS", &config.user_file["SCRFS_GROUPS"])], &[both[0]]).unwrap();
    assert_eq!(again.groups, config.groups);
    let named = format!("GROUPS={host} A=1; {host} B=2");
    assert_eq!(load(&[("SCRFS_GROUPS", &named)], &both).unwrap().groups.len(), 2);
}

#[test]
fn failure_groups_that_cannot_be_read_are_refused() {
    for (line, parts) in [
        ("GROUPS=", &[".scrconf:1: GROUPS=\"\"", "expected a host"][..]),
        ("GROUPS=n[1 SWITCH=0", &[":1: GROUPS=\"n[1 SWITCH=0\"", "unbalanced bracket"]),
        ("GROUPS=n1 SWITCH", &[":1: GROUPS", "\"SWITCH\" is not KIND=GROUP"]),
        ("GROUPS=n1 SWITCH=", &["expected a group's name"]),
        ("GROUPS=n1 SWITCH=a;1", &["without ; and ,"]),
        ("GROUPS=n1 S.W=0", &["\"S.W\": expected a word"]),
        ("GROUPS=n1 node=0", &["each node is a group of the kind NODE by itself"]),
        ("SCR_GROUP=a/b", &[":1: SCR_GROUP=\"a/b\": expected a word"]),
        ("CKPT=1 GROUP=a/b", &[":1: GROUP=\"a/b\": expected a word"]),
    ] {
        let error = load(&[], &[("/work/dir/.scrconf", line)]).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{line}: {error}");
        }
    }
    let long = (0..4000).map(|n| format!("GROUPS=host{n} SWITCH=0")).collect::<Vec<_>>().join("\n");
    assert!(load(&[], &[("/work/dir/.scrconf", &long)]).unwrap_err().to_string().contains("65536 bytes"));
    assert!(load(&[], &[("/etc/scrfs.conf", &long)]).is_ok());
}

#[test]
fn the_strongest_source_gives_all_descriptors() {
    let system = ("/etc/scrfs.conf", "CKPT=0 STORE=/ssd\nCKPT=1 INTERVAL=2 STORE=/ssd\n");
    let user = ("/work/dir/.scrconf", "CKPT=0 INTERVAL=3 STORE=/ssd\nCKPT=0 STORE=/dev/shm\n");
    assert_eq!(load(&[STORES], &[system]).unwrap().descriptors.len(), 2);
    let both = load(&[STORES], &[system, user]).unwrap();
    assert_eq!(both.descriptors, [descriptor(1, Some("/dev/shm"))]);
    let named = load(&[STORES, ("SCRFS_DESCRIPTORS", "CKPT=7 INTERVAL=5; CKPT=8")], &[system, user]).unwrap();
    assert_eq!(named.descriptors, [descriptor(5, None), descriptor(1, None)]);
}

#[test]
fn a_descriptor_that_cannot_be_followed_is_refused_by_file_field_and_value() {
    for (line, parts) in [
        ("CKPT=0 STORE=/nvme", &[".scrconf:1: STORE=\"/nvme\"", "SCR_CACHE_BASE: /ssd, /dev/shm"][..]),
        ("CKPT=0 INTERVAL=0", &[":1: INTERVAL=\"0\"", "whole number from 1"]),
        ("CKPT=0 TYPE=RAID", &[":1: TYPE=\"RAID\"", "XOR"]),
        ("CKPT=0 TYPE=FILE", &[":1: TYPE=\"FILE\"", "this version has"]),
        ("CKPT=0 TYPE=RS SET_SIZE=2", &[":1: CKPT=", "fewer failures (2) than members of a set (2)"]),
        ("CKPT=0 TYPE=RS SET_SIZE=97", &[":1: CKPT=", "at most 96 with RS, not 97"]),
        ("CKPT=0 SET_SIZE=x", &[":1: SET_SIZE=\"x\"", "whole number"]),
        ("CKPT=0 INTERVAL=2", &[":1: CKPT=\"0 INTERVAL=2\"", "with INTERVAL=1 among them"]),
        ("CKPT=0 INTERVAL=2\nCKPT=1 ENABLED=0", &[":2: CKPT=\"1 ENABLED=0\"", "with INTERVAL=1 among them"]),
        ("CKPT=0 now", &[":1: CKPT=\"0 now\"", "FIELD=VALUE"]),
        ("CKPT=INTERVAL=1", &["expected a number before"]),
        ("CKPT=", &["expected a number"]),
        ("CKPT=x", &[":1: CKPT=\"x\"", "expected a number"]),
    ] {
        let e = load(&[STORES], &[("/work/dir/.scrconf", line)]).unwrap_err().to_string();
        assert!(parts.iter().all(|part| e.contains(part)), "{line}: {e}");
    }
    // Without a list there is one store.
    let e = load(&[("SCRFS_DESCRIPTORS", "0 STORE=/ssd")], &[]).unwrap_err().to_string();
    let told = "environment: SCRFS_DESCRIPTORS=\"0 STORE=/ssd\": STORE=\"/ssd\": expected one of";
    assert!(e.starts_with(told) && e.contains("/dev/shm"), "{e}");
    for wrong in ["bogus", "CKPT=x", "CKPT=0; STORE=/dev/shm"] {
        let e = load(&[("SCRFS_DESCRIPTORS", wrong)], &[]).unwrap_err().to_string();
        assert!(e.contains("SCRFS_DESCRIPTORS=") && e.contains("expected a number"), "{e}");
    }
}
