//! Compressed files: by which method, how one is written, and how one is read.
//!
//! gzip is in every build, by a library that is Rust alone: `zcat` is on every host. zstd takes less time for shorter
//! files, and a C compiler: what is written in Rust alone of it is young, and what it has written is
//! all that is left of a file. So it is a cargo feature, and a build without it says so.

mod decode;
mod encode;
mod method;

pub use decode::unpacked;
pub use encode::CompressingWriter;
pub use method::{Method, Recipe};
