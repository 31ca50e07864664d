//! Stage two for `[sink.NAME]`: each by itself. Who writes to which file is for `writers`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::paths;
use super::relay;
use crate::config::file::raw_sink::{RawKind, RawSink};
use crate::config::file::setting::{Setting, WordOr, duration_within, within};
use crate::config::names::check_name;
use crate::config::sinks::{Consumers, Sink};
use crate::format::Format;
use crate::settings::{Findings, Located};
use crate::sink::Settings;
use crate::sink::file::{FileSettings, Keep, Rotate, Sync, template};
use crate::sink::kafka::KafkaSettings;
use crate::sink::null::NullSink;
use crate::sink::stdout::StdoutSettings;
use crate::sink::unix::{UnixSettings, UnixSocket};

const CONSUMERS_MAX: u64 = 1024;

/// A file that is shorter than this costs more to begin than to write.
const ROTATE_BYTES_MIN: u64 = 64 << 10;

const DAY: Duration = Duration::from_secs(86_400);

/// The sink, if its type is known and all that its type needs is right.
pub(crate) fn validate(raw: &RawSink, report: &mut Findings<'_>) -> Option<Sink> {
    report.accept(check_name(&raw.name.value), &raw.name.place);
    if raw.kind.is_absent() {
        let cure = "write type = \"file\", \"stdout\", \"udp\", \"unix\", \"kafka\" or \"null\"";
        report.say(&raw.place.inner("type"), "is missing", cure);
    }
    let settings: Option<Settings> = match raw.kind.get()?.value {
        RawKind::Null => Some(Arc::new(NullSink)),
        RawKind::Stdout => Some(Arc::new(StdoutSettings { format: raw.format.or(Format::default()) })),
        RawKind::File => file(raw, report).map(|settings| Arc::new(settings) as Settings),
        RawKind::Udp => relay::validate(raw, report).map(|settings| Arc::new(settings) as Settings),
        RawKind::Unix => unix(raw, report).map(|settings| Arc::new(settings) as Settings),
        RawKind::Kafka => kafka(raw, report).map(|settings| Arc::new(settings) as Settings),
    };
    let consumers = consumers(&raw.consumers, report);
    let queue_batches = raw.queue_batches.get().map(|queue| within(queue, 1, 65_536, 256, report));
    let mut sink = Sink { settings: settings?, ..Sink::new(raw.name.value.clone(), NullSink) };
    sink.consumers = consumers.unwrap_or(sink.consumers);
    sink.queue_batches = queue_batches.unwrap_or(sink.queue_batches);
    sink.when_full = raw.when_full.or(sink.when_full);
    Some(sink)
}

fn file(raw: &RawSink, report: &mut Findings<'_>) -> Option<FileSettings> {
    let sync = sync(&raw.sync, report);
    let rotate = rotate(raw, report);
    if let (Sync::WhenFinished, true, Some(written)) = (sync, rotate == Rotate::NEVER, raw.sync.get()) {
        let what = "nothing would ever be synced, because the file never rotates";
        report.say(&written.place, what, "write sync = \"1s\" or another duration, or let it rotate");
    }
    if raw.path.is_absent() {
        let cure = "write path = \"/var/log/udpd/{listener}.log\", for example";
        report.say(&raw.place.inner("path"), "is missing", cure);
    }
    let path = raw.path.get()?;
    report.accept(template::check(&path.value), &path.place)?;
    report.accept(paths::check_file(&path.value), &path.place)?;
    let keep = Keep { files: raw.keep_files.or(0), bytes: raw.keep_bytes.or(0) };
    let format = raw.format.or(Format::default());
    Some(FileSettings { path: path.value.clone(), format, rotate, keep, sync })
}

fn rotate(raw: &RawSink, report: &mut Findings<'_>) -> Rotate {
    let rotate = Rotate {
        bytes: raw.rotate_bytes.or(Rotate::default().bytes),
        every: raw.rotate_every.or(Rotate::default().every),
    };
    if let Some(bytes) = raw.rotate_bytes.get().filter(|bytes| (1..ROTATE_BYTES_MIN).contains(&bytes.value)) {
        let what = format!("a file of {} bytes is full at once", bytes.value);
        report.say(&bytes.place, what, "write \"64KiB\" or more; 0 = never");
    }
    if let Some(every) = raw.rotate_every.get().filter(|every| !every.value.is_zero()) {
        let least = Duration::from_secs(1);
        duration_within(every, least, DAY, "\"0s\" = never", report);
        if every.value >= least && !DAY.as_nanos().is_multiple_of(every.value.as_nanos()) {
            let what = "a day is not a multiple of it, so files would begin at other times every day";
            report.say(&every.place, what, "write \"1m\", \"15m\", \"1h\", \"6h\", \"24h\" or the like");
        }
    }
    rotate
}

