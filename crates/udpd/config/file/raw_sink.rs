//! Stage one for `[sink.NAME]`: each as written, and the refusal of keys that belong to another type of sink.
//!
//! A key that a sink of this type does not have is refused, never accepted and ignored: an operator who wrote `rotate`
//! for a relay would believe that something is being rotated.

use std::time::Duration;

use toml::de::DeValue;

use super::setting::{Setting, WordOr};
use crate::format::Format;
use crate::handover::channel::FullPolicy;
use crate::settings::{Field, Findings, Key, Located, Place, Table};
use crate::sink::relay::Distribute;

/// `[sink.NAME]`.
#[derive(Debug)]
pub(crate) struct RawSink {
    pub(crate) name: Located<String>,
    pub(crate) place: Place,
    pub(crate) kind: Setting<RawKind>,
    pub(crate) format: Setting<Format>,
    pub(crate) path: Setting<String>,
    pub(crate) rotate_bytes: Setting<u64>,
    pub(crate) rotate_every: Setting<Duration>,
    pub(crate) keep_files: Setting<u64>,
    pub(crate) keep_bytes: Setting<u64>,
    pub(crate) sync: Setting<WordOr<Duration>>,
    pub(crate) destinations: Setting<Vec<Located<String>>>,
    pub(crate) distribute: Setting<Distribute>,
    pub(crate) keep_source: Setting<bool>,
    pub(crate) is_stream: Setting<bool>,
    pub(crate) by_length: Setting<bool>,
    pub(crate) brokers: Setting<String>,
    pub(crate) topic: Setting<String>,
    pub(crate) key_by_source: Setting<bool>,
    pub(crate) acks: Setting<String>,
    pub(crate) properties: Option<Vec<(Located<String>, String)>>,
    pub(crate) consumers: Setting<WordOr<u64>>,
    pub(crate) queue_batches: Setting<u64>,
    pub(crate) when_full: Setting<FullPolicy>,
}

/// `type` of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawKind {
    Null,
    Stdout,
    File,
    Udp,
    Unix,
    Kafka,
}

