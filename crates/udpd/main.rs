//! The binary: arguments in, exit code out. Everything else is in the library beside it.

fn main() {}
