//! Clocks: how far another one is from this node's, as far as the time that asking took lets one
//! say.

/// Another clock minus ours, in seconds: somewhere between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Skew {
    /// At least.
    pub least: f64,
    /// At most.
    pub most: f64,
}

impl Skew {
    /// The other clock showed `other` at some moment between `before` and `after` of ours, to
    /// within `grain`.
    pub fn between(before: f64, other: f64, after: f64, grain: f64) -> Self {
        Self { least: other - after - grain, most: other - before + grain }
    }

    /// By how much they differ for certain.
    pub fn certain(self) -> f64 {
        if self.least > 0.0 {
            self.least
        } else if self.most < 0.0 {
            -self.most
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_certain_is_what_the_asking_does_not_explain() {
        for (before, other, after, certain) in [
            (10.0, 10.5, 11.0, 0.0),
            (10.0, 12.0, 11.0, 1.0),
            (10.0, 7.0, 11.0, 3.0),
            (10.0, 10.0, 10.0, 0.0),
            (10.0, 100.0, 70.0, 30.0),
        ] {
            let skew = Skew::between(before, other, after, 0.0);
            assert!((skew.certain() - certain).abs() < 1e-9, "{skew:?}");
        }
        assert!(Skew::between(10.0, 11.5, 11.0, 0.5).certain() < 1e-9);
    }
}
