//! Two ways to do the same work, in turn, so that a machine that drifts drifts for both.

use std::io;

/// Medians of what the pairs gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) first: f64,
    pub(crate) second: f64,
    /// The median of the pairs' ratios, second to first; not the ratio of the medians.
    pub(crate) ratio: f64,
}

/// Runs `first` and `second` `count` times each, the order swapped from pair to pair. One more pair
/// comes before, which warms caches and allocators and does not count.
pub(crate) fn run(
    label: &str,
    count: usize,
    mut first: impl FnMut() -> io::Result<f64>,
    mut second: impl FnMut() -> io::Result<f64>,
) -> io::Result<Pairs> {
    let (mut firsts, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..=count {
        eprint!("\r{label}: pair {pair} of {count} ");
        let (a, b) = if pair % 2 == 0 {
            let a = first()?;
            (a, second()?)
        } else {
            let b = second()?;
            (first()?, b)
        };
        if pair > 0 {
            firsts.push(a);
            seconds.push(b);
            ratios.push(b / a);
        }
    }
    eprintln!();
    Ok(Pairs { first: median(firsts), second: median(seconds), ratio: median(ratios) })
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
