use super::*;

const ID: DatasetId = DatasetId(7);

fn path(name: &str) -> RelPath {
    RelPath::new(name).unwrap()
}

fn paths(names: &[&str]) -> Vec<RelPath> {
    names.iter().map(|name| path(name)).collect()
}

/// Effects in short words; waiters are numbers.
fn told(effects: &[Effect<u32>]) -> Vec<String> {
    let one = |effect: &Effect<u32>| match effect {
        Effect::Read(Reading { path, waited: true, .. }) => format!("hurry {path}"),
        Effect::Read(Reading { path, .. }) => format!("read {path}"),
        Effect::Verified(_, paths) => {
            let paths: Vec<_> = paths.iter().map(ToString::to_string).collect();
            format!("good {}", paths.join(" "))
        }
        Effect::Answer(waiter) => format!("answer {waiter}"),
        Effect::Bring(waiter) => format!("bring {waiter}"),
        Effect::Done(_, bad) => {
            format!("done, {} bad", bad.len())
        }
        Effect::Whole(_) => "whole".to_owned(),
    };
    effects.iter().map(one).collect()
}

fn reading(effects: &[Effect<u32>]) -> Reading {
    let read = effects.iter().find_map(|effect| match effect {
        Effect::Read(reading) => Some(reading.clone()),
        _ => None,
    });
    read.expect("something is read")
}

/// The lead is told what was read.
fn tell(files: &mut Verification<u32>, effects: &[Effect<u32>]) -> Vec<String> {
    let done = effects.iter().find_map(|effect| match effect {
        Effect::Done(round, _) => Some(*round),
        _ => None,
    });
    told(&files.told(done.expect("all is read")))
}

fn bad() -> Outcome {
    Outcome::Bad("CRC".into())
}

#[test]
fn what_a_program_opens_is_read_before_all_else() {
    let mut files: Verification<u32> = Verification::default();
    assert!(files.begin(ID, paths(&["a", "b", "c"])).is_empty(), "programs are not served yet");
    let behind = files.serve();
    assert_eq!(told(&behind), ["read a"]);
    let first = files.wants(ID, &path("c"), 1).unwrap();
    assert_eq!(told(&first), ["hurry c"]);
    assert_eq!(told(&files.wants(ID, &path("c"), 2).unwrap()), [""; 0], "it is being read");
    assert_eq!(files.wants(ID, &path("x"), 3), Err(3), "not of those");
    assert_eq!(told(&files.ended(&reading(&behind), Outcome::Good)), ["good a"], "a program waits");
    let behind = files.ended(&reading(&first), Outcome::Good);
    assert_eq!(told(&behind), ["good c", "answer 1", "answer 2", "read b"]);
    assert_eq!(files.wants(ID, &path("c"), 4), Err(4), "it is read");
    let ended = files.ended(&reading(&behind), Outcome::Good);
    assert_eq!(told(&ended), ["good b", "done, 0 bad"]);
    assert_eq!(tell(&mut files, &ended), ["whole"]);
    assert_eq!(told(&files.serve()), [""; 0], "it is being recorded");
}

/// Whoever reads behind the programs may have to wait for them.
#[test]
fn a_file_that_is_read_behind_the_programs_is_read_beside_that_for_one_that_opens_it() {
    let mut files: Verification<u32> = Verification::default();
    files.begin(ID, paths(&["a"]));
    let behind = files.serve();
    let hurried = files.wants(ID, &path("a"), 1).unwrap();
    assert_eq!(told(&hurried), ["hurry a"]);
    let ended = files.ended(&reading(&behind), Outcome::Good);
    assert_eq!(told(&ended), ["good a", "answer 1", "done, 0 bad"]);
    assert_eq!(told(&files.ended(&reading(&hurried), Outcome::Good)), [""; 0]);
}

