//! scrfs's formats and arithmetic against files that SCR wrote: see `tests/golden/README.md`.

#[cfg(test)]
mod hashes;
#[cfg(test)]
mod parity;
#[cfg(test)]
mod vectors;
