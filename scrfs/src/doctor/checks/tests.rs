use std::path::PathBuf;

use super::super::facts::{Leftovers, Rights};
use super::super::skew::Skew;
use super::*;

const SAME: Skew = Skew { least: -0.1, most: 0.1 };
const GIB: u64 = 1 << 30;
const ROOM: Room = Room {
    made_in: None,
    memory: true,
    writable: true,
    size: 64 * GIB,
    free: 60 * GIB,
    inodes: 1_000_000,
    free_inodes: 999_000,
    own: true,
};

/// A node on which nothing is wrong.
fn healthy() -> Facts {
    let program = |name, says: &str| Program {
        name,
        path: Some(PathBuf::from("/usr/bin").join(name)),
        says: Ok(says.to_owned()),
    };
    Facts {
        kernel: "6.12.3-1-amd64".into(),
        device: Ok(()),
        rights: Rights { root: true, admin: true, helper: None },
        parameters: Ok(Parameters {
            system_file: true,
            warnings: Vec::new(),
            user: "ann".into(),
            job_id: "77".into(),
            in_job: true,
            end_time: Ok(Some(10_000)),
            cache_bytes: 0,
        }),
        launchers: vec![
            program("mpirun", "mpirun (Open MPI) 4.1.4"),
            Program { name: "srun", path: None, says: Err("not found".into()) },
        ],
        mpi_types: Some(Ok("MPI plugin types are...\n\tpmix\n\tnone".into())),
        programs: vec![program("scrfs-coordinator", "scrfs-coordinator 0.1.0")],
        version: "0.1.0",
        prefix: Some(Prefix {
            path: "/lustre/ann".into(),
            user: "ann".into(),
            kind: Ok(Kind::Shared("Lustre")),
            strange: Vec::new(),
            write: Ok(SAME),
        }),
        stores: vec![Store { path: "/dev/shm".into(), room: Ok(ROOM) }],
        control: Some(Store { path: "/run/scrfs".into(), room: Ok(ROOM) }),
        memory: 128 * GIB,
        cgroup: None,
        leftovers: Leftovers::default(),
        priority: Ok(Means::RoundRobin),
        descriptors: (1024, 524_288),
        clocks: vec![("node1".into(), Ok(SAME))],
        now: 4000,
    }
}

fn not_ok(facts: &Facts) -> Vec<(&'static str, Grade)> {
    let report = all(facts);
    for finding in &report.findings {
        assert_eq!(finding.remedy.is_none(), finding.grade == Grade::Ok, "{finding:?}");
        assert!(!finding.says.is_empty());
    }
    let found = report.findings.into_iter().filter(|finding| finding.grade != Grade::Ok);
    found.map(|finding| (finding.name, finding.grade)).collect()
}

