//! The types of sink that can be written: in a file with `type = "NAME"`, on the command line with `--to SCHEME:`.
//!
//! The table has one line a type. All else about a type stands in its own folder.

use crate::http::HttpSettings;
use crate::kafka::KafkaSettings;
use crate::null::NullSink;
use crate::relay::RelaySettings;
use crate::tcp::TcpSettings;
use crate::unix::UnixSettings;
use udpd_base::settings::{Findings, KeyDeclaration, Section, TomlTable, WrittenKeys};
use udpd_base::sink::settings::AnySettings;
use udpd_base::sink::settings::{Scheme, WrittenSink};
use udpd_file::FileSettings;
use udpd_file::stdout::StdoutSettings;
use udpd_file::upload::ServiceSlot;
#[cfg(not(feature = "http"))]
use {std::sync::Arc, udpd_file::upload::UploadService};

/// Every type, in the order in which messages name them.
pub const SINK_TYPES: &[SinkType] = &[
    SinkType::of::<NullSink>(),
    SinkType::of::<StdoutSettings>(),
    SinkType { read: read_files, ..SinkType::of::<FileSettings>() },
    SinkType::of::<RelaySettings>(),
    SinkType::of::<TcpSettings>(),
    SinkType::of::<HttpSettings>(),
    SinkType::of::<UnixSettings>(),
    SinkType::of::<KafkaSettings>(),
];

/// The settings of a table, if it is right, and which of its keys are written where.
type Read<'a> = (Option<AnySettings>, WrittenKeys<'a>);

#[derive(Debug)]
pub struct SinkType {
    /// As `type` names it.
    pub name: &'static str,
    /// How the command line names it.
    pub schemes: &'static [Scheme],
    keys: fn(&str) -> Vec<KeyDeclaration>,
    read: for<'a> fn(TomlTable<'a>, &mut Findings<'_>) -> Read<'a>,
}

impl SinkType {
    const fn of<T: WrittenSink>() -> Self {
        Self { name: T::NAME, schemes: T::SCHEMES, keys: T::keys, read: read::<T> }
    }

    /// Its keys besides those of every sink, under the path of the table.
    pub fn keys(&self, table: &str) -> Vec<KeyDeclaration> {
        (self.keys)(table)
    }

    /// Reads the rest of a table whose keys of every sink are read. A key that belongs to another type is refused,
    /// never accepted and ignored: an operator who wrote `rotate` for a relay would believe that something is being
    /// rotated.
    pub fn read<'a>(&self, mut table: TomlTable<'a>, findings: &mut Findings<'_>) -> Read<'a> {
        let own = self.keys(&table.schema);
        for key in &own {
            findings.keys.set_example(&key.path, key.example.clone());
        }
        let schema = table.schema.clone();
        for key in findings.keys.under(&schema).map(|key| key.name().to_owned()).collect::<Vec<_>>() {
            let owners = owners(&schema, &key);
            if owners.is_empty() || owners.contains(&self.name) {
                continue;
            }
            table.note_foreign(&key);
            if let (Some(place), true) = (table.key_place(&key), table.take(&key).is_some()) {
                let owners: Vec<String> = owners.iter().map(|name| format!("{name:?}")).collect();
                let what = format!("a sink of type {:?} has no {key}", self.name);
                let cure = format!("remove it; {key} belongs to a sink of type {}", owners.join(" or "));
                findings.say(&place, what, cure);
            }
        }
        (self.read)(table, findings)
    }
}

/// The types that have the key, whose own path would be `table.key`.
fn owners(table: &str, key: &str) -> Vec<&'static str> {
    let path = format!("{table}.{key}");
    let has = |kind: &&SinkType| kind.keys(table).iter().any(|own| own.path == path);
    SINK_TYPES.iter().filter(has).map(|kind| kind.name).collect()
}

fn read<'a, T: WrittenSink>(mut table: TomlTable<'a>, findings: &mut Findings<'_>) -> Read<'a> {
    if let (Err(advice), Some(place)) = (T::available(), table.take("type").map(|field| field.place())) {
        findings.refuse(&place, advice);
        T::keys(&table.schema).iter().for_each(|key| drop(table.take(key.name())));
        return (None, table.finish(findings));
    }
    let before = findings.count();
    let section: Section<'_, T> = Section::read(table, findings);
    if findings.count() == before {
        section.settings.check(&section.written, findings);
    }
    let settings = (findings.count() == before).then(|| section.settings.finished());
    (settings, section.written)
}

/// A sink whose files are uploaded gets from here what uploads them: its own crate knows no connections.
fn read_files<'a>(table: TomlTable<'a>, findings: &mut Findings<'_>) -> Read<'a> {
    let (settings, written) = read::<FileSettings>(table, findings);
    let files = settings.as_deref().and_then(|settings| settings.of_type::<FileSettings>());
    let Some(files) = files.filter(|files| !files.upload.url.is_empty()) else { return (settings, written) };
    let uploading = uploads(files, &written, findings).map(|service| {
        let mut files = files.clone();
        files.upload.service = ServiceSlot(Some(service));
        files.finished()
    });
    (uploading, written)
}

#[cfg(feature = "http")]
use crate::http::upload::provide as uploads;

#[cfg(not(feature = "http"))]
fn uploads(_: &FileSettings, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) -> Option<Arc<dyn UploadService>> {
    let place = written.place("upload")?;
    findings.say(&place, "this udpd was built without uploads", "build it with: cargo build --release --features http");
    None
}

/// The keys of all types under the path of the table, each once; the help says what it means to which types.
pub fn keys(table: &str) -> Vec<KeyDeclaration> {
    let all: Vec<(&str, KeyDeclaration)> =
        SINK_TYPES.iter().flat_map(|kind| kind.keys(table).into_iter().map(|key| (kind.name, key))).collect();
    let mut keys: Vec<KeyDeclaration> = Vec::new();
    for (_, key) in &all {
        let alike = |other: &KeyDeclaration| other.path == key.path && other.help == key.help;
        let types: Vec<&str> = all.iter().filter(|(_, other)| alike(other)).map(|(name, _)| *name).collect();
        let help = format!("({}) {}", types.join(", "), key.help);
        match keys.iter_mut().find(|known| known.path == key.path) {
            None => keys.push(KeyDeclaration { help, ..key.clone() }),
            Some(known) if !known.help.contains(&help) => known.help += &format!(" {help}"),
            Some(_) => {}
        }
    }
    keys
}
