//! Members that are lost, in every way that a scheme survives, and bytes that went bad.

use std::fs;

use scrfs::dataset::Scheme;
use scrfs::ids::NodeRank;
use scrfs::path::RelPath;
use scrfs::redundancy::code::Code;
use scrfs::redundancy::{left, reference};

use super::super::testbed::FakeDaemon;
use super::{Case, bytes, files, node};

#[test]
fn encoding_gives_the_defined_bytes_and_any_member_can_be_rebuilt() {
    // Blocks far smaller than a chunk, about a chunk, and larger.
    for (members, scale, block) in [(2, 100, 16), (3, 777, 64), (4, 1000, 256), (5, 300, 4096), (8, 500, 33)]
    {
        let case = Case::new(files(members, scale), block, 1);
        let catalog = case.encode(Scheme::Xor);
        let reds: Vec<_> = case.nodes.daemons.iter().map(FakeDaemon::redundancy_bytes).collect();
        for (m, payload) in case.payloads().iter().enumerate() {
            let [(name, bytes)] = &reds[m][..] else { panic!("member {m} has {} files", reds[m].len()) };
            assert_eq!(name, &format!("{}_of_{members}_in_0.xor", m + 1));
            assert!(bytes.ends_with(payload), "member {m} of {members}, block {block}");
        }
        for lost in 0..members {
            // Onto a spare, onto the rebooted node, onto a node that holds another member.
            let onto = [members, lost, (lost + 1) % members][lost % 3];
            case.lose(lost);
            if onto == members {
                case.lose(members);
            }
            let results = case.nodes.run(10 + lost as u64, &case.rebuild_job(&catalog, lost, onto), lost);
            for (node, result) in results {
                result.unwrap_or_else(|e| panic!("{members} members, {lost} lost, node {node}: {e}"));
            }
            case.assert_files(lost, onto);
            assert!(
                case.nodes.daemons[onto].redundancy_bytes().contains(&reds[lost][0]),
                "redundancy of {lost}"
            );
            if onto != lost {
                // Back to where it was, for the next round.
                case.lose(onto);
                for m in [lost, onto].into_iter().filter(|m| *m < members) {
                    case.restore(m, &reds[m][0]);
                }
            }
        }
    }
}

#[test]
fn any_members_that_reed_solomon_survives_come_back() {
    // Of four members two; of six three; a set that is smaller than the losses that were asked for.
    for (members, failures, scale, block) in
        [(4, 2, 1000, 64), (6, 3, 300, 256), (3, 4, 777, 4096), (2, 2, 50, 16)]
    {
        all_losses(Scheme::ReedSolomon { failures }, members, scale, block);
    }
}

#[test]
fn any_members_whose_partners_are_left_come_back() {
    for (members, scale, block) in [(2, 1000, 64), (3, 777, 4096), (4, 300, 256), (6, 100, 16)] {
        all_losses(Scheme::Partner, members, scale, block);
    }
}

/// The payloads that a set is to have, made in memory.
fn expected_payloads(scheme: Scheme, data: &[Vec<&[u8]>]) -> Vec<Vec<u8>> {
    if scheme == Scheme::Partner {
        return (0..data.len()).map(|at| data[left(data.len(), at)].concat()).collect();
    }
    let code = Code::of(scheme, data.len()).unwrap().unwrap();
    reference::encode(&code, data, 1, 1 << 20).unwrap()
}

/// Encodes a set, and loses its members in every possible way: what the scheme survives comes back,
/// and of anything else every share fails.
fn all_losses(scheme: Scheme, members: usize, scale: usize, block: u32) {
    let suffix = if scheme == Scheme::Partner { "partner" } else { "rs" };
    let mut files = files(members, scale);
    // Equal files of several members are one name.
    let shared = (RelPath::new("shared").unwrap(), bytes(9, scale));
    for of in &mut files {
        of.push(shared.clone());
        of.sort();
    }
    let case = Case::new(files, block, 2);
    let catalog = case.encode(scheme);
    let reds: Vec<_> =
        case.nodes.daemons.iter().map(|daemon| daemon.redundancy_bytes().pop().unwrap_or_default()).collect();
    let data: Vec<Vec<&[u8]>> =
        case.files.iter().map(|files| files.iter().map(|(_, bytes)| bytes.as_slice()).collect()).collect();
    for (m, payload) in expected_payloads(scheme, &data).iter().enumerate() {
        let (name, bytes) = &reds[m];
        assert_eq!(name, &format!("{}_of_{members}_in_0.{suffix}", m + 1));
        assert!(bytes.ends_with(payload), "member {m} of {members}");
    }
    for bits in 1_u32..1 << members {
        let lost: Vec<usize> = (0..members).filter(|m| bits >> m & 1 == 1).collect();
        for m in &lost {
            case.lose(*m);
        }
        // Each where it was; or all on one spare.
        let spare = bits.is_multiple_of(3).then_some(members);
        let onto: Vec<_> = lost.iter().map(|m| (*m, spare.unwrap_or(*m))).collect();
        let results = case.nodes.run(10 + u64::from(bits), &case.rebuild_all(&catalog, &onto), lost[0]);
        let rebuilt = results.values().all(Result::is_ok);
        assert_eq!(rebuilt, scheme.survives(members, &lost), "{members}: {lost:?}: {results:?}");
        for (m, at) in onto {
            if rebuilt {
                case.assert_files(m, at);
                assert!(case.nodes.daemons[at].redundancy_bytes().contains(&reds[m]), "{lost:?}: {m}");
            }
            case.restore(m, &reds[m]);
        }
        case.lose(members);
    }
}

