//! What is written of a sink of type `file`.

use std::time::Duration;

use crate::format::Format;

/// What is written of a sink of type `file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSettings {
    /// Absolute path with `{listener}`, `{lane}`, `{consumer}` and `{sink}`, and `%Y %m %d %H %M %S`, to be filled in.
    pub path: String,
    pub format: Format,
    /// When a new file is begun.
    pub rotate: Rotate,
    /// How much of the old ones is kept.
    pub keep: Keep,
    /// When written records are forced to the disk.
    pub sync: Sync,
}

impl FileSettings {
    /// Settings of which only the path is written.
    pub fn new(path: String) -> Self {
        let (rotate, keep, sync) = (Rotate::default(), Keep::default(), Sync::default());
        Self { path, format: Format::default(), rotate, keep, sync }
    }
}

/// When a new file is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotate {
    /// From this size on; 0 = never.
    pub bytes: u64,
    /// At every multiple of this since midnight, UTC; zero = never.
    pub every: Duration,
}

impl Default for Rotate {
    fn default() -> Self {
        Self { bytes: 1 << 30, every: Duration::from_secs(3600) }
    }
}

impl Rotate {
    /// One file for ever.
    pub const NEVER: Self = Self { bytes: 0, every: Duration::ZERO };
}

/// How many finished files are kept, and how many bytes of them; 0 = all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    pub files: u64,
    /// Bytes of all of them together.
    pub bytes: u64,
}

/// When written records are forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    Never,
    /// When a file is finished.
    WhenFinished,
    /// At most this long after the write.
    Every(Duration),
}

impl Default for Sync {
    fn default() -> Self {
        Self::Every(Duration::from_secs(1))
    }
}