impl RawKind {
    const NAMES: [(&'static str, RawKind); 6] = [
        ("null", RawKind::Null),
        ("stdout", RawKind::Stdout),
        ("file", RawKind::File),
        ("udp", RawKind::Udp),
        ("unix", RawKind::Unix),
        ("kafka", RawKind::Kafka),
    ];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Which sinks a key belongs to; the keys that every sink has are not listed.
const BELONGS: &[(&str, &[RawKind])] = &[
    ("format", &[RawKind::File, RawKind::Stdout, RawKind::Unix]),
    ("path", &[RawKind::File, RawKind::Unix]),
    ("rotate", &[RawKind::File]),
    ("keep", &[RawKind::File]),
    ("sync", &[RawKind::File]),
    ("destinations", &[RawKind::Udp]),
    ("distribute", &[RawKind::Udp]),
    ("keep_source", &[RawKind::Udp]),
    ("socket", &[RawKind::Unix]),
    ("framing", &[RawKind::Unix]),
    ("brokers", &[RawKind::Kafka]),
    ("topic", &[RawKind::Kafka]),
    ("key", &[RawKind::Kafka]),
    ("acks", &[RawKind::Kafka]),
    ("properties", &[RawKind::Kafka]),
];

/// Every key of a sink, an example of a right value, and what other programs call it.
const KEYS: &[(&str, &str, &str)] = &[
    ("sink", "[sink.archive]", "sinks"),
    ("sink.*.type", "\"file\"", ""),
    ("sink.*.format", "\"lines\"", ""),
    ("sink.*.path", "\"/var/log/udpd/{listener}-{consumer}.log\"", "file filename"),
    ("sink.*.rotate", "{ bytes = \"1GiB\", every = \"1h\" }", ""),
    ("sink.*.rotate.bytes", "\"1GiB\"", ""),
    ("sink.*.rotate.every", "\"1h\"", ""),
    ("sink.*.keep", "{ files = 0, bytes = 0 }", ""),
    ("sink.*.keep.files", "0", ""),
    ("sink.*.keep.bytes", "0", ""),
    ("sink.*.sync", "\"1s\"", "fsync"),
    ("sink.*.consumers", "1", "threads workers"),
    ("sink.*.queue_batches", "256", "queue_size"),
    ("sink.*.when_full", "\"drop_newest\"", "overflow"),
    ("sink.*.destinations", "[\"10.0.0.9:514\"]", ""),
    ("sink.*.distribute", "\"all\"", ""),
    ("sink.*.keep_source", "false", ""),
    ("sink.*.socket", "\"datagram\"", ""),
    ("sink.*.framing", "\"newline\"", ""),
    ("sink.*.brokers", "\"10.0.0.5:9092\"", ""),
    ("sink.*.topic", "\"syslog\"", ""),
    ("sink.*.key", "\"source\"", ""),
    ("sink.*.acks", "\"all\"", ""),
    ("sink.*.properties", "{}", ""),
];

pub(crate) fn sink_keys() -> impl Iterator<Item = Key> {
    KEYS.iter().map(|(path, example, elsewhere)| Key::header(path, example, "", elsewhere))
}

/// `None` when it is no table of tables.
pub(crate) fn read_sinks<'a>(field: &Field<'a>, report: &mut Findings<'_>) -> Option<Vec<RawSink>> {
    let cure = "write [sink.NAME], such as [sink.archive]";
    if let DeValue::Array(items) = field.value {
        let offset = items.iter().next().map_or(field.span.start, |item| item.span().start);
        report.say(&Place { offset, key: field.key.clone() }, "a sink stands under its own name, not in a list", cure);
        return None;
    }
    let table = Table::open(field, report, "a table of sinks")?;
    let mut sinks = Vec::new();
    let mut named = table.fields();
    // The parser sorts by name; the order of the file is what the operator sees in the ledger.
    named.sort_by_key(|(name, _)| name.place.offset);
    for (name, field) in named {
        let DeValue::Table(_) = field.value else {
            report.say(&name.place, "stands in no sink: a sink has a name of its own", cure);
            return None;
        };
        let Some(mut table) = Table::open(&field, report, "a table") else { continue };
        sinks.push(read_sink(name, &mut table, report));
        table.finish(report);
    }
    Some(sinks)
}

fn read_sink<'a>(name: Located<String>, table: &mut Table<'a>, report: &mut Findings<'_>) -> RawSink {
    let kind = table.choice(report, "type", &RawKind::NAMES);
    refuse_strangers(&kind, table, report);
    let pair = |table: &mut Table<'a>, report: &mut Findings<'_>| {
        (table.size(report, "bytes"), table.duration(report, "every"))
    };
    let (rotate_bytes, rotate_every) =
        table.inner(report, "rotate", pair).unwrap_or((Setting::Absent, Setting::Absent));
    let pair = |table: &mut Table<'a>, report: &mut Findings<'_>| {
        (table.integer(report, "files"), table.size(report, "bytes"))
    };
    let (keep_files, keep_bytes) = table.inner(report, "keep", pair).unwrap_or((Setting::Absent, Setting::Absent));
    RawSink {
        name,
        place: table.place.clone(),
        kind,
        format: table.choice(report, "format", &Format::WORDS),
        path: table.string(report, "path"),
        rotate_bytes,
        rotate_every,
        keep_files,
        keep_bytes,
        sync: table.duration_or(
            report,
            "sync",
            &[("never", WordOr::Word("never")), ("rotate", WordOr::Word("rotate"))],
        ),
        destinations: table.strings(report, "destinations"),
        distribute: table.choice(
            report,
            "distribute",
            &[("all", Distribute::All), ("by_source", Distribute::BySource)],
        ),
        keep_source: table.boolean(report, "keep_source"),
        is_stream: table.choice(report, "socket", &[("datagram", false), ("stream", true)]),
        by_length: table.choice(report, "framing", &[("newline", false), ("length", true)]),
        brokers: table.string(report, "brokers"),
        topic: table.string(report, "topic"),
        key_by_source: table.choice(report, "key", &[("source", true), ("none", false)]),
        acks: table.string(report, "acks"),
        properties: table.take("properties").and_then(|field| read_properties(&field, report)),
        consumers: table.integer_or(report, "consumers", &[("per_lane", WordOr::Word("per_lane"))]),
        queue_batches: table.integer(report, "queue_batches"),
        when_full: table.choice(
            report,
            "when_full",
            &[
                ("drop_newest", FullPolicy::DropNewest),
                ("drop_oldest", FullPolicy::DropOldest),
                ("block", FullPolicy::Block),
            ],
        ),
    }
}

/// The properties in the order of their names, each as the library takes it: as text.
fn read_properties(field: &Field<'_>, report: &mut Findings<'_>) -> Option<Vec<(Located<String>, String)>> {
    let table = Table::open(field, report, "a table")?;
    let text = |(name, field): (Located<String>, Field<'_>)| {
        let value = match field.value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Boolean(truth) => truth.to_string(),
            _ => {
                return field.wrong(report, "a string, a number or a boolean");
            }
        };
        Some((name, value))
    };
    Some(table.fields().into_iter().filter_map(text).collect())
}

fn refuse_strangers(kind: &Setting<RawKind>, table: &Table<'_>, report: &mut Findings<'_>) {
    let Some(own) = kind.get().map(|kind| kind.value) else { return };
    for (key, kinds) in BELONGS {
        let Some(place) = table.key_place(key) else { continue };
        if !kinds.contains(&own) {
            let owners = kinds.iter().map(|kind| format!("{:?}", kind.name())).collect::<Vec<_>>().join(" or ");
            let what = format!("a sink of type {:?} has no {key}", own.name());
            report.say(&place, what, format!("remove it; {key} belongs to a sink of type {owners}"));
        }
    }
}
