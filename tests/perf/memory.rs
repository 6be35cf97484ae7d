//! What a mount with many files costs in memory.

use std::fs::File;
use std::io;

use crate::Arguments;
use crate::backing::Backing;
use crate::mount::{Mode, Mount};
use crate::table::{Bound, Measure, Row};

/// Files of one directory.
const PER_DIRECTORY: usize = 1000;

/// Private memory of all the mount's processes, idle, after many files were made and closed.
pub(crate) fn rows(backing: &Backing, mode: Mode, arguments: &Arguments) -> io::Result<Vec<Row>> {
    if arguments.memory_files == 0 || !arguments.wants(&Measure::Memory.name()) {
        return Ok(Vec::new());
    }
    eprintln!("memory, {}, {}", backing.kind.name(), mode.name());
    let mount = Mount::new(backing, mode)?;
    let before = private_mib(&mount)?;
    let top = mount.directory("many")?;
    for number in 0..arguments.memory_files {
        let directory = top.join(format!("d{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir(&directory)?;
        }
        File::create_new(directory.join(format!("file.{number}")))?;
    }
    let after = private_mib(&mount)?;
    std::fs::remove_dir_all(&top)?;
    Ok(vec![Row {
        measure: Measure::Memory,
        backing: backing.kind,
        mode,
        peer: format!("{before:.1} before"),
        scr: format!("{after:.1}"),
        figure: after,
        bound: Some(Bound::AtMost { gate: 64.0, goal: 32.0 }),
    }])
}

/// Memory that would be free if the mount's processes ended, in MiB.
fn private_mib(mount: &Mount) -> io::Result<f64> {
    let mut kib = 0_u32;
    for pid in mount.processes()? {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let private = rollup.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let wanted = matches!(name, "Private_Clean" | "Private_Dirty");
            wanted.then(|| value.trim().trim_end_matches(" kB").parse::<u32>().ok())?
        });
        kib += private.sum::<u32>();
    }
    Ok(f64::from(kib) / 1024.0)
}
