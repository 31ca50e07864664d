//! Every key that a configuration may hold, each with a value that is right.
//!
//! One table, because three things must agree: what the reader accepts, what a message suggests, and what
//! `config/udpd.toml` explains (a test compares the last two with this table). `*` stands for the name of a sink.

use crate::text::suggest::nearest;

/// A key and an example of a right value, as it would be written.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) path: &'static str,
    pub(crate) example: &'static str,
}

const fn key(path: &'static str, example: &'static str) -> Key {
    Key { path, example }
}

/// All keys, in the order of the documentation.
pub(crate) const KEYS: &[Key] = &[
    key("daemon", "[daemon]"),
    key("daemon.control_socket", "\"/run/udpd/control.sock\""),
    key("daemon.metrics_address", "\"127.0.0.1:9817\""),
    key("daemon.log_level", "\"info\""),
    key("daemon.log_format", "\"text\""),
    key("daemon.stats_on_exit", "\"/var/lib/udpd/ledger.json\""),
    key("listener", "[[listener]]"),
    key("listener.name", "\"syslog\""),
    key("listener.address", "\"0.0.0.0:514\""),
    key("listener.interface", "\"eth0\""),
    key("listener.lanes", "\"auto\""),
    key("listener.spread", "\"cpu\""),
    key("listener.engine", "\"auto\""),
    key("listener.share_port", "false"),
    key("listener.gro", "\"auto\""),
    key("listener.batch_size", "64"),
    key("listener.max_length", "\"2KiB\""),
    key("listener.on_truncate", "\"keep\""),
    key("listener.gather", "\"0ms\""),
    key("listener.receive_buffer", "\"auto\""),
    key("listener.absorb", "{ rate = 200000, stall = \"250ms\" }"),
    key("listener.absorb.rate", "200000"),
    key("listener.absorb.stall", "\"250ms\""),
    key("listener.busy_poll", "\"0us\""),
    key("listener.timestamps", "\"auto\""),
    key("listener.multicast_groups", "[\"239.1.1.1\"]"),
    key("listener.multicast_interface", "\"\""),
    key("listener.sources", "[]"),
    key("listener.allow", "[\"10.0.0.0/8\"]"),
    key("listener.deny", "[\"10.9.0.0/16\"]"),
    key("listener.rate_limit", "{ per_source = 1000, burst = 2000 }"),
    key("listener.rate_limit.per_source", "1000"),
    key("listener.rate_limit.burst", "0"),
    key("listener.sinks", "[\"archive\"]"),
    key("sink", "[sink.archive]"),
    key("sink.*.type", "\"file\""),
    key("sink.*.format", "\"lines\""),
    key("sink.*.path", "\"/var/log/udpd/{listener}-{consumer}.log\""),
    key("sink.*.rotate", "{ bytes = \"1GiB\", every = \"1h\" }"),
    key("sink.*.rotate.bytes", "\"1GiB\""),
    key("sink.*.rotate.every", "\"1h\""),
    key("sink.*.keep", "{ files = 0, bytes = 0 }"),
    key("sink.*.keep.files", "0"),
    key("sink.*.keep.bytes", "0"),
    key("sink.*.sync", "\"1s\""),
    key("sink.*.consumers", "1"),
    key("sink.*.queue_batches", "256"),
    key("sink.*.when_full", "\"drop_newest\""),
    key("sink.*.destinations", "[\"10.0.0.9:514\"]"),
    key("sink.*.distribute", "\"all\""),
    key("sink.*.keep_source", "false"),
    key("sink.*.socket", "\"datagram\""),
    key("sink.*.framing", "\"newline\""),
    key("sink.*.brokers", "\"10.0.0.5:9092\""),
    key("sink.*.topic", "\"syslog\""),
    key("sink.*.key", "\"source\""),
    key("sink.*.acks", "\"all\""),
    key("sink.*.properties", "{}"),
    key("steer", "[steer]"),
    key("steer.interfaces", "[]"),
    key("steer.rx_queues", "\"keep\""),
    key("steer.ring", "\"keep\""),
    key("steer.flow_hash_udp", "\"keep\""),
    key("steer.placement", "\"adjacent\""),
    key("steer.cpus", "\"auto\""),
    key("steer.irqbalance", "\"warn\""),
];

