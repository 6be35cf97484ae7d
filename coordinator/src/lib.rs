//! scrfs-coordinator: one MPI process per node, beside the program. In reading order:

pub mod job;
pub mod lead;
pub mod pfs;