#[test]
fn a_bad_file_stays_unread_until_it_is_replaced() {
    let mut files: Verification<u32> = Verification::default();
    files.begin(ID, paths(&["a", "b"]));
    let hurried = files.wants(ID, &path("a"), 1).unwrap();
    assert_eq!(told(&files.ended(&reading(&hurried), bad())), ["bring 1"]);
    let behind = files.serve();
    assert_eq!(told(&behind), ["read b"], "not a again");
    let ended = files.ended(&reading(&behind), Outcome::Good);
    assert_eq!(told(&ended), ["good b", "done, 1 bad"]);
    assert_eq!(tell(&mut files, &ended), [""; 0]);
    let again = files.wants(ID, &path("a"), 2).unwrap();
    assert_eq!(told(&again), ["hurry a"], "it may have been rebuilt since");
    assert_eq!(told(&files.replaced(ID, &paths(&["a", "b"]))), ["good a", "answer 2", "whole"]);
    assert_eq!(told(&files.ended(&reading(&again), bad())), [""; 0], "of what is not there any more");
}

/// Two read a file: one finds it bad and removes it, and is overtaken by the other.
#[test]
fn why_a_file_was_removed_is_told_by_who_has_read_it() {
    let missing = || Outcome::Missing("no such file".into());
    let reason = |effects: &[Effect<u32>]| match effects.last() {
        Some(Effect::Done(_, bad)) => bad[0].1.to_string(),
        other => panic!("{other:?}"),
    };
    for behind_first in [true, false] {
        let mut files: Verification<u32> = Verification::default();
        files.begin(ID, paths(&["a"]));
        let behind = reading(&files.serve());
        let hurried = reading(&files.wants(ID, &path("a"), 1).unwrap());
        let (first, second) = if behind_first { (behind, hurried) } else { (hurried, behind) };
        assert_eq!(told(&files.ended(&first, missing())), [""; 0]);
        let ended = files.ended(&second, bad());
        assert_eq!(
            (told(&ended), reason(&ended)),
            (vec!["bring 1".into(), "done, 1 bad".into()], "CRC".into())
        );
    }
    let mut files: Verification<u32> = Verification::default();
    files.begin(ID, paths(&["a"]));
    let behind = reading(&files.serve());
    assert_eq!(reason(&files.ended(&behind, missing())), "no such file", "it was lost");
}

#[test]
fn a_new_lead_is_told_again() {
    let mut files: Verification<u32> = Verification::default();
    files.begin(ID, paths(&["a"]));
    let behind = files.serve();
    let former = files.ended(&reading(&behind), bad());
    assert_eq!(told(&former), ["done, 1 bad"]);
    let again = files.serve();
    assert_eq!(told(&again), ["done, 1 bad"]);
    // What is told of a former presentation is nothing of this one.
    files.begin(ID, Vec::new());
    assert_eq!(tell(&mut files, &again), [""; 0]);
    let done = files.serve();
    assert_eq!(
        (told(&done), tell(&mut files, &done)),
        (vec!["done, 0 bad".to_owned()], vec!["whole".to_owned()])
    );
}

#[test]
fn who_waits_for_what_is_gone_looks_again() {
    let mut files: Verification<u32> = Verification::default();
    files.begin(ID, paths(&["a", "b"]));
    let hurried = files.wants(ID, &path("a"), 1).unwrap();
    files.wants(ID, &path("b"), 2).unwrap();
    let gone = files.ended(&reading(&hurried), Outcome::Gone);
    assert_eq!(told(&gone), ["answer 1", "answer 2"]);
    assert_eq!(files.wants(ID, &path("a"), 3), Err(3));
}

#[test]
fn a_reading_for_a_former_presentation_says_nothing() {
    let mut files: Verification<u32> = Verification::default();
    files.begin(ID, paths(&["a"]));
    let former = files.wants(ID, &path("a"), 1).unwrap();
    assert_eq!(told(&files.begin(ID, paths(&["a"]))), ["answer 1"]);
    assert!(!files.is_wanted(&reading(&former)));
    assert_eq!(told(&files.ended(&reading(&former), Outcome::Good)), [""; 0]);
    assert!(files.wants(ID, &path("a"), 2).is_ok());
}