#[test]
fn a_healthy_node_has_nothing_to_remedy() {
    assert_eq!(not_ok(&healthy()), []);
    let report = all(&healthy());
    assert_eq!(report.grade, Grade::Ok);
    let said = report.for_people();
    for part in ["passthrough", "mpirun (Open MPI) 4.1.4", "on Lustre", "ends in 100 min", "node1's is right"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// One thing that is wrong, and what is found for it.
type Case = (fn(&mut Facts), &'static str, Grade);

fn parameters(facts: &mut Facts) -> &mut Parameters {
    facts.parameters.as_mut().unwrap()
}

fn room(facts: &mut Facts) -> &mut Room {
    facts.stores[0].room.as_mut().unwrap()
}

fn control(facts: &mut Facts) -> &mut Room {
    facts.control.as_mut().unwrap().room.as_mut().unwrap()
}

fn the_prefix(facts: &mut Facts) -> &mut Prefix {
    facts.prefix.as_mut().unwrap()
}

const CASES: &[Case] = &[
    (|f| f.kernel = "5.4.0".into(), "kernel", Grade::Fail),
    (|f| f.kernel = "6.1.0-37-amd64".into(), "kernel", Grade::Warn),
    (|f| f.kernel = "mine".into(), "kernel", Grade::Warn),
    (|f| f.device = Err("No such file".into()), "/dev/fuse", Grade::Fail),
    (|f| f.rights.admin = false, "rights", Grade::Fail),
    (|f| f.rights = Rights { root: false, admin: false, helper: None }, "rights", Grade::Fail),
    (
        |f| f.rights = Rights { root: false, admin: false, helper: Some(("/usr/bin/f".into(), false)) },
        "rights",
        Grade::Fail,
    ),
    (|f| f.parameters = Err("/etc/scrfs.conf:3: SCR_FLUSH=\"x\"".into()), "parameters", Grade::Fail),
    (|f| parameters(f).warnings = vec!["SCRFS_MARKR is unknown".into()], "parameters", Grade::Warn),
    (|f| f.launchers[0].path = None, "launcher", Grade::Fail),
    (|f| f.programs[0].path = None, "scrfs-coordinator", Grade::Fail),
    (
        |f| f.programs[0].says = Err("error while loading shared libraries: libmpi.so.40".into()),
        "scrfs-coordinator",
        Grade::Fail,
    ),
    (|f| f.programs[0].says = Ok("scrfs-coordinator 0.0.9".into()), "scrfs-coordinator", Grade::Fail),
    (|f| the_prefix(f).kind = Err("No such file".into()), "prefix", Grade::Fail),
    (|f| the_prefix(f).kind = Ok(Kind::Local("tmpfs")), "prefix", Grade::Warn),
    (|f| the_prefix(f).kind = Ok(Kind::Unknown(7)), "prefix", Grade::Warn),
    (|f| the_prefix(f).strange = vec!["/lustre/ann belongs to user 7".into()], "prefix", Grade::Warn),
    (|f| the_prefix(f).write = Err("Permission denied".into()), "prefix", Grade::Fail),
    (|f| the_prefix(f).write = Ok(Skew { least: 30.0, most: 31.0 }), "prefix", Grade::Warn),
    (|f| parameters(f).end_time = Err("squeue: it is away".into()), "time limit", Grade::Warn),
    (|f| parameters(f).end_time = Ok(Some(4000)), "time limit", Grade::Warn),
    (|f| f.priority = Ok(Means::Nice), "priority", Grade::Warn),
    (|f| f.priority = Err("Operation not permitted".into()), "priority", Grade::Warn),
    (|f| f.stores[0].room = Err("Not a directory".into()), "cache", Grade::Fail),
    (|f| room(f).writable = false, "cache", Grade::Fail),
    (|f| room(f).made_in = Some("/".into()), "cache", Grade::Warn),
    (
        |f| {
            room(f).made_in = Some("/".into());
            f.stores.push(Store { path: "/ssd".into(), room: Ok(ROOM) });
        },
        "cache",
        Grade::Warn,
    ),
    (
        |f| {
            room(f).made_in = Some("/".into());
            f.stores.extend_from_within(..);
        },
        "cache",
        Grade::Fail,
    ),
    (|f| room(f).free = GIB, "cache", Grade::Warn),
    (|f| f.cgroup = Some(16 * GIB), "cache", Grade::Warn),
    (|f| f.memory = 32 * GIB, "cache", Grade::Warn),
    (|f| f.control.as_mut().unwrap().room = Err("Not a directory".into()), "control", Grade::Fail),
    (|f| control(f).writable = false, "control", Grade::Fail),
    (|f| control(f).free = 63 << 20, "control", Grade::Warn),
    (|f| control(f).free_inodes = 999, "control", Grade::Warn),
    (|f| f.mpi_types = Some(Ok("MPI plugin types are...\n\tnone\n\tpmi2".into())), "launcher", Grade::Warn),
    (|f| f.leftovers.directories = vec!["/dev/shm/ann/scr.1".into()], "leftovers", Grade::Warn),
    (|f| f.leftovers.mounts = vec!["/scr".into()], "leftovers", Grade::Warn),
    (|f| f.leftovers.cut_short = Some("no answer in 5 s".into()), "leftovers", Grade::Warn),
    (|f| f.descriptors = (1024, 1024), "descriptors", Grade::Warn),
    (|f| f.clocks[0].1 = Ok(Skew { least: -9.0, most: -8.0 }), "clock", Grade::Warn),
    (|f| f.clocks[0].1 = Err("No route to host".into()), "clock", Grade::Fail),
];

#[test]
fn each_thing_that_is_wrong_is_found_and_nothing_else() {
    for (number, (spoil, name, grade)) in CASES.iter().enumerate() {
        let mut facts = healthy();
        spoil(&mut facts);
        assert!(not_ok(&facts).contains(&(*name, *grade)), "case {number}: {:?}", not_ok(&facts));
        assert!(not_ok(&facts).iter().all(|(found, _)| found == name), "case {number}: {:?}", not_ok(&facts));
    }
}

#[test]
fn what_is_no_fault_is_none() {
    let fine: &[fn(&mut Facts)] = &[
        |f| f.rights = Rights { root: false, admin: false, helper: Some(("/usr/bin/f".into(), true)) },
        |f| f.prefix = None,
        |f| (parameters(f).in_job, parameters(f).end_time) = (false, Err("nobody tells".into())),
        |f| parameters(f).end_time = Ok(None),
        |f| {
            f.rights = Rights { root: false, admin: false, helper: Some(("/usr/bin/f".into(), true)) };
            f.priority = Err("Operation not permitted".into());
        },
        |f| f.launchers.swap(0, 1),
        |f| (f.cgroup, parameters(f).cache_bytes) = (Some(16 * GIB), 8 * GIB),
        |f| (f.cgroup, room(f).memory) = (Some(16 * GIB), false),
        |f| f.clocks.clear(),
        |f| (control(f).inodes, control(f).free_inodes) = (0, 0),
        |f| f.mpi_types = Some(Err("no answer in 5 s".into())),
        |f| f.mpi_types = None,
    ];
    for (number, change) in fine.iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        assert_eq!(not_ok(&facts), [], "case {number}");
    }
}

#[test]
fn remedies_can_be_followed() {
    let mut facts = healthy();
    facts.cgroup = Some(16 * GIB);
    facts.leftovers.directories = (0..9).map(|n| format!("/dev/shm/ann/scr.{n}").into()).collect();
    let said = all(&facts).for_people();
    assert!(said.contains("SCRFS_CACHE_BYTES=8589934592"), "{said}");
    assert!(!said.contains("tmpfs of its own"), "{said}");
    assert!(said.contains("scr.3 and 5 more") && !said.contains("scr.4"), "{said}");
}

#[test]
fn roots_control_directories_share_a_file_system_with_a_word_about_that() {
    let mut facts = healthy();
    control(&mut facts).own = false;
    assert_eq!(not_ok(&facts), []);
    assert!(all(&facts).for_people().contains("give it a tmpfs of its own"));
    facts.rights = Rights { root: false, admin: false, helper: Some(("/usr/bin/f".into(), true)) };
    assert!(!all(&facts).for_people().contains("give it a tmpfs of its own"));
}
