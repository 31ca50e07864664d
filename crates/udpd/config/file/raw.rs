//! Stage one: the file as written, every value with its place in the text.
//!
//! Types are checked here, meaning is not: whether a number is in range or a sink exists is for `validate`. What is
//! absent stays absent, so that the defaults stand in one place only.

use std::time::Duration;

use steer::ethtool::FlowHash;
use steer::plan::Placement;
use toml::de::{DeTable, DeValue};

use super::raw_sink::{RawSink, read_sinks};
use super::reader::{Field, Located, Place, Report, Setting, Table};
use super::values::WordOr;
use crate::config::{Engine, OnTruncate, Spread, Timestamps};
use crate::logging::LogFormat;

/// A whole file.
#[derive(Debug)]
pub(crate) struct RawConfig {
    pub(crate) daemon: Option<RawDaemon>,
    pub(crate) listeners: Vec<RawListener>,
    pub(crate) sinks: Vec<RawSink>,
    pub(crate) steer: Option<RawSteer>,
    /// False when `listener` or `sink` is there but of the wrong type, which has been reported.
    pub(crate) complete: bool,
}

/// `[daemon]`.
#[derive(Debug)]
pub(crate) struct RawDaemon {
    pub(crate) control_socket: Setting<String>,
    pub(crate) metrics_address: Setting<String>,
    pub(crate) log_level: Setting<log::LevelFilter>,
    pub(crate) log_format: Setting<LogFormat>,
    pub(crate) stats_on_exit: Setting<String>,
}

/// `[steer]`.
#[derive(Debug)]
pub(crate) struct RawSteer {
    pub(crate) interfaces: Setting<Vec<Located<String>>>,
    pub(crate) rx_queues: Setting<WordOr<u64>>,
    pub(crate) ring: Setting<WordOr<u64>>,
    pub(crate) flow_hash_udp: Setting<Option<FlowHash>>,
    pub(crate) placement: Setting<Placement>,
    pub(crate) cpus: Setting<String>,
    pub(crate) ban_irqbalance: Setting<bool>,
}

/// `[[listener]]`.
#[derive(Debug)]
pub(crate) struct RawListener {
    pub(crate) place: Place,
    pub(crate) name: Setting<String>,
    pub(crate) address: Setting<Vec<Located<String>>>,
    pub(crate) interface: Setting<String>,
    pub(crate) lanes: Setting<WordOr<u64>>,
    pub(crate) spread: Setting<Spread>,
    pub(crate) engine: Setting<Engine>,
    pub(crate) share_port: Setting<bool>,
    pub(crate) gro: Setting<bool>,
    pub(crate) batch_size: Setting<u64>,
    pub(crate) max_length: Setting<u64>,
    pub(crate) on_truncate: Setting<OnTruncate>,
    pub(crate) gather: Setting<Duration>,
    pub(crate) receive_buffer: Setting<WordOr<u64>>,
    pub(crate) absorb_rate: Setting<u64>,
    pub(crate) absorb_stall: Setting<Duration>,
    pub(crate) busy_poll: Setting<Duration>,
    pub(crate) timestamps: Setting<Timestamps>,
    pub(crate) multicast_groups: Setting<Vec<Located<String>>>,
    pub(crate) multicast_interface: Setting<String>,
    pub(crate) sources: Setting<Vec<Located<String>>>,
    pub(crate) allow: Setting<Vec<Located<String>>>,
    pub(crate) deny: Setting<Vec<Located<String>>>,
    pub(crate) rate_per_source: Setting<u64>,
    pub(crate) rate_burst: Setting<u64>,
    pub(crate) sinks: Setting<Vec<Located<String>>>,
}

/// Reads the whole file; problems go to `report`.
pub(crate) fn read<'a>(entries: &'a DeTable<'a>, report: &mut Report<'_>) -> RawConfig {
    let mut root = Table::root(entries);
    let daemon = root.inner(report, "daemon", read_daemon);
    let listeners = root.take("listener").map(|field| read_listeners(&field, report));
    let sinks = root.take("sink").map(|field| read_sinks(&field, report));
    let steer = root.inner(report, "steer", read_steer);
    root.finish(report);
    let complete = !matches!(listeners, Some(None)) && !matches!(sinks, Some(None));
    RawConfig {
        daemon,
        listeners: listeners.flatten().unwrap_or_default(),
        sinks: sinks.flatten().unwrap_or_default(),
        steer,
        complete,
    }
}

