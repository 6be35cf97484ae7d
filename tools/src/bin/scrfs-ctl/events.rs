//! `scrfs-ctl events`: the newest events of this node.

use scrfs_tools::Outcome;
use scrfs_tools::node::Node;
use scrfs_tools::output;

pub(crate) fn events(node: &Node, count: u32) -> Outcome {
    let mut text = node.events(count)?.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    output::data(&text)
}
