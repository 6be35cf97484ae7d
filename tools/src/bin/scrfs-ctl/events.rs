//! `scrfs-ctl events`: the newest events of this node, or those in a prefix.

use scrfs_tools::Outcome;
use scrfs_tools::output;

use crate::place::Place;

pub(crate) fn events(place: &Place, count: u32) -> Outcome {
    let mut text = place.events(count)?.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    output::data(&text)
}
