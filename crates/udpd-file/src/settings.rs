//! The keys of a sink of type `file`, the checks of one key against another, and how that becomes an open sink.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::keeper::FileKeeper;
use super::sink::{FileSink, paths_of_lanes};
use super::sources::host_names::THREADS as LOOKUP_THREADS;
use super::sources::{FILE_SYSTEMS_MAX, SourcesSink, memory_bytes_max};
use super::template;
use super::upload::{UploadService, UploadSettings};
use crate::stdout::StdoutSettings;
use udpd_base::codec::{Method, Recipe};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::Format;
use udpd_base::format::prefix::{LinePrefix, LineStyle, Strip};
use udpd_base::format::{Encoder, Scene};
use udpd_base::os::local_time::{self, ShownTime};
use udpd_base::os::path_check;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::kinds::{ByteSize, OneOf, Or, QuotedText, SubTable, TimeSpan, WholeNumber};
use udpd_base::settings::{Field, Findings, ValueKind, ValuePlace, WrittenKeys, settings};
use udpd_base::sink::outbox;
use udpd_base::sink::settings::{AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget};
use udpd_base::sink::settings::{Scheme, Uri, WrittenSink, wrong};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units::print_duration;

settings! {
    /// What is written of a sink of type `file`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FileSettings {
        /// Absolute path. Filled in are {listener}, {lane}, {consumer} and {sink}, and %Y %m %d %H %M %S, see time.
        /// With {source}, {source/24}, {host}, {source_port} or {destination} each datagram goes to the file of its
        /// addresses.
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
        /// Which time stands in names, in the prefix, and is midnight for rotate: "utc", or "local" by TZ or
        /// /etc/localtime.
        time: ShownTime = "utc", OneOf(&ShownTime::WORDS), elsewhere "timezone tz";
        /// What is removed from the end of a payload in format "lines": "nul", one byte that is zero, or nothing.
        strip: Strip = "", OneOf(&Strip::WORDS);
        /// By what finished files are compressed: "gzip", "zstd" (a cargo feature) or nothing.
        compress: Option<Method> = "", OneOf(METHODS), elsewhere "compression gzip";
        /// How hard that tries: 1 to 9 for gzip, 1 to 19 for zstd. Without it 6 and 3.
        compress_level: Option<u32> = "auto", Or(&[("auto", None)], WholeNumber(1..=19), Some);
        /// Where finished files are uploaded: S3 or what speaks it.
        upload: UploadSettings = {}, SubTable;
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
        /// At every multiple of this since midnight, see time; "0s" = never.
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
    path_check::check_file(path)?;
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
        let style = LineStyle { prefix: self.prefix, time: self.time, strip: self.strip };
        Encoder::new(self.format, Arc::clone(scenes), writes).with_style(style)
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
    WhenFinished,
    /// At most this long after the write.
    Every(Duration),
}

/// What a consumer of files by source has open besides them: a file that is looked at, lists of finished ones, and a
/// directory on each file system.
const OPEN_BESIDE: usize = 4 + FILE_SYSTEMS_MAX;

impl WrittenSink for FileSettings {
    const NAME: &'static str = "file";
    const SCHEMES: &'static [Scheme] = &[
        Scheme { name: "file", form: "file:PATH", read: |uri| one_file(uri, Format::Lines) },
        Scheme { name: "jsonl", form: "jsonl:PATH (or jsonl:-)", read: |uri| file_or_stream(uri, Format::Jsonl) },
        Scheme { name: "pcapng", form: "pcapng:PATH (or pcapng:-)", read: |uri| file_or_stream(uri, Format::Pcapng) },
    ];

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        if let (Sync::WhenFinished, Rotate::NEVER, Some(place)) = (self.sync, self.rotate, written.place("sync")) {
            let what = "nothing would ever be synced, because the file never rotates";
            findings.say(&place, what, "write sync = \"1s\" or another duration, or let it rotate");
        }
        check_lines_only(self.format, self.prefix, self.strip, written, findings);
        if let (ShownTime::Local, Some(place)) = (self.time, written.place("time")) {
            check_local_time(&place, findings);
        }
        self.check_compression(written, findings);
        self.check_upload(written, findings);
        for key in ["open_files", "sources_max", "buffer_bytes"] {
            if let (false, Some(place)) = (self.is_by_datagram(), written.place(key)) {
                let what = format!("{key} is for files by source, and path has no {{source}}");
                findings.say(&place, what, "remove it, or put {source} into the path");
            }
        }
    }
}

