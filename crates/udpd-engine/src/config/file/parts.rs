//! A whole file: the settings of each table with their places, before any is checked against another.

use toml::de::{DeTable, DeValue};

use super::sinks::{SinkPart, read_sinks, sink_keys};
use crate::config::daemon::DaemonConfig;
use crate::config::listener::ListenerConfig;
use crate::config::steer::SteerConfig;
use udpd_base::settings::{Field, Findings, KeyDeclaration, Keys, Section, TableSettings, TomlTable};

/// Every key that a file may hold.
pub(crate) fn keys() -> Keys {
    let daemon = KeyDeclaration::header("daemon", "[daemon]", "The process itself.", "global");
    let listener =
        KeyDeclaration::header("listener", "[[listener]]", "One port, on one or several addresses.", "listeners");
    let steer = KeyDeclaration::header("steer", "[steer]", "The receive queues and interrupts of interfaces.", "");
    let mut keys = vec![daemon];
    keys.extend(DaemonConfig::keys("daemon"));
    keys.push(listener);
    keys.extend(ListenerConfig::keys("listener"));
    keys.extend(sink_keys());
    keys.push(steer);
    keys.extend(SteerConfig::keys("steer"));
    Keys(keys)
}

/// A whole file.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub daemon: Option<Section<'a, DaemonConfig>>,
    pub listeners: Vec<Section<'a, ListenerConfig>>,
    pub sinks: Vec<SinkPart<'a>>,
    pub steer: Option<Section<'a, SteerConfig>>,
    /// False when `listener` or `sink` is there but of the wrong type, which has been reported.
    pub complete: bool,
}

/// Reads the whole file; problems go to `findings`.
pub(crate) fn read<'a>(entries: &'a DeTable<'a>, findings: &mut Findings<'_>) -> Parts<'a> {
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
    Parts { daemon, listeners, sinks, steer, complete }
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