#[test]
fn a_few_are_read_at_a_time() {
    let mut files: Verification<u32> = Verification::default();
    let names: Vec<String> = (0..20).map(|n| format!("f{n:02}")).collect();
    files.begin(ID, names.iter().map(|name| path(name)).collect());
    let wants = |(n, name): (u32, &String)| files.wants(ID, &path(name), n).unwrap();
    let effects: Vec<Effect<u32>> = (0..).zip(&names).flat_map(wants).collect();
    assert_eq!(effects.len(), READERS_MAX);
    let next = files.ended(&reading(&effects), Outcome::Good);
    assert_eq!(told(&next), ["good f00", "answer 0", "hurry f08"]);
    assert_eq!(files.take_waiters(|waiter| *waiter >= 8), (8..20).collect::<Vec<u32>>());
    assert_eq!(files.waiters(), 7);
    let next = files.ended(&reading(&next), Outcome::Good);
    assert_eq!(told(&next), ["good f08"], "nobody waits for the next one any more");
}

/// Every program gets one answer, and no file that was found bad is ever said to be good.
#[test]
fn seeds() {
    for seed in 0..3_000_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut files: Verification<u32> = Verification::default();
        let (mut running, mut asked, mut answered): (Vec<Reading>, u32, Vec<u32>) =
            (Vec::new(), 0, Vec::new());
        let rotten: Vec<bool> = (0..6).map(|_| below(4) == 0).collect();
        let (mut done, mut whole) = (None, false);
        let mut take = |effects: Vec<Effect<u32>>, running: &mut Vec<Reading>, may_be_good: bool| {
            for effect in effects {
                match effect {
                    Effect::Read(reading) => running.push(reading),
                    Effect::Answer(waiter) | Effect::Bring(waiter) => answered.push(waiter),
                    Effect::Verified(_, paths) => {
                        let index = |path: &RelPath| usize::from(path.as_bytes()[0] - b'0');
                        let good = paths.iter().all(|path| !rotten[index(path)]);
                        assert!(good || may_be_good, "seed {seed}");
                    }
                    Effect::Done(round, bad) => done = Some((round, bad.len())),
                    Effect::Whole(_) => whole = true,
                }
            }
        };
        let names: Vec<RelPath> = (0..6).map(|n| path(&n.to_string())).collect();
        take(files.begin(ID, names.clone()), &mut running, false);
        for _ in 0..40 {
            let effects = match below(8) {
                0 => files.serve(),
                1..=3 => {
                    asked += 1;
                    let which = usize::try_from(below(6)).unwrap();
                    files
                        .wants(ID, &names[which], asked)
                        .unwrap_or_else(|waiter| vec![Effect::Answer(waiter)])
                }
                _ if running.is_empty() => continue,
                _ => {
                    let at = usize::try_from(below(running.len() as u64)).unwrap();
                    let reading = running.swap_remove(at);
                    let which = usize::from(reading.path.as_bytes()[0] - b'0');
                    files.ended(&reading, if rotten[which] { bad() } else { Outcome::Good })
                }
            };
            take(effects, &mut running, false);
            assert!(running.iter().filter(|reading| reading.waited).count() <= READERS_MAX, "seed {seed}");
        }
        take(files.serve(), &mut running, false);
        while let Some(reading) = running.pop() {
            let which = usize::from(reading.path.as_bytes()[0] - b'0');
            let effects = files.ended(&reading, if rotten[which] { bad() } else { Outcome::Good });
            take(effects, &mut running, false);
        }
        take(files.replaced(ID, &names), &mut running, true);
        let (round, bad) = done.expect("all is read");
        assert_eq!(bad, rotten.iter().filter(|bad| **bad).count(), "seed {seed}");
        assert_eq!(files.left(ID), 0, "seed {seed}: {files:?}");
        assert!(!whole && told(&files.told(round)) == ["whole"], "seed {seed}: {files:?}");
        answered.sort_unstable();
        assert_eq!(answered, (1..=asked).collect::<Vec<u32>>(), "seed {seed}");
    }
}
