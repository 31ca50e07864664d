//! Programs in the kernel: assembled here by hand and loaded with `bpf(2)`, so that they need neither a compiler nor a
//! library, only the right to load them.
//!
//! `assembler` writes instructions and knows nothing of the kernel; `calls` hands programs and maps to it, as `layouts`
//! has them; `by_core` is the program that counts where datagrams arrive, `sources` the one that refuses them by where
//! they come from, as `source_program` writes it; `types` reads the kernel's description of itself.

pub(crate) mod assembler;
mod by_core;
pub(crate) mod calls;
mod layouts;
mod source_program;
mod sources;
#[cfg(feature = "af_xdp")]
pub(crate) mod types;

pub use by_core::{Arrivals, CoreCounter};
pub(crate) use by_core::{POSSIBLE, parse_cores};
pub use source_program::SourceShape;
pub use sources::{Loader, OwnRights, SourceFilter, SourceRanges, SourceTable, TURNS_MAX, load_program, make_array};
