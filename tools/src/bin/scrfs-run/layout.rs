//! The layout that an allocation asks for, from the environment of its batch script.

/// Ranks on each of `nodes` nodes: what the batch script was submitted with; 1 where nothing is said.
pub(crate) fn ranks_per_node(
    variable: impl Fn(&str) -> Option<String>,
    nodes: usize,
) -> Result<usize, String> {
    let number = |name: &str| -> Result<Option<usize>, String> {
        match variable(name).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(n) if n > 0 => Ok(Some(n)),
                _ => Err(format!("{name} is {text:?}, and should be a number above 0")),
            },
        }
    };
    if let Some(ranks) = number("SLURM_NTASKS_PER_NODE")? {
        return Ok(ranks);
    }
    match number("SLURM_NTASKS")? {
        Some(tasks) if nodes > 0 && tasks % nodes == 0 => Ok(tasks / nodes),
        Some(tasks) => Err(format!("{tasks} tasks (SLURM_NTASKS) do not go evenly on {nodes} nodes")),
        None => Ok(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocations_layout_is_taken() {
        for (variables, nodes, expected) in [
            (vec![], 4, Ok(1)),
            (vec![("SLURM_NTASKS_PER_NODE", "3"), ("SLURM_NTASKS", "15")], 4, Ok(3)),
            (vec![("SLURM_NTASKS", "8")], 4, Ok(2)),
            (vec![("SLURM_NTASKS", "")], 4, Ok(1)),
            (vec![("SLURM_NTASKS", "5")], 4, Err("5 tasks (SLURM_NTASKS) do not go evenly on 4 nodes")),
            (
                vec![("SLURM_NTASKS_PER_NODE", "x")],
                4,
                Err("SLURM_NTASKS_PER_NODE is \"x\", and should be a number above 0"),
            ),
        ] {
            let variable =
                |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            assert_eq!(ranks_per_node(variable, nodes), expected.map_err(str::to_owned), "{variables:?}");
        }
    }
}
