use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

fn sources(environment: &[(&str, &str)]) -> Sources {
    Sources {
        environment: environment.iter().map(|(n, v)| ((*n).to_owned(), OsString::from(v))).collect(),
        options: BTreeMap::new(),
        working_directory: PathBuf::from("/work/dir"),
        user: "ann".to_owned(),
        host: "node7".to_owned(),
        administrator: false,
        reads_user_file: true,
    }
}

fn load(environment: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let files: BTreeMap<_, _> = files.iter().map(|(p, t)| (PathBuf::from(p), (*t).to_owned())).collect();
    Config::load(&sources(environment), |path: &Path| Ok(files.get(path).cloned()))
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
    assert!(c.enable && c.distribute && c.fetch);
    assert_eq!((c.flush_every, c.runs, c.min_nodes), (10, None, None));
    assert_eq!((c.seal_timeout, c.coordinator_wait), (Duration::from_secs(30), Duration::from_secs(10)));
    assert_eq!((c.block_bytes, c.list_max), (1 << 20, 100_000));
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
    assert_eq!((settings.flush_every, settings.set_size, settings.cache_size), (1, 4, 5));
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
    let e = load(&[("SCR_COPY_TYPE", "RS")], &[]).unwrap_err().to_string();
    assert!(e.contains("environment: SCR_COPY_TYPE=\"RS\"") && e.contains("XOR"), "{e}");
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
fn what_the_user_file_sets_is_known() {
    let user = ("/work/dir/.scrconf", "SCR_FLUSH=3\nSCR_CNTL_BASE=/x\nSCR_SET_SIZE=4\n");
    let c = load(&[("SCR_FLUSH", "1")], &[user]).unwrap();
    let expected = [("SCR_FLUSH", "3"), ("SCR_SET_SIZE", "4")].map(|(n, v)| (n, v.to_owned()));
    assert_eq!(c.user_file, expected.into());
}

#[test]
fn what_has_no_effect_is_named() {
    let c = load(
        &[("SCRFS_MARKR", "x"), ("SCR_GROUP", "SWITCH"), ("SCRFS_CURRENT", "ck.1"), ("SCRATCH", "/tmp")],
        &[("/work/dir/.scrconf", "SCR_FLUSHH=1\nCKPT=1 INTERVAL=4 TYPE=XOR\n")],
    )
    .unwrap();
    let all = c.warnings.join("\n");
    for part in [
        "SCRFS_MARKR is unknown",
        "SCR_GROUP has no effect",
        ".scrconf:1: SCR_FLUSHH is unknown",
        ":2: TYPE=XOR of a descriptor has no effect",
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
    assert_eq!((c.job_id.as_str(), c.runs), ("mine", None));
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
    // Whoever is not root is who he is, whatever the environment says; and tools ask although other things are wrong.
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

/// The manual's table is made from [`defs`]; `SCRFS_WRITE_DOCS=1 cargo test` writes it.
#[test]
fn the_manual_has_the_table() {
    use std::fmt::Write as _;

    let mut table = "| name | kind | default | meaning |\n|---|---|---|---|\n".to_owned();
    for p in defs::PARAMETERS {
        let mark = if p.who == Who::Administrator { " (s)" } else { "" };
        writeln!(table, "| {}{mark} | {} | {} | {} |", p.name, p.kind.describe(), p.default, p.doc).unwrap();
    }
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
    CheckpointDescriptor { interval, store: store.map(PathBuf::from) }
}

#[test]
fn descriptors_name_their_stores() {
    let lines = "STORE=/ssd COUNT=2 GROUP=NODE\nSTORE=/pfs\nCKPT=0 INTERVAL=1 GROUP=NODE STORE=/dev/shm\n\
                 CKPT=1 INTERVAL=4 STORE=/ssd SET_SIZE=8\nCKPT=2 INTERVAL=8\nCKPT=3 ENABLED=0\n";
    let c = load(&[STORES], &[("/work/dir/.scrconf", lines)]).unwrap();
    let expected = [descriptor(1, Some("/dev/shm")), descriptor(4, Some("/ssd")), descriptor(8, None)];
    assert_eq!(c.descriptors, expected);
    assert_eq!(c.settings().stores.len(), 3);
    let all = c.warnings.join("\n");
    for part in [
        "/work/dir/.scrconf:1: COUNT of STORE has no effect",
        ":2: STORE=\"/pfs\" is not in SCR_CACHE_BASE",
        ":4: SET_SIZE of CKPT has no effect",
    ] {
        assert!(all.contains(part), "{all}");
    }
    assert_eq!(c.warnings.len(), 3, "{all}");
    // For those who must not read that file again.
    let again = load(&[STORES, ("SCRFS_DESCRIPTORS", &c.user_file["SCRFS_DESCRIPTORS"])], &[]).unwrap();
    assert_eq!(again.descriptors, expected);
}

#[test]
fn the_strongest_source_gives_all_descriptors() {
    let system = ("/etc/scrfs.conf", "CKPT=0 STORE=/ssd\nCKPT=1 INTERVAL=2 STORE=/ssd\n");
    let user = ("/work/dir/.scrconf", "CKPT=0 STORE=/dev/shm\nCKPT=0 INTERVAL=3 STORE=/dev/shm\n");
    assert_eq!(load(&[STORES], &[system]).unwrap().descriptors.len(), 2);
    let both = load(&[STORES], &[system, user]).unwrap();
    assert_eq!(both.descriptors, [descriptor(3, Some("/dev/shm"))]);
    let named = load(&[STORES, ("SCRFS_DESCRIPTORS", "CKPT=7 INTERVAL=5")], &[system, user]).unwrap();
    assert_eq!(named.descriptors, [descriptor(5, None)]);
}

#[test]
fn a_descriptor_that_cannot_be_followed_is_refused_by_file_field_and_value() {
    for (line, parts) in [
        ("CKPT=0 STORE=/nvme", &[".scrconf:1: STORE=\"/nvme\"", "SCR_CACHE_BASE: /ssd, /dev/shm"][..]),
        ("CKPT=0 INTERVAL=0", &[":1: INTERVAL=\"0\"", "whole number from 1"]),
        ("CKPT=0 TYPE=RAID", &[":1: TYPE=\"RAID\"", "XOR"]),
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