#[test]
fn a_redundancy_file_that_has_rotted_is_named_also_where_its_parity_is_not_needed() {
    let case = Case::new(files(4, 1000), 64, 1);
    let catalog = case.encode(Scheme::ReedSolomon { failures: 2 });
    let reds: Vec<_> = (0..4).map(|m| case.nodes.daemons[m].redundancy_bytes().remove(0)).collect();
    let (name, bytes) = reds[2].clone();
    for at in [10, bytes.len() / 2, bytes.len() - 1] {
        let mut rotten = bytes.clone();
        rotten[at] ^= 1;
        fs::write(case.root().join(format!("node2/red/{name}")), rotten).unwrap();
        for lost in [&[0][..], &[0, 1], &[1, 3]] {
            for m in lost {
                case.lose(*m);
            }
            let onto: Vec<_> = lost.iter().map(|m| (*m, *m)).collect();
            let results = case.nodes.run(
                2 + at as u64 * 8 + lost.len() as u64 + lost[0] as u64 * 4,
                &case.rebuild_all(&catalog, &onto),
                0,
            );
            let named = results[&NodeRank(2)].as_ref().unwrap_err();
            assert_eq!(named.bad, [2], "byte {at}, {lost:?}: {results:?}");
            assert!(lost.iter().all(|m| results[&node(*m)].is_err()), "byte {at}, {lost:?}: {results:?}");
            for m in lost {
                case.restore(*m, &reds[*m]);
            }
        }
    }
}

#[test]
fn a_partner_with_bad_bytes_is_named() {
    let case = Case::new(files(4, 1000), 64, 1);
    let catalog = case.encode(Scheme::Partner);
    let reds: Vec<_> = (0..4).map(|m| case.nodes.daemons[m].redundancy_bytes().remove(0)).collect();
    // Of the copy that member 1 keeps of member 0, the header and the data.
    let (name, bytes) = reds[1].clone();
    for (run, at) in [(2, 10), (3, bytes.len() / 2), (4, bytes.len() - 1)] {
        let mut rotten = bytes.clone();
        rotten[at] ^= 1;
        fs::write(case.root().join(format!("node1/red/{name}")), rotten).unwrap();
        case.lose(0);
        let results = case.nodes.run(run, &case.rebuild_job(&catalog, 0, 0), 0);
        assert_eq!(results[&node(1)].as_ref().unwrap_err().bad, [1], "byte {at}: {results:?}");
        assert!(results[&node(0)].is_err(), "byte {at}: {results:?}");
        case.restore(0, &reds[0]);
    }
    fs::write(case.root().join(format!("node1/red/{name}")), &bytes).unwrap();
    // Of the files of member 3, of which member 0 keeps a copy.
    let (path, bytes) = &case.files[3][0];
    let mut wrong = bytes.clone();
    wrong[100] ^= 1;
    case.nodes.daemons[3].put(path, &wrong);
    case.lose(0);
    let results = case.nodes.run(5, &case.rebuild_job(&catalog, 0, 0), 0);
    assert_eq!(results[&node(3)].as_ref().unwrap_err().bad, [3], "{results:?}");
    assert!(results[&node(0)].is_err(), "{results:?}");
}

#[test]
fn a_file_that_a_program_begins_to_change_is_moved_and_not_bad() {
    for scheme in [Scheme::Xor, Scheme::Partner, Scheme::ReedSolomon { failures: 2 }] {
        let case = Case::new(files(4, 5000), 256, 0);
        let catalog = case.encode(scheme);
        case.lose(0);
        let (path, _) = &case.files[3][0];
        case.nodes.daemons[3].change_once_opened(path);
        let results = case.nodes.run(2, &case.rebuild_job(&catalog, 0, 0), 0);
        let named = results[&NodeRank(3)].as_ref().unwrap_err();
        assert!(named.moved && results[&NodeRank(0)].is_err(), "{scheme}: {results:?}");
        let mut failures = results.values().filter_map(|result| result.as_ref().err());
        assert!(failures.all(|failure| !failure.is_bad()), "{scheme}: {results:?}");
        case.nodes.daemons[0].wipe();
        let again = case.nodes.run(3, &case.rebuild_job(&catalog, 0, 0), 0);
        assert!(again.values().all(Result::is_ok), "{scheme}: {again:?}");
        case.assert_files(0, 0);
    }
}