fn read_daemon<'a>(table: &mut Table<'a>, report: &mut Report<'_>) -> RawDaemon {
    use log::LevelFilter::{Debug, Error, Info, Warn};
    RawDaemon {
        control_socket: table.string(report, "control_socket"),
        metrics_address: table.string(report, "metrics_address"),
        log_level: table.choice(
            report,
            "log_level",
            &[("error", Error), ("warn", Warn), ("info", Info), ("debug", Debug)],
        ),
        log_format: table.choice(report, "log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)]),
        stats_on_exit: table.string(report, "stats_on_exit"),
    }
}

/// `None` when it is no list of tables.
fn read_listeners<'a>(field: &Field<'a>, report: &mut Report<'_>) -> Option<Vec<RawListener>> {
    let DeValue::Array(items) = field.value else {
        let what = "a listener stands under two brackets on each side, because there may be several";
        report.say(&field.place(), what, "write [[listener]]");
        return None;
    };
    let mut listeners = Vec::with_capacity(items.len());
    for item in items {
        let element = Field { value: item.get_ref(), span: item.span(), ..field.clone() };
        let mut table = Table::open(&element, report, "a table under [[listener]]")?;
        listeners.push(read_listener(&mut table, report));
        table.finish(report);
    }
    Some(listeners)
}

fn read_listener<'a>(table: &mut Table<'a>, report: &mut Report<'_>) -> RawListener {
    let absorb = table
        .inner(report, "absorb", |absorb, report| (absorb.integer(report, "rate"), absorb.duration(report, "stall")));
    let (absorb_rate, absorb_stall) = absorb.unwrap_or((Setting::Absent, Setting::Absent));
    let limit = table.inner(report, "rate_limit", |limit, report| {
        (limit.integer(report, "per_source"), limit.integer(report, "burst"))
    });
    let (rate_per_source, rate_burst) = limit.unwrap_or((Setting::Absent, Setting::Absent));
    RawListener {
        place: table.place.clone(),
        name: table.string(report, "name"),
        address: table.one_or_more(report, "address"),
        interface: table.string(report, "interface"),
        lanes: table.integer_or(report, "lanes", &["auto"]),
        spread: table.choice(
            report,
            "spread",
            &[("flow", Spread::Flow), ("cpu", Spread::Cpu), ("queue", Spread::Queue), ("random", Spread::Random)],
        ),
        engine: table.choice(
            report,
            "engine",
            &[Engine::Auto, Engine::Recvmmsg, Engine::IoUring].map(|engine| (engine.name(), engine)),
        ),
        share_port: table.boolean(report, "share_port"),
        // GRO merges only runs of equal length from one sender, and needs slots of 64 KiB: most hosts would pay the
        // memory and gain nothing, so "auto" leaves it off until the program can tell which host is which.
        gro: table.choice(report, "gro", &[("auto", false), ("on", true), ("off", false)]),
        batch_size: table.integer(report, "batch_size"),
        max_length: table.size(report, "max_length"),
        on_truncate: table.choice(report, "on_truncate", &[("keep", OnTruncate::Keep), ("drop", OnTruncate::Drop)]),
        gather: table.duration(report, "gather"),
        receive_buffer: table.size_or(report, "receive_buffer", "auto"),
        absorb_rate,
        absorb_stall,
        busy_poll: table.duration(report, "busy_poll"),
        timestamps: table.choice(
            report,
            "timestamps",
            &[("auto", Timestamps::Auto), ("on", Timestamps::On), ("off", Timestamps::Off)],
        ),
        multicast_groups: table.strings(report, "multicast_groups"),
        multicast_interface: table.string(report, "multicast_interface"),
        sources: table.strings(report, "sources"),
        allow: table.strings(report, "allow"),
        deny: table.strings(report, "deny"),
        rate_per_source,
        rate_burst,
        sinks: table.strings(report, "sinks"),
    }
}

fn read_steer<'a>(table: &mut Table<'a>, report: &mut Report<'_>) -> RawSteer {
    let hashes = [("keep", None), ("sd", Some(FlowHash::ADDRESSES)), ("sdfn", Some(FlowHash::ADDRESSES_AND_PORTS))];
    RawSteer {
        interfaces: table.strings(report, "interfaces"),
        rx_queues: table.integer_or(report, "rx_queues", &["keep", "max"]),
        ring: table.integer_or(report, "ring", &["keep", "max"]),
        flow_hash_udp: table.choice(report, "flow_hash_udp", &hashes),
        placement: table.choice(
            report,
            "placement",
            &[("adjacent", Placement::Adjacent), ("same_core", Placement::SameCore)],
        ),
        cpus: table.string(report, "cpus"),
        ban_irqbalance: table.choice(report, "irqbalance", &[("warn", false), ("ban", true)]),
    }
}
