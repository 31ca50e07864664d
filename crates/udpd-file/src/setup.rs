//! From what is written of a sink of type `file` to an open one.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use super::keeper::FileKeeper;
use super::settings::{FileSettings, Rotate, Sync, check_path};
use super::sink::{FileSink, paths_of_lanes};
use super::sources::{FILE_SYSTEMS_MAX, SourcesSink, memory_bytes_max};
use super::template;
use crate::stdout::StdoutSettings;
use udpd_base::codec::Recipe;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::Format;
use udpd_base::format::prefix::LinePrefix;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::{Findings, WrittenKeys};
use udpd_base::sink::outbox;
use udpd_base::sink::settings::{AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget};
use udpd_base::sink::written::{Scheme, Uri, WrittenSink, wrong};

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
        if let (true, Some(place)) =
            (self.format != Format::Lines && self.prefix != LinePrefix::None, written.place("prefix"))
        {
            findings.say(&place, "only lines have a prefix", "remove it, or write format = \"lines\"");
        }
        self.check_compression(written, findings);
        for key in ["open_files", "sources_max", "buffer_bytes"] {
            if let (false, Some(place)) = (self.is_by_datagram(), written.place(key)) {
                let what = format!("{key} is for files by source, and path has no {{source}}");
                findings.say(&place, what, "remove it, or put {source} into the path");
            }
        }
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
        "-" | "" => Ok(StdoutSettings { format }.finished()),
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

    /// Whether the addresses of a datagram say which file it goes to.
    fn is_by_datagram(&self) -> bool {
        template::is_by_datagram(&self.path)
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

    fn memory_bytes(&self, consumers: usize, files: usize) -> usize {
        match self.is_by_datagram() {
            true => consumers * memory_bytes_max(self),
            false => files * outbox::memory_bytes_max(),
        }
    }

    fn compression_bytes(&self) -> usize {
        self.recipe().map_or(0, Recipe::memory_bytes)
    }

    fn files_open(&self, consumers: usize, files: usize) -> usize {
        match self.is_by_datagram() {
            true => consumers * (self.open_files + OPEN_BESIDE),
            false => 2 * files,
        }
    }

    fn needs(&self) -> Needs {
        // Files by source are begun and finished by their consumer.
        Needs::only(if self.is_by_datagram() { ThreadRole::FileKeeper } else { ThreadRole::Writer })
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let Opening { sink, consumer, scenes, feeds, caller, shared, context, .. } = opening;
        let paths = paths_of_lanes(&self.path, scenes, feeds, sink, consumer);
        let fail = |error: io::Error| {
            let shown: Vec<&str> = paths.iter().flatten().map(String::as_str).collect();
            failure(sink, &shown.join(" or "), &error)
        };
        let shared = match shared {
            Some(shared) => shared,
            none => none.insert(Box::new(FileKeeper::new(feeds.len(), context.clone()).map_err(fail)?)),
        };
        let keeper = shared.downcast_mut().expect("what the consumers of a sink share is of its type");
        if self.is_by_datagram() {
            let (sink, ledger) = SourcesSink::open(paths.clone(), scenes, self, keeper, caller).map_err(fail)?;
            return Ok(OpenedSink { files: vec![ledger], ..OpenedSink::new(sink) });
        }
        let (sink, files) = FileSink::open(&paths, scenes, self, keeper, caller).map_err(fail)?;
        Ok(OpenedSink { files, ..OpenedSink::new(sink) })
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        before.of_type() == Some(self) && !(differs.lanes && self.format == Format::Pcapng)
    }
}

fn failure(sink: &str, paths: &str, error: &io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            (ExitCode::Permission, "; let the user of udpd write there, or choose another path")
        }
        _ if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            (ExitCode::Disk, "; it is a symbolic link, which udpd does not follow: write the path that it leads to")
        }
        _ => (ExitCode::Disk, ""),
    };
    Failure::new(code, format!("sink {sink}: cannot open {paths} for appending: {error}{cure}"))
}
