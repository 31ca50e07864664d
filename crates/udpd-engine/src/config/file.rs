//! A configuration file as it is written: its text, and the sections that the declarations of the keys read from it.
//! What the values mean together is for `check`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::check_name;
use super::daemon::DaemonConfig;
use super::listener::ListenerConfig;
use super::sinks::{CommonKeys, SinkConfig};
use super::steer::SteerConfig;
use udpd_base::settings::kinds::OneOf;
use udpd_base::settings::{
    Field, Findings, KeyDeclaration, Keys, Problems, Section, TableSettings, TomlTable, ValueKind, ValuePlace,
    WrittenKeys,
};
use udpd_base::text::advice::ValueAdvice;
use udpd_sinks::types::{self, SINK_TYPES};

/// A configuration is written by hand. A larger file is not one.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the text of the file. Each problem is reported with a line and a column like any other, so that a script needs
/// one pattern only.
pub(super) fn read_text(path: &Path, name: &str) -> Result<String, Problems> {
    read_bytes(path)
        .map_err(|advice| Problems::single(name, 1, 1, "file", advice))
        .and_then(|bytes| decode(bytes, name))
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, ValueAdvice> {
    let unreadable = |error: io::Error| ValueAdvice::new(format!("cannot be read: {error}"), cure_for(&error, path));
    // Checked before it is opened: opening a pipe waits until a process writes into it.
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        let file = path.join("udpd.toml");
        return Err(ValueAdvice::new("is a directory", format!("name the file in it, such as {}", file.display())));
    }
    if !metadata.is_file() {
        return Err(ValueAdvice::new("is not a regular file", "write the configuration into a file and name that"));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ValueAdvice::new("is larger than 1 MiB", "name the configuration, not some other file"));
    }
    Ok(bytes)
}

fn cure_for(error: &io::Error, path: &Path) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            "create it, name another with -c FILE, or do without: udpd run --listen ADDR --to URI".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "let the user that runs udpd read it and enter its directories: namei -l {shown} shows their rights"
            )
        }
        _ => format!("check that {shown} is a readable file"),
    }
}

fn decode(bytes: Vec<u8>, name: &str) -> Result<String, Problems> {
    if bytes.starts_with(&[0xEF, 0xBB, 0xBF]) {
        let cure = "save it as UTF-8 without BOM, or remove the first three bytes: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE";
        return Err(Problems::single(name, 1, 1, "file", ValueAdvice::new("begins with a byte order mark", cure)));
    }
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        let advice = ValueAdvice::new("is UTF-16", "save it as UTF-8 without BOM: iconv -f UTF-16 -t UTF-8 FILE");
        return Err(Problems::single(name, 1, 1, "file", advice));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bad = error.as_bytes()[valid];
        let before = String::from_utf8_lossy(&error.as_bytes()[..valid]);
        let (line, column) = Findings::new(name, &before, Keys::default()).position(before.len());
        let cure = "save the file as UTF-8; if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE";
        Problems::single(name, line, column, "file", ValueAdvice::new(format!("byte 0x{bad:02X} is not UTF-8"), cure))
    })
}

/// Every key that a file may hold.
pub(super) fn keys() -> Keys {
    let header = |path, shown, help, elsewhere| vec![KeyDeclaration::header(path, shown, help, elsewhere)];
    let mut sink_type = KeyDeclaration::header("sink.*.type", "\"file\"", "Where the datagrams go.", "");
    sink_type.bounds = ValueKind::<usize>::bounds(&OneOf(&TYPE_WORDS));
    Keys(
        [
            header("daemon", "[daemon]", "The process itself.", "global"),
            DaemonConfig::keys("daemon"),
            header("listener", "[[listener]]", "One port, on one or several addresses.", "listeners"),
            ListenerConfig::keys("listener"),
            header("sink", "[sink.archive]", "Where datagrams go.", "sinks"),
            vec![sink_type],
            types::keys("sink.*"),
            CommonKeys::keys("sink.*"),
            header("steer", "[steer]", "The receive queues and interrupts of interfaces.", ""),
            SteerConfig::keys("steer"),
        ]
        .concat(),
    )
}

/// The names of the sink types, each with its index in [`SINK_TYPES`].
const TYPE_WORDS: [(&str, usize); SINK_TYPES.len()] = {
    let mut words = [("", 0); SINK_TYPES.len()];
    let mut index = 0;
    while index < words.len() {
        words[index] = (SINK_TYPES[index].name, index);
        index += 1;
    }
    words
};

/// All sections of a file.
#[derive(Debug)]
pub(super) struct Sections<'a> {
    pub daemon: Option<Section<'a, DaemonConfig>>,
    pub listeners: Vec<Section<'a, ListenerConfig>>,
    pub sinks: Vec<SinkInFile<'a>>,
    pub steer: Option<Section<'a, SteerConfig>>,
    /// False when `listener` or `sink` is there but of the wrong type, which has been reported.
    pub complete: bool,
}