/// Refuses what only lines have.
pub(crate) fn check_lines_only(
    format: Format,
    prefix: LinePrefix,
    strip: Strip,
    written: &WrittenKeys<'_>,
    findings: &mut Findings<'_>,
) {
    let keys = [("prefix", prefix != LinePrefix::None), ("strip", strip != Strip::Nothing)];
    for (key, _) in keys.into_iter().filter(|(_, is_on)| *is_on && format != Format::Lines) {
        if let Some(place) = written.place(key) {
            findings.say(&place, format!("only lines have a {key}"), "remove it, or write format = \"lines\"");
        }
    }
}

/// Refuses local time where its rules cannot be read.
pub(crate) fn check_local_time(place: &ValuePlace, findings: &mut Findings<'_>) {
    match local_time::local() {
        Err(why) => findings.say(place, why.as_str(), "correct TZ or /etc/localtime, or write time = \"utc\""),
        Ok(zone) if zone.is_utc() => {
            let what = "local time is UTC here: there is no TZ and no /etc/localtime";
            findings.warn(place, ValueAdvice::new(what, "link /etc/localtime to a file below /usr/share/zoneinfo"));
        }
        Ok(_) => {}
    }
}

/// One file for ever: who names a file on the command line looks for what comes into that file.
fn one_file(uri: &Uri<'_>, format: Format) -> Result<AnySettings, Failure> {
    let path = check_path(&uri.path()?).map_err(wrong)?;
    Ok(FileSettings { format, rotate: Rotate::NEVER, ..FileSettings::new(path) }.finished())
}

/// A scheme that is a format means standard output where it names no file: `pcapng:- | tshark -r -`.
fn file_or_stream(uri: &Uri<'_>, format: Format) -> Result<AnySettings, Failure> {
    match uri.rest {
        "-" | "" => Ok(StdoutSettings { format, ..StdoutSettings::default() }.finished()),
        _ => one_file(uri, format),
    }
}

impl FileSettings {
    fn check_compression(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let Some(method) = self.compress else {
            if let Some(place) = written.place("compress_level") {
                let cure = "write compress = \"gzip\" or \"zstd\", or remove it";
                findings.say(&place, "there is no level where nothing is compressed", cure);
            }
            return;
        };
        if let (Err(advice), Some(place)) = (method.available(), written.place("compress")) {
            findings.refuse(&place, advice);
        }
        let levels = method.levels();
        if let (Some(level), Some(place)) = (self.compress_level, written.place("compress_level"))
            && !levels.contains(&level)
        {
            let what = format!("{} has no level {level}", method.name());
            findings.say(&place, what, format!("write {} to {}", levels.start(), levels.end()));
        }
        if let (Rotate::NEVER, false, Some(place)) = (self.rotate, self.path.contains('%'), written.place("compress")) {
            let what = "nothing would ever be compressed, because the file never rotates";
            findings.say(&place, what, "let it rotate, or remove compress");
        }
    }

    /// The server and the secrets are checked by who makes the service.
    fn check_upload(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let Some(place) = written.place("upload").filter(|_| self.upload != UploadSettings::default()) else { return };
        if self.upload.url.is_empty() {
            let cure = "write upload = { url = \"https://HOST/BUCKET\", credentials_file = \"...\" }";
            return findings.say(&place, "names no bucket", cure);
        }
        if self.rotate == Rotate::NEVER && !self.path.contains('%') {
            let what = "nothing would ever be uploaded, because the file never rotates";
            findings.say(&place, what, "let it rotate, or remove upload");
        }
    }

    /// What uploads finished files, if they are.
    fn service(&self) -> Option<&dyn UploadService> {
        self.upload.service.0.as_deref()
    }

    /// Whether the addresses of a datagram say which file it goes to.
    fn is_by_datagram(&self) -> bool {
        template::is_by_datagram(&self.path)
    }

    /// Whether the name of its sender does.
    pub(super) fn is_by_name(&self) -> bool {
        template::needs_host(&self.path)
    }
}

