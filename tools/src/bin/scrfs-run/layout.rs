//! The layout that an allocation asks for, from the environment of its batch script.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::launcher::Cpus;

/// Ranks on each node: what the batch script was submitted with; 1 where nothing is said. `nodes`
/// run the program.
pub(crate) fn ranks_per_node(
    variable: impl Fn(&str) -> Option<String>,
    nodes: usize,
) -> Result<usize, String> {
    let text = |name: &str| variable(name).filter(|text| !text.is_empty());
    let number = |name: &str| -> Result<Option<usize>, String> {
        match text(name) {
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
    // Without it the tasks on each node are made up from the CPUs.
    let Some(tasks) = number("SLURM_NTASKS")? else { return Ok(1) };
    // Of the whole allocation, spares included.
    if let Some(each) = text("SLURM_TASKS_PER_NODE") {
        return match counts(&each).as_deref() {
            Some([ranks]) => Ok(*ranks),
            Some(_) => Err(format!("the allocation's nodes have different numbers of tasks: {each}")),
            None => Err(format!("SLURM_TASKS_PER_NODE is {each:?}, and should be like 4(x2),3")),
        };
    }
    if nodes > 0 && tasks % nodes == 0 {
        Ok(tasks / nodes)
    } else {
        Err(format!("{tasks} tasks (SLURM_NTASKS) do not go evenly on {nodes} nodes"))
    }
}

/// What each task of the allocation has, unless so many `ranks` on a node would want more than it
/// has.
pub(crate) fn cpus_per_task(environment: &BTreeMap<OsString, OsString>, ranks: usize) -> Cpus {
    let text = |name: &str| environment.get(OsStr::new(name))?.to_str();
    let each =
        text("SLURM_CPUS_PER_TASK").and_then(|text| text.parse::<usize>().ok()).filter(|cpus| *cpus > 1);
    let Some(each) = each else { return Cpus::Any };
    let least = text("SLURM_JOB_CPUS_PER_NODE").and_then(counts).and_then(|counts| counts.into_iter().min());
    let fits = least.is_none_or(|least| each.checked_mul(ranks).is_some_and(|wanted| wanted <= least));
    if fits { Cpus::Each(each) } else { Cpus::Any }
}

/// The different numbers in a list such as `4(x2),3`.
fn counts(list: &str) -> Option<Vec<usize>> {
    let number = |part: &str| part.split('(').next()?.trim().parse::<usize>().ok().filter(|n| *n > 0);
    let mut counts: Vec<usize> = list.split(',').map(number).collect::<Option<_>>()?;
    counts.sort_unstable();
    counts.dedup();
    Some(counts)
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
            // Five nodes, one of them a spare.
            (vec![("SLURM_NTASKS", "20"), ("SLURM_TASKS_PER_NODE", "4(x5)")], 4, Ok(4)),
            // Nobody asked for tasks: what Slurm makes of the CPUs is no wish.
            (vec![("SLURM_TASKS_PER_NODE", "16(x5)")], 4, Ok(1)),
            (
                vec![("SLURM_NTASKS", "19"), ("SLURM_TASKS_PER_NODE", "4(x4),3")],
                4,
                Err("the allocation's nodes have different numbers of tasks: 4(x4),3"),
            ),
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

    #[test]
    fn threads_have_their_cpus_where_a_node_has_them() {
        for (variables, ranks, expected) in [
            (vec![], 1, Cpus::Any),
            (vec![("SLURM_CPUS_PER_TASK", "1")], 1, Cpus::Any),
            (vec![("SLURM_CPUS_PER_TASK", "8")], 4, Cpus::Each(8)),
            (vec![("SLURM_CPUS_PER_TASK", "8"), ("SLURM_JOB_CPUS_PER_NODE", "64(x3),32")], 4, Cpus::Each(8)),
            (vec![("SLURM_CPUS_PER_TASK", "8"), ("SLURM_JOB_CPUS_PER_NODE", "64(x3),16")], 4, Cpus::Any),
        ] {
            let environment = variables.iter().map(|(n, v)| (OsString::from(n), OsString::from(v))).collect();
            assert_eq!(cpus_per_task(&environment, ranks), expected, "{variables:?}");
        }
    }
}
