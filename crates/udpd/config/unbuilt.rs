//! Keys that the documentation names and this version cannot honour yet.
//!
//! They are refused, never accepted and ignored: an operator who wrote `rotate = ...` and got a running daemon would
//! believe that something is being rotated. The value that means "off" or "as today" is accepted, so that a file which
//! spells out every default works. Each refusal says what works today.

use super::raw::RawKind;
use super::reader::{Located, Place, Report, Setting, Table};

/// Which sinks a key belongs to; the keys that every sink has are not listed.
const BELONGS: &[(&str, &[&str])] = &[
    ("format", &["file", "stdout"]),
    ("path", &["file", "unix"]),
    ("rotate", &["file"]),
    ("keep", &["file"]),
    ("sync", &["file"]),
    ("destinations", &["udp"]),
    ("distribute", &["udp"]),
    ("keep_source", &["udp"]),
    ("brokers", &["kafka"]),
    ("topic", &["kafka"]),
    ("key", &["kafka"]),
    ("acks", &["kafka"]),
    ("properties", &["kafka"]),
];

fn refuse(report: &mut Report<'_>, place: &Place, what: &str, today: &str) {
    report.say(place, format!("{what} is not built yet"), today);
}

/// Refuses every word but the first, which is what this version does anyway.
fn only_first(table: &mut Table<'_>, report: &mut Report<'_>, key: &'static str, words: &[&'static str], today: &str) {
    let pairs: Vec<_> = words.iter().map(|word| (*word, *word)).collect();
    if let Setting::Is(word) = table.choice(report, key, &pairs)
        && word.value != words[0]
    {
        refuse(report, &word.place, &format!("{key} = {:?}", word.value), today);
    }
}

/// Refuses a number that is not 0.
fn only_zero(table: &mut Table<'_>, report: &mut Report<'_>, key: &'static str, what: &str, today: &str) {
    if let Setting::Is(number) = table.size(report, key)
        && number.value != 0
    {
        refuse(report, &number.place, what, today);
    }
}

/// The keys of `[sink.NAME]` that cannot be honoured, and those that a sink of this type does not have.
pub(super) fn refuse_in_sink(kind: &Setting<RawKind>, table: &mut Table<'_>, report: &mut Report<'_>) {
    refuse_strangers(kind, table, report);
    if let Some(Located { value: RawKind::Unbuilt(name), place }) = kind.get() {
        let today = "type = \"file\", \"stdout\" or \"null\" work today";
        refuse(report, place, &format!("a sink of type {name:?}"), today);
    }
    only_first(table, report, "format", &["lines", "jsonl", "pcapng"], "format = \"lines\" works today");
    table.inner(report, "rotate", |rotate, report| {
        let today = "remove it; today the file grows until something else moves it away";
        only_zero(rotate, report, "bytes", "rotating by size", today);
        if let Setting::Is(every) = rotate.duration(report, "every")
            && !every.value.is_zero()
        {
            refuse(report, &every.place, "rotating by time", today);
        }
    });
    table.inner(report, "keep", |keep, report| {
        let today = "write 0, which keeps everything, as today; remove old files with systemd-tmpfiles or cron";
        only_zero(keep, report, "files", "removing old files", today);
        only_zero(keep, report, "bytes", "removing old files", today);
    });
    // Read for their types by nobody: the type of the sink has been refused, or the key has as a stranger.
    for key in ["destinations", "distribute", "keep_source", "brokers", "topic", "key", "acks", "properties"] {
        table.take(key);
    }
}

fn refuse_strangers(kind: &Setting<RawKind>, table: &mut Table<'_>, report: &mut Report<'_>) {
    let own = match kind.get().map(|kind| kind.value) {
        Some(RawKind::Null) => "null",
        Some(RawKind::Stdout) => "stdout",
        Some(RawKind::File) => "file",
        Some(RawKind::Unbuilt(_)) | None => return,
    };
    for (key, kinds) in BELONGS {
        let Some(place) = table.key_place(key) else { continue };
        if !kinds.contains(&own) {
            let owners = kinds.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(" or ");
            let what = format!("a sink of type {own:?} has no {key}");
            report.say(&place, what, format!("remove it; {key} belongs to a sink of type {owners}"));
        }
    }
}