impl SinkSettings for FileSettings {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Files(&self.path)
    }

    fn records_arrival(&self) -> bool {
        self.format.records_arrival() || self.prefix.has_time() || template::needs_destination(&self.path)
    }

    fn records_drops(&self) -> bool {
        self.format.records_drops()
    }

    fn in_format(&self, format: Format) -> Option<AnySettings> {
        Some(Arc::new(Self { format, ..self.clone() }))
    }

    fn with_prefix(&self, prefix: LinePrefix) -> Option<AnySettings> {
        Some(Arc::new(Self { prefix, ..self.clone() })).filter(|_| self.format == Format::Lines).map(|own| own as _)
    }

    fn memory_bytes(&self, consumers: usize, files: usize) -> usize {
        let of_uploads = self.service().map_or(0, UploadService::memory_bytes);
        of_uploads
            + match self.is_by_datagram() {
                true => consumers * memory_bytes_max(self),
                false => files * outbox::memory_bytes_max(),
            }
    }

    fn compression_bytes(&self) -> usize {
        self.recipe().map_or(0, Recipe::memory_bytes)
    }

    fn files_open(&self, consumers: usize, files: usize) -> usize {
        // The file that is uploaded, and the connection.
        let of_uploads = if self.service().is_some() { 2 } else { 0 };
        of_uploads
            + match self.is_by_datagram() {
                true => consumers * (self.open_files + OPEN_BESIDE),
                false => 2 * files,
            }
    }

    fn lookup_threads(&self, consumers: usize) -> usize {
        let of_uploads = self.service().map_or(0, |service| 1 + usize::from(service.is_named()));
        of_uploads + if self.is_by_name() { consumers * LOOKUP_THREADS } else { 0 }
    }

    fn uploads_to(&self) -> Option<String> {
        self.service().map(UploadService::place)
    }

    fn needs(&self) -> Needs {
        // Files by source are begun and finished by their consumer.
        let role = if self.is_by_datagram() { ThreadRole::FileKeeper } else { ThreadRole::Writer };
        let own = Needs { names: self.is_by_name(), ..Needs::only(role) };
        match self.service() {
            None => own,
            Some(service) => {
                Needs { names: own.names || service.is_named(), reads: service.reads(), uploads: true, ..own }
            }
        }
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let Opening { sink, consumer, scenes, feeds, caller, registry, shared, context, .. } = opening;
        let paths = paths_of_lanes(&self.path, scenes, feeds, sink, consumer);
        let first = paths.iter().flatten().next().unwrap_or(&self.path);
        let fail = |error: io::Error| failure(sink, first, &error);
        let shared = match shared {
            Some(shared) => shared,
            none => {
                let mut keeper = FileKeeper::new(feeds.len(), context.clone()).map_err(fail)?;
                if let Some(service) = &self.upload.service.0 {
                    keeper.upload_by(service, sink);
                }
                none.insert(Box::new(keeper))
            }
        };
        let keeper = shared.downcast_mut().expect("what the consumers of a sink share is of its type");
        if self.is_by_datagram() {
            let (sink, ledger) =
                SourcesSink::open(paths.clone(), scenes, self, keeper, caller, registry).map_err(fail)?;
            return Ok(OpenedSink { files: vec![ledger], ..OpenedSink::new(sink) });
        }
        let (sink, files) = FileSink::open(&paths, scenes, self, keeper, caller)
            .map_err(|(path, error)| failure(sink, &path, &error))?;
        Ok(OpenedSink { files, ..OpenedSink::new(sink) })
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        before.of_type() == Some(self) && !(differs.lanes && self.format == Format::Pcapng)
    }
}

fn failure(sink: &str, path: &str, error: &io::Error) -> Failure {
    // The kernel says of a file in the place of a directory that it exists.
    let in_the_way = Path::new(path).ancestors().skip(1).find(|above| above.metadata().is_ok_and(|is| is.is_file()));
    if let Some(file) = in_the_way {
        let what = format!("{} is a file, and no directory; remove it, or choose another path", file.display());
        return Failure::new(ExitCode::Disk, format!("sink {sink}: cannot open {path} for appending: {what}"));
    }
    let (code, cure) = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            (ExitCode::Permission, "; let the user of udpd write there, or choose another path")
        }
        _ if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            (ExitCode::Disk, "; it is a symbolic link, which udpd does not follow: write the path that it leads to")
        }
        _ => (ExitCode::Disk, ""),
    };
    Failure::new(code, format!("sink {sink}: cannot open {path} for appending: {error}{cure}"))
}