fn sync(raw: &Setting<WordOr<Duration>>, report: &mut Findings<'_>) -> Sync {
    let Some(Located { value, place }) = raw.get() else { return Sync::default() };
    match value {
        WordOr::Word("rotate") => Sync::WhenFinished,
        WordOr::Word(_) => Sync::Never,
        WordOr::Amount(duration) => {
            let (least, most) = (Duration::from_millis(1), Duration::from_secs(3600));
            let located = Located { value: *duration, place: place.clone() };
            Sync::Every(duration_within(&located, least, most, "\"never\" leaves it to the kernel", report))
        }
    }
}

fn unix(raw: &RawSink, report: &mut Findings<'_>) -> Option<UnixSettings> {
    let (is_stream, by_length) = (raw.is_stream.or(false), raw.by_length.or(false));
    if let (Some(written), false) = (raw.by_length.get(), is_stream) {
        let what = "messages of a datagram socket need no framing";
        report.say(&written.place, what, "remove it, or write socket = \"stream\"");
    }
    let framed = is_stream && !by_length;
    if let (Some(written), false) = (raw.format.get(), framed) {
        let what = "the payload is handed on as it is";
        report.say(&written.place, what, "remove it, or write socket = \"stream\" and framing = \"newline\"");
    }
    if let Some(written) = raw.format.get().filter(|format| framed && format.value == Format::Pcapng) {
        report.say(&written.place, "a capture is not a sequence of lines", "write format = \"jsonl\" or \"lines\"");
    }
    if raw.path.is_absent() {
        report.say(&raw.place.inner("path"), "is missing", "write path = \"/run/collector.sock\", for example");
    }
    let path = raw.path.get()?;
    let path = report.accept(paths::check_socket(&path.value), &path.place)?;
    let socket = match (is_stream, by_length) {
        (false, _) => UnixSocket::Datagram,
        (true, true) => UnixSocket::Stream(Format::Lengths),
        (true, false) => UnixSocket::Stream(raw.format.or(Format::default())),
    };
    Some(UnixSettings { path, socket })
}

fn kafka(raw: &RawSink, report: &mut Findings<'_>) -> Option<KafkaSettings> {
    report.accept(KafkaSettings::check_build(), &raw.kind.get()?.place)?;
    for (setting, key, example) in [(&raw.brokers, "brokers", "\"10.0.0.5:9092\""), (&raw.topic, "topic", "\"syslog\"")]
    {
        match setting.get() {
            Some(written) if written.value.trim().is_empty() => {
                report.say(&written.place, "is empty", format!("write {key} = {example}, for example"));
            }
            None if setting.is_absent() => {
                report.say(&raw.place.inner(key), "is missing", format!("write {key} = {example}, for example"));
            }
            _ => {}
        }
    }
    if let Some(acks) = raw.acks.get().filter(|acks| !["all", "-1", "1", "0"].contains(&acks.value.as_str())) {
        let what = format!("{:?} is unknown", acks.value);
        report.say(
            &acks.place,
            what,
            "write \"all\", \"1\" (the leader) or \"0\" (nobody, so that a loss is not seen)",
        );
    }
    let properties = raw.properties.iter().flatten();
    let sink = KafkaSettings {
        brokers: raw.brokers.get()?.value.clone(),
        topic: raw.topic.get()?.value.clone(),
        key_by_source: raw.key_by_source.or(true),
        acks: raw.acks.or("all".to_owned()),
        properties: properties.clone().map(|(name, value)| (name.value.clone(), value.clone())).collect(),
    };
    if let Err(error) = sink.check() {
        let key = error.key().unwrap_or_default();
        let own = [("brokers", &raw.brokers), ("topic", &raw.topic), ("acks", &raw.acks)];
        let own = own.iter().find(|(name, _)| *name == key).and_then(|(_, setting)| setting.get());
        let property =
            properties.map(|(name, _)| &name.place).zip(&sink.properties).find(|(_, (name, _))| *name == key);
        let place = own.map(|written| &written.place).or(property.map(|(place, _)| place));
        report.say(place.unwrap_or(&raw.place.inner("properties")), error.what(), "docs/kafka.md says more");
    }
    Some(sink)
}

fn consumers(raw: &Setting<WordOr<u64>>, report: &mut Findings<'_>) -> Option<Consumers> {
    let Located { value, place } = raw.get()?;
    match value {
        WordOr::Word(_) => Some(Consumers::PerLane),
        WordOr::Amount(count) if (1..=CONSUMERS_MAX).contains(count) => {
            usize::try_from(*count).ok().and_then(NonZeroUsize::new).map(Consumers::Count)
        }
        WordOr::Amount(count) => {
            let cure = format!("write a number from 1 to {CONSUMERS_MAX}, or \"per_lane\"; 1 is the default");
            report.say(place, format!("{count} is outside 1 to {CONSUMERS_MAX}"), cure);
            None
        }
    }
}
