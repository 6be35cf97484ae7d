//! Which members form a redundancy set.
//!
//! Two members of one failure group (a node, a rack, a power supply) never share a set: its loss
//! would take both. The rule is SCR's: members with the same index within their failure group form
//! a *level*, in member order; a level of `L` is split into `floor(L / set_size)` sets (at least
//! one) of sizes as even as can be, larger ones first. A hop distance `h` strides: member `i` of a
//! level goes with `i + h`, `i + 2h` and so on, so that neighbours in a rack, whose numbers are
//! near, land in different sets.
//!
//! Where failure groups are uneven, that rule leaves sets of one, which protect nothing. Then
//! members are dealt to the sets in turn instead, the largest group first, which leaves as few
//! alone as can be.

use std::collections::HashMap;
use std::hash::Hash;

use super::Scheme;
use crate::ids::Member;

/// A set of one protects nothing, so none is asked for.
const SET_SIZE_MIN: usize = 2;

/// How badly these sets are laid out: for each set, the failure groups whose loss it does not
/// survive, counted. `groups[m]` is the failure group of member `m`.
pub fn at_risk<G: Eq + Hash>(scheme: Scheme, sets: &[Vec<Member>], groups: &[G]) -> usize {
    let of_set = |set: &Vec<Member>| {
        let mut lost: HashMap<&G, Vec<usize>> = HashMap::new();
        for (at, member) in set.iter().enumerate() {
            if let Some(group) = groups.get(member.0 as usize) {
                lost.entry(group).or_default().push(at);
            }
        }
        lost.values().filter(|lost| !scheme.survives(set.len(), lost)).count()
    };
    sets.iter().map(of_set).sum()
}

/// Lays out the sets of `groups.len()` members, where `groups[m]` is the failure group of member
/// `m`. Every member is in exactly one set; a set lists its members in ring order.
pub fn lay_out<G: Eq + Hash>(groups: &[G], set_size: usize, hop_distance: usize) -> Vec<Vec<Member>> {
    let numbers = number_groups(groups);
    let levels = levels(&numbers);
    let by_rule: Vec<Vec<usize>> =
        levels.iter().flat_map(|level| split_level(level, set_size, hop_distance)).collect();
    let alone = by_rule.iter().any(|set| set.len() == 1);
    let sets = if alone && groups.len() > 1 { deal(&numbers, levels.len(), set_size) } else { by_rule };
    sets.into_iter().map(|set| set.into_iter().map(as_member).collect()).collect()
}

fn as_member(index: usize) -> Member {
    // A job has fewer than four billion nodes.
    Member(u32::try_from(index).unwrap_or(u32::MAX))
}

/// Groups as numbers, in order of first appearance: the layout depends on nothing else.
fn number_groups<G: Eq + Hash>(groups: &[G]) -> Vec<usize> {
    let mut known = HashMap::new();
    groups
        .iter()
        .map(|group| {
            let next = known.len();
            *known.entry(group).or_insert(next)
        })
        .collect()
}

/// Members by their index within their group. There are as many levels as the largest group has
/// members.
fn levels(numbers: &[usize]) -> Vec<Vec<usize>> {
    let mut used = HashMap::new();
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for (member, &group) in numbers.iter().enumerate() {
        let level: &mut usize = used.entry(group).or_default();
        if levels.len() == *level {
            levels.push(Vec::new());
        }
        levels[*level].push(member);
        *level += 1;
    }
    levels
}

/// Splits one level into chains by hop distance, and each chain into sets.
fn split_level(level: &[usize], set_size: usize, hop_distance: usize) -> Vec<Vec<usize>> {
    // A distance that would leave chains of one is shortened: less spread is better than no
    // protection.
    let hop = hop_distance.min(level.len() / 2).max(1);
    (0..hop)
        .flat_map(|first| {
            let chain: Vec<usize> = level.iter().copied().skip(first).step_by(hop).collect();
            split_chain(&chain, set_size)
        })
        .collect()
}

/// Consecutive runs, as even as can be, larger ones first.
fn split_chain(chain: &[usize], set_size: usize) -> Vec<Vec<usize>> {
    let count = (chain.len() / set_size.max(SET_SIZE_MIN)).max(1);
    let (size, larger) = (chain.len() / count, chain.len() % count);
    let mut rest = chain;
    (0..count)
        .map(|set| {
            let (taken, after) = rest.split_at(size + usize::from(set < larger));
            rest = after;
            taken.to_vec()
        })
        .collect()
}

/// Deals members to sets in turn, group by group, the largest first. With at least as many sets as
/// the largest group has members (`levels`), no set gets two of one group.
fn deal(numbers: &[usize], levels: usize, set_size: usize) -> Vec<Vec<usize>> {
    let count = (numbers.len() / set_size.max(SET_SIZE_MIN)).max(levels);
    let mut sizes: HashMap<usize, usize> = HashMap::new();
    for &group in numbers {
        *sizes.entry(group).or_default() += 1;
    }
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by_key(|&member| (usize::MAX - sizes[&numbers[member]], numbers[member], member));
    let mut sets = vec![Vec::new(); count];
    for (turn, member) in order.into_iter().enumerate() {
        sets[turn % count].push(member);
    }
    for set in &mut sets {
        set.sort_unstable();
    }
    sets
}
