//! `scrfs-ctl list`: datasets for scripts, columns separated by tabs.

use std::fmt::Write as _;

use scrfs_tools::Outcome;
use scrfs_tools::output;

use crate::place::Place;

pub(crate) fn list(place: &Place) -> Outcome {
    let mut text = String::new();
    let seen = place.look()?;
    if let Some(left) = &seen.left {
        output::talk(&left.heading());
    }
    for d in seen.status.datasets {
        // A name may hold anything but a slash; tabs and line breaks would break the columns.
        let name = d.name.escape_debug();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}\t{}\t{}\t{name}", d.id, d.state, d.bytes);
    }
    output::data(&text)
}
