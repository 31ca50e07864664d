//! The fuzz targets of all crates by name, and what runs them. A target is a function of bytes that come from outside:
//! it reads them as the daemon does, and asserts what must hold whatever they are.
//!
//! There are two forms. The short one is a test, `tests/short.rs`: it replays the corpus of each target, and changes of
//! it that come from a seed. The long one is `tests/rigs/fuzz.sh`: libFuzzer with coverage and the address sanitizer.
//!
//! | path | what it is |
//! |---|---|
//! | `src/testing/fuzz.rs` of a crate | its targets, behind its feature `testing` |
//! | `tests/corpus/fuzz/TARGET/` | inputs: those that reach different code, and those that once failed |
//! | `tests/corpus/fuzz/TARGET.dict` | words of the format, as libFuzzer reads them |
#![forbid(unsafe_code)]

mod corpus;
mod mutation;

pub use corpus::{Corpus, corpus_of};
pub use mutation::Mutator;

/// A function that must take any bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Panics when something does not hold.
    pub run: fn(&[u8]),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// The longest input that is tried.
pub const INPUT_BYTES_MAX: usize = 4096;

/// What one run may allocate in sum.
pub const RUN_BYTES_MAX: usize = 64 << 20;

/// All targets, those that strangers on the network reach first.
pub fn targets() -> Vec<Target> {
    let all = [
        mmsg::fuzz::targets(),
        udpd_inspect::fuzz::targets(),
        udpd_base::fuzz::targets(),
        udpd_file::fuzz::targets(),
        udpd_spill::fuzz::targets(),
        udpd_endpoint::fuzz::targets(),
        udpd_engine::fuzz::targets(),
        udpd_sinks::fuzz::targets(),
        udpd_daemon::fuzz::targets(),
        udpd_tools::fuzz::targets(),
        netlink::fuzz::targets(),
        steer::fuzz::targets(),
        hostloss::fuzz::targets(),
        bpf::fuzz::targets(),
    ];
    all.concat().into_iter().map(|(name, run)| Target { name, run }).collect()
}

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|target| target.name == name)
}
