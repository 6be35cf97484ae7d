//! What a simulated cluster is run by: its keeper, the init of its nodes, the way into them.

fn main() -> std::process::ExitCode {
    scrfs_harness::simnode::main(std::env::args().skip(1))
}
