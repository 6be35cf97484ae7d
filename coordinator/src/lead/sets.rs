//! Which members protect one another (DESIGN 6).

use scrfs::ids::Member;

/// Redundancy sets over members whose failure groups are `groups` (the host names). Members are dealt to columns so
/// that no two of a column share a failure group; a column, strided by `hop`, is cut into floor(members / `size`)
/// sets, the rest spread evenly, larger sets first.
pub(super) fn sets(groups: &[String], size: u32, hop: u32) -> Vec<Vec<Member>> {
    let mut columns: Vec<Vec<Member>> = Vec::new();
    for (at, group) in (0u32..).zip(groups) {
        let column = groups[..at as usize].iter().filter(|other| *other == group).count();
        if columns.len() <= column {
            columns.push(Vec::new());
        }
        columns[column].push(Member(at));
    }
    columns
        .iter()
        .flat_map(|column| cut(&strided(column, hop.max(1) as usize), size.max(1) as usize))
        .collect()
}

/// Every `hop`-th, then from the next start, and so on.
fn strided(column: &[Member], hop: usize) -> Vec<Member> {
    (0..hop).flat_map(|start| column.iter().skip(start).step_by(hop).copied()).collect()
}

fn cut(members: &[Member], size: usize) -> Vec<Vec<Member>> {
    let count = (members.len() / size).max(1);
    let (each, larger) = (members.len() / count, members.len() % count);
    let mut rest = members;
    (0..count)
        .map(|at| {
            let (set, after) = rest.split_at(each + usize::from(at < larger));
            rest = after;
            set.to_vec()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hosts: &[&str], size: u32, hop: u32) -> Vec<Vec<u32>> {
        let groups: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        sets(&groups, size, hop).into_iter().map(|set| set.into_iter().map(|m| m.0).collect()).collect()
    }

    #[test]
    fn the_rest_is_spread_evenly() {
        let ten: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let ten: Vec<&str> = ten.iter().map(String::as_str).collect();
        assert_eq!(of(&ten, 4, 1), [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]]);
        assert_eq!(of(&ten[..3], 4, 1), [[0, 1, 2]]);
        assert_eq!(of(&ten[..7], 3, 1), [vec![0, 1, 2, 3], vec![4, 5, 6]]);
        assert_eq!(of(&ten[..4], 2, 2), [[0, 2], [1, 3]]);
        assert_eq!(of(&ten[..1], 8, 1), [[0]]);
    }

    #[test]
    fn no_two_of_one_host() {
        assert_eq!(of(&["a", "a", "b", "b"], 8, 1), [[0, 2], [1, 3]]);
        assert_eq!(of(&["a", "a"], 8, 1), [[0], [1]]);
    }
}
