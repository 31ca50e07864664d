//! What is written of a sink of type `file`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::template;
use udpd_base::codec::{Method, Recipe};
use udpd_base::format::Format;
use udpd_base::format::encoder::{Encoder, Scene};
use udpd_base::format::prefix::LinePrefix;
use udpd_base::os::paths;
use udpd_base::settings::kinds::{ByteSize, OneOf, Or, QuotedText, SubTable, TimeSpan, WholeNumber};
use udpd_base::settings::{Field, Findings, ValueKind, settings};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units::print_duration;

settings! {
    /// What is written of a sink of type `file`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FileSettings {
        /// Absolute path. Filled in are {listener}, {lane}, {consumer} and {sink}, and %Y %m %d %H %M %S in UTC. With
        /// {source}, {source/24}, {source_port} or {destination} each datagram goes to the file of its addresses.
        path: String = required like "/var/log/udpd/{listener}-{consumer}.log", QuotedText(check_path),
            elsewhere "file filename";
        /// How a datagram is written.
        format: Format = "lines", OneOf(&Format::WORDS);
        /// When a new file is begun.
        rotate: Rotate = {}, SubTable;
        /// How much of the finished files is kept.
        keep: Keep = {}, SubTable;
        /// When written records are forced to the disk: never, when a file is finished, or this long after the write.
        sync: Sync = "1s",
            Or(&[("never", Sync::Never), ("rotate", Sync::WhenFinished)], TimeSpan(SYNC), Sync::Every),
            elsewhere "fsync";
        /// What stands in front of each line of format "lines": "time", "source", "time source" or nothing.
        prefix: LinePrefix = "", OneOf(&LinePrefix::WORDS);
        /// By what finished files are compressed: "gzip", "zstd" (a cargo feature) or nothing.
        compress: Option<Method> = "", OneOf(METHODS), elsewhere "compression gzip";
        /// How hard that tries: 1 to 9 for gzip, 1 to 19 for zstd. Without it 6 and 3.
        compress_level: Option<u32> = "auto", Or(&[("auto", None)], WholeNumber(1..=19), Some);
        /// With {source} in path: so many files each consumer has open at once.
        open_files: usize = 1000, WholeNumber(1..=1_000_000);
        /// With {source} in path: so many sources get a file of their own from each consumer.
        sources_max: usize = 16_384, WholeNumber(1..=4_000_000);
        /// With {source} in path: so many bytes of records each consumer gathers before it writes them.
        buffer_bytes: u64 = "16MiB", ByteSize(BUFFER);
    }
}

settings! {
    /// When a new file is begun.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Rotate {
        /// From this size on; 0 = never.
        bytes: u64 = "1GiB", RotateBytes;
        /// At every multiple of this since midnight, UTC; "0s" = never.
        every: Duration = "1h", RotateEvery;
    }
}

settings! {
    /// How much of the finished files is kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Keep {
        /// So many finished files; 0 = all.
        files: u64 = 0, WholeNumber(0..=u64::MAX);
        /// So many bytes of them; 0 = all.
        bytes: u64 = 0, ByteSize(0..=u64::MAX);
    }
}

/// A file that is shorter than this costs more to begin than to write.
const ROTATE_BYTES_MIN: u64 = 64 << 10;

const DAY: Duration = Duration::from_secs(86_400);

const BUFFER: RangeInclusive<u64> = (1 << 20)..=(1 << 30);

const SYNC: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

pub(super) fn check_path(path: &str) -> Result<String, ValueAdvice> {
    template::check(path)?;
    paths::check_file(path)?;
    Ok(path.to_owned())
}

/// A size, or 0.
struct RotateBytes;

impl ValueKind<u64> for RotateBytes {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<u64> {
        let bytes = ByteSize(0..=u64::MAX).read(field, findings)?;
        if (1..ROTATE_BYTES_MIN).contains(&bytes) {
            let what = format!("a file of {bytes} bytes is full at once");
            findings.say(&field.place(), what, "write \"64KiB\" or more; 0 = never");
        }
        Some(bytes)
    }

    fn bounds(&self) -> String {
        "\"64KiB\" or more, or 0".to_owned()
    }
}

/// A duration of which a day is a multiple, or none.
struct RotateEvery;

impl ValueKind<Duration> for RotateEvery {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Duration> {
        let every = TimeSpan(Duration::ZERO..=Duration::MAX).read(field, findings)?;
        if !every.is_zero() && !(Duration::from_secs(1)..=DAY).contains(&every) {
            let what = format!("{} is outside \"1s\" to \"24h\"", print_duration(every));
            findings.say(&field.place(), what, "write \"1s\" to \"24h\"; \"0s\" = never");
        } else if !every.is_zero() && !DAY.as_nanos().is_multiple_of(every.as_nanos()) {
            let what = "a day is not a multiple of it, so files would begin at other times every day";
            findings.say(&field.place(), what, "write \"1m\", \"15m\", \"1h\", \"6h\", \"24h\" or the like");
        }
        Some(every)
    }

    fn bounds(&self) -> String {
        "\"1s\" to \"24h\", a part of a day, or \"0s\"".to_owned()
    }
}

/// What `compress` can be.
const METHODS: &[(&str, Option<Method>)] = &[("", None), ("gzip", Some(Method::Gzip)), ("zstd", Some(Method::Zstd))];

impl FileSettings {
    /// Settings of which only the path is written.
    pub fn new(path: String) -> Self {
        Self { path, ..Self::default() }
    }

    /// How finished files are compressed, if they are.
    pub(super) fn recipe(&self) -> Option<Recipe> {
        let method = self.compress?;
        Some(Recipe { method, level: self.compress_level.unwrap_or(method.level_default()) })
    }

    /// Writes records of these lanes.
    pub(super) fn encoder(&self, scenes: &Arc<[Scene]>, writes: impl Fn(usize) -> bool) -> Encoder {
        Encoder::new(self.format, Arc::clone(scenes), writes).with_prefix(self.prefix)
    }
}

impl Keep {
    /// Nothing is removed.
    pub const ALL: Self = Self { files: 0, bytes: 0 };
}

impl Rotate {
    /// One file for ever.
    pub const NEVER: Self = Self { bytes: 0, every: Duration::ZERO };
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