/// What other programs call a thing, and what it is called here.
const ALIASES: &[(&str, &str)] = &[
    ("listen", "address"),
    ("bind", "address"),
    ("port", "address"),
    ("host", "address"),
    ("addresses", "address"),
    ("threads", "lanes"),
    ("workers", "lanes"),
    ("sockets", "lanes"),
    ("device", "interface"),
    ("rcvbuf", "receive_buffer"),
    ("recv_buffer", "receive_buffer"),
    ("buffer", "receive_buffer"),
    ("mtu", "max_length"),
    ("reuse_port", "share_port"),
    ("reuseport", "share_port"),
    ("max_size", "max_length"),
    ("sink", "sinks"),
    ("outputs", "sinks"),
    ("file", "path"),
    ("filename", "path"),
    ("fsync", "sync"),
    ("queue_size", "queue_batches"),
    ("threads", "consumers"),
    ("workers", "consumers"),
    ("overflow", "when_full"),
    ("cores", "cpus"),
    ("loglevel", "log_level"),
    ("metrics", "metrics_address"),
    ("listeners", "listener"),
    ("sinks", "sink"),
    ("global", "daemon"),
];

/// The keys directly under `table` (`""` is the file itself).
pub(crate) fn under(table: &str) -> impl Iterator<Item = &'static str> + '_ {
    KEYS.iter().filter_map(move |key| match table {
        "" => (!key.path.contains('.')).then_some(key.path),
        _ => key.path.strip_prefix(table)?.strip_prefix('.').filter(|rest| !rest.contains('.')),
    })
}

/// A right value for the key at `path`, as it would be written.
pub(crate) fn example(path: &str) -> &'static str {
    KEYS.iter().find(|key| key.path == path).map_or("", |key| key.example)
}

/// What to do about a key that does not exist under `table`: the one that was probably meant, the table in which it
/// does exist, or all that do exist here.
pub(crate) fn cure_unknown(table: &str, written: &str) -> String {
    let alias = ALIASES.iter().filter(|(other, _)| *other == written).map(|(_, own)| *own);
    if let Some(own) = alias.into_iter().find(|own| under(table).any(|key| key == *own)) {
        return format!("what is {written} elsewhere is {own} here: {}", assignment(table, own));
    }
    if let Some(near) = nearest(written, under(table)) {
        return format!("did you mean {near}?");
    }
    let elsewhere = KEYS.iter().find_map(|key| {
        let (parent, last) = key.path.rsplit_once('.')?;
        (last == written && parent != table).then_some(parent)
    });
    match elsewhere {
        Some("listener") => format!("move it under [[listener]], where {written} belongs"),
        Some("sink.*") => format!("move it under [sink.NAME], where {written} belongs"),
        Some(parent) => format!("move it under [{parent}], where {written} belongs"),
        None => format!("remove it; the keys here are {}", under(table).collect::<Vec<_>>().join(", ")),
    }
}

fn assignment(table: &str, key: &str) -> String {
    match table {
        "" => example(key).to_owned(),
        _ => format!("{key} = {}", example(&format!("{table}.{key}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_the_key_that_was_meant() {
        for (written, meant) in [
            ("adress", "address"),
            ("batchsize", "batch_size"),
            ("recieve_buffer", "receive_buffer"),
            ("Sinks", "sinks"),
        ] {
            assert_eq!(nearest(written, under("listener")), Some(meant));
        }
        assert_eq!(nearest("colour", under("listener")), None);
        assert_eq!(nearest("zz", under("listener")), None);
    }

    #[test]
    fn an_unknown_key_is_cured_by_its_alias_its_table_or_the_list() {
        assert!(cure_unknown("listener", "port").contains("address = \"0.0.0.0:514\""));
        assert!(cure_unknown("", "log_level").contains("move it under [daemon]"));
        assert!(cure_unknown("daemon", "when_full").contains("[sink.NAME]"));
        assert!(cure_unknown("steer", "colour").contains("cpus, irqbalance"));
    }

    #[test]
    fn every_key_has_an_example() {
        for key in KEYS {
            assert!(!key.example.is_empty(), "{}", key.path);
        }
    }
}
