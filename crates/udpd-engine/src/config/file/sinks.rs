//! `[sink.NAME]`: the keys that every sink has, and then those of its type.

use toml::de::DeValue;

use crate::config::names::check_name;
use crate::config::sinks::{Common, SinkConfig};
use udpd_base::settings::kinds::OneOf;
use udpd_base::settings::{
    Field, Findings, KeyDeclaration, TableSettings, TomlTable, ValueKind, ValuePlace, WrittenKeys,
};
use udpd_sinks::types;
use udpd_sinks::types::SINK_TYPES;

/// `[sink.NAME]` as it was read.
#[derive(Debug)]
pub(crate) struct SinkPart<'a> {
    pub name: String,
    /// `None` when its type is unknown or something of it is wrong, which has been reported.
    pub sink: Option<SinkConfig>,
    pub written: WrittenKeys<'a>,
}

/// The names of the types, each with its place in the table.
const TYPE_WORDS: [(&str, usize); SINK_TYPES.len()] = {
    let mut words = [("", 0); SINK_TYPES.len()];
    let mut place = 0;
    while place < words.len() {
        words[place] = (SINK_TYPES[place].name, place);
        place += 1;
    }
    words
};

/// Every key of a sink of any type.
pub(crate) fn sink_keys() -> Vec<KeyDeclaration> {
    let mut kind = KeyDeclaration::header("sink.*.type", "\"file\"", "Where the datagrams go.", "");
    kind.bounds = ValueKind::<usize>::bounds(&OneOf(&TYPE_WORDS));
    let header = KeyDeclaration::header("sink", "[sink.archive]", "Where datagrams go.", "sinks");
    [vec![header, kind], types::keys("sink.*"), Common::keys("sink.*")].concat()
}

/// `None` when it is no table of tables.
pub(crate) fn read_sinks<'a>(field: &Field<'a>, findings: &mut Findings<'_>) -> Option<Vec<SinkPart<'a>>> {
    let cure = "write [sink.NAME], such as [sink.archive]";
    if let DeValue::Array(items) = field.value {
        let offset = items.iter().next().map_or(field.span.start, |item| item.span().start);
        let place = ValuePlace { offset, key: field.key.clone() };
        findings.say(&place, "a sink stands under its own name, not in a list", cure);
        return None;
    }
    let table = TomlTable::open(field, findings, "a table of sinks")?;
    let mut sinks = Vec::new();
    let mut named = table.fields();
    // The parser sorts by name; the order of the file is what the operator sees in the ledger.
    named.sort_by_key(|(name, _)| name.place.offset);
    for (name, field) in named {
        let DeValue::Table(_) = field.value else {
            findings.say(&name.place, "stands in no sink: a sink has a name of its own", cure);
            return None;
        };
        let Some(table) = TomlTable::open(&field, findings, "a table") else { continue };
        findings.accept(check_name(&name.value), &name.place);
        let (sink, written) = read_sink(&name.value, table, findings);
        sinks.push(SinkPart { name: name.value, sink, written });
    }
    Some(sinks)
}

fn read_sink<'a>(
    name: &str,
    mut table: TomlTable<'a>,
    findings: &mut Findings<'_>,
) -> (Option<SinkConfig>, WrittenKeys<'a>) {
    let before = findings.count();
    let common = Common::read(&mut table, findings);
    let is_right = findings.count() == before;
    let Some(kind) = table.take("type") else {
        let cure = format!("write type = {}", ValueKind::<usize>::bounds(&OneOf(&TYPE_WORDS)));
        findings.say(&table.place.inner("type"), "is missing", cure);
        return (None, leave(table, findings));
    };
    let Some(kind) = OneOf(&TYPE_WORDS).read(&kind, findings) else { return (None, leave(table, findings)) };
    let (settings, written) = SINK_TYPES[kind].read(table, findings);
    (settings.filter(|_| is_right).map(|settings| SinkConfig::with(name, settings, common)), written)
}

/// Nobody can tell what the keys of an unknown type mean, only which keys no type has.
fn leave<'a>(mut table: TomlTable<'a>, findings: &mut Findings<'_>) -> WrittenKeys<'a> {
    types::keys(&table.schema).iter().for_each(|key| drop(table.take(key.name())));
    table.finish(findings)
}