/// `[sink.NAME]` as it was read.
#[derive(Debug)]
pub(super) struct SinkInFile<'a> {
    pub name: String,
    /// `None` when its type is unknown or one of its values is wrong, which has been reported.
    pub sink: Option<SinkConfig>,
    pub written: WrittenKeys<'a>,
}

/// Reads all sections; problems go to `findings`.
pub(super) fn read_sections<'a>(entries: &'a DeTable<'a>, findings: &mut Findings<'_>) -> Sections<'a> {
    let mut root = TomlTable::root(entries);
    let sinks = entries.get("sink").and_then(|value| value.get_ref().as_table());
    if let Some((first, _)) = sinks.and_then(|sinks| sinks.iter().min_by_key(|(name, _)| name.span().start)) {
        findings.keys.set_example("listener.sinks", format!("[{:?}]", first.get_ref()));
    }
    let daemon = read_section(&mut root, "daemon", findings);
    let listeners = root.take("listener").map(|field| read_listeners(&field, findings));
    let sinks = root.take("sink").map(|field| read_sinks(&field, findings));
    let steer = read_section(&mut root, "steer", findings);
    root.finish(findings);
    let complete = !matches!(listeners, Some(None)) && !matches!(sinks, Some(None));
    let (listeners, sinks) = (listeners.flatten().unwrap_or_default(), sinks.flatten().unwrap_or_default());
    Sections { daemon, listeners, sinks, steer, complete }
}

fn read_section<'a, S: TableSettings>(
    root: &mut TomlTable<'a>,
    key: &'static str,
    findings: &mut Findings<'_>,
) -> Option<Section<'a, S>> {
    let table = TomlTable::open(&root.take(key)?, findings, "a table")?;
    Some(Section::read(table, findings))
}

/// `None` when it is no list of tables.
fn read_listeners<'a>(field: &Field<'a>, findings: &mut Findings<'_>) -> Option<Vec<Section<'a, ListenerConfig>>> {
    let DeValue::Array(items) = field.value else {
        let what = "a listener stands under two brackets on each side, because there may be several";
        findings.say(&field.place(), what, "write [[listener]]");
        return None;
    };
    let mut listeners = Vec::with_capacity(items.len());
    for item in items {
        let table = TomlTable::open(&field.element(item), findings, "a table under [[listener]]")?;
        listeners.push(Section::read(table, findings));
    }
    Some(listeners)
}

/// `None` when it is no table of tables.
fn read_sinks<'a>(field: &Field<'a>, findings: &mut Findings<'_>) -> Option<Vec<SinkInFile<'a>>> {
    let cure = "write [sink.NAME], such as [sink.archive]";
    if let DeValue::Array(items) = field.value {
        let offset = items.iter().next().map_or(field.span.start, |item| item.span().start);
        let place = ValuePlace { offset, key: field.key.clone() };
        findings.say(&place, "a sink stands under its own name, not in a list", cure);
        return None;
    }
    let mut named = TomlTable::open(field, findings, "a table of sinks")?.fields();
    // The parser sorts by name; the order of the file is what the operator sees in the ledger.
    named.sort_by_key(|(name, _)| name.place.offset);
    let mut sinks = Vec::new();
    for (name, field) in named {
        let DeValue::Table(_) = field.value else {
            findings.say(&name.place, "stands in no sink: a sink has a name of its own", cure);
            return None;
        };
        let Some(table) = TomlTable::open(&field, findings, "a table") else { continue };
        findings.accept(check_name(&name.value), &name.place);
        sinks.push(read_sink(name.value, table, findings));
    }
    Some(sinks)
}

fn read_sink<'a>(name: String, mut table: TomlTable<'a>, findings: &mut Findings<'_>) -> SinkInFile<'a> {
    let before = findings.count();
    let common = CommonKeys::read(&mut table, findings);
    let is_right = findings.count() == before;
    let written_type = table.take("type");
    if written_type.is_none() {
        let cure = format!("write type = {}", ValueKind::<usize>::bounds(&OneOf(&TYPE_WORDS)));
        findings.say(&table.place.inner("type"), "is missing", cure);
    }
    let Some(index) = written_type.and_then(|field| OneOf(&TYPE_WORDS).read(&field, findings)) else {
        // Of the keys of an unknown type only those are reported that no type has.
        types::keys(&table.schema).iter().for_each(|key| drop(table.take(key.name())));
        return SinkInFile { name, sink: None, written: table.finish(findings) };
    };
    let (settings, written) = SINK_TYPES[index].read(table, findings);
    let settings = settings.filter(|_| is_right);
    SinkInFile { sink: settings.map(|settings| SinkConfig::with(&name, settings, common)), name, written }
}
