//! Programs in the kernel: assembled here by hand and loaded with `bpf(2)`, so that they need neither a compiler nor a
//! library, only the right to load them.
//!
//! `assembler` writes instructions and knows nothing of the kernel; `calls` hands programs and maps to it, as `layouts`
//! has them; `by_core` is the program that counts where datagrams arrive.

pub(crate) mod assembler;
mod by_core;
pub(crate) mod calls;
mod layouts;

pub use by_core::{Arrivals, CoreCounter};
pub(crate) use by_core::{POSSIBLE, parse_cores};
