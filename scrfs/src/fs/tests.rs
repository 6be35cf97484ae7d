//! Whole operations without a mount.
