//! Which shell reaches other hosts: the one that Open MPI takes.

/// The remote shell that a file of Open MPI parameters names: the first of several.
pub fn agent_in(text: &str) -> Option<&str> {
    let mut values = text.lines().filter_map(|line| {
        let (name, value) = line.split('#').next()?.split_once('=')?;
        (name.trim() == "plm_rsh_agent").then_some(value)
    });
    values.next_back()?.split(':').map(str::trim).find(|agent| !agent.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_and_the_first_of_its_agents() {
        let text =
            "# plm_rsh_agent = no\nbtl = tcp\nplm_rsh_agent = a\n plm_rsh_agent=/x/rsh -q : ssh # site\n";
        assert_eq!(agent_in(text), Some("/x/rsh -q"));
        for none in ["", "plm_rsh_agent", "plm_rsh_agent =\n", "plm_rsh_agent_x = y"] {
            assert_eq!(agent_in(none), None, "{none}");
        }
    }
}
