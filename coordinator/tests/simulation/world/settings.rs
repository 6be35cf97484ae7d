//! A job's settings, as a seed has them.

use scrfs::control::{MarkerScope, SealRules, Settings};
use scrfs::dataset::{Protection, Protections, Scheme};

use crate::rng::Rng;

fn protection(rng: &mut Rng) -> Protection {
    let rs = Scheme::ReedSolomon { failures: 2 };
    let scheme = *rng.pick(&[Scheme::Xor, rs, Scheme::Partner, Scheme::Single]).expect("some");
    let (set_size, failures) = *rng.pick(&[(2, 1), (3, 2), (8, 3)]).expect("some");
    let scheme = if scheme == rs { Scheme::ReedSolomon { failures } } else { scheme };
    Protection { set_size, ..Protection::by(scheme) }
}

fn protections(rng: &mut Rng) -> Protections {
    let usual = protection(rng);
    if usual.scheme != Scheme::Xor || usual.set_size != 3 {
        return Protections::all(usual);
    }
    // As with several levels: every other dataset is not protected.
    let descriptors = vec![Protection { interval: 2, ..usual.clone() }];
    Protections { usual: Protection { scheme: Scheme::Single, ..usual }, descriptors }
}

pub(super) fn of(rng: &mut Rng) -> Settings {
    let scope = if rng.chance(25) { MarkerScope::All } else { MarkerScope::Any };
    Settings {
        prefix: b"/pfs".to_vec(),
        user: "u".to_owned(),
        job_id: "j".to_owned(),
        checkpoint_path: None,
        coordinator_wait_ms: 10_000,
        seal_timeout_ms: 30_000,
        cache_size: *rng.pick(&[1, 2, 2, 3]).expect("some"),
        cache_bytes: 0,
        protections: protections(rng),
        enable: true,
        flush_every: *rng.pick(&[0, 1, 2, 3]).expect("some"),
        scrub_interval_ms: 0,
        fetch: rng.chance(90),
        distribute: rng.chance(92),
        list_max: 100,
        jobs: scrfs::control::JobRules { block_bytes: 4096, encode_threads: 1 },
        sealing: SealRules { scope, background: rng.chance(30), ..SealRules::default() },
        loose: scrfs::control::LooseRules::default(),
        restart: scrfs::control::RestartRules::default(),
        advice: scrfs::control::AdviceRules::default(),
    }
}
