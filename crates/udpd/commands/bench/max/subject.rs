//! What is measured: one listener of a configuration, moved to a port of loopback where it disturbs nobody, with its
//! sinks as they are written. Of the rest of the configuration nothing is used: no control socket, no metrics, no
//! steering, no group of a network.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use steer::plan::Request;

use crate::config::{Arguments, Config, Daemon, Host, Lanes, Listener, Multicast, Spread, Steer};
use crate::exit::{ExitCode, Failure};
use crate::policy::{Limit, Proxies, RATE_LIMIT_MAX};
use crate::settings::Chosen;

/// A pipeline to be measured, and what was changed for it.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// One listener on a free port of loopback, and its sinks.
    pub(super) config: Config,
    /// What is not as it was written, in words.
    pub(super) changed: Vec<String>,
}

impl Subject {
    /// A default listener and the sink of a URI.
    pub(super) fn of_uri(uri: &str) -> Result<Self, Failure> {
        // The address is replaced; nobody has written it, so nobody has to be told.
        let subject = Self::of(Config::from_arguments(&Arguments::new("127.0.0.1:1", uri))?, None, Vec::new())?;
        Ok(Self { changed: Vec::new(), ..subject })
    }

    /// A listener of a file: the one called so, or the only one.
    pub(super) fn of_file(path: &Path, listener: Option<&str>) -> Result<Self, Failure> {
        let changed = vec!["metrics, control socket and stats_on_exit are not used".to_owned()];
        Self::of(Config::load(path, &Host::default())?, listener, changed)
    }

    fn of(config: Config, name: Option<&str>, mut changed: Vec<String>) -> Result<Self, Failure> {
        let mut listener = chosen(&config.listeners, name)?.clone();
        let mut sinks = Vec::new();
        for index in &mut listener.sinks {
            let sink = config.sinks[*index].clone();
            *index = sinks.len();
            sinks.push(sink);
        }
        if name.is_some() || config.listeners.len() > 1 {
            changed.push(format!("only listener {} is measured", listener.name));
        }
        move_to_loopback(&mut listener, &mut changed);
        // Which cores may be used is a matter of this host, and belongs to the figure.
        let request = Request { cores: config.steer.request.cores, ..Request::default() };
        let daemon =
            Daemon { control_socket: nobody(), metrics_address: nobody(), stats_on_exit: None, ..config.daemon };
        let steer = Steer { request, ..Steer::default() };
        Ok(Self { config: Config { daemon, listeners: vec![listener], sinks, steer, warnings: Vec::new() }, changed })
    }
}

fn nobody<T>() -> Chosen<Option<T>> {
    Chosen { value: None, written: true }
}

/// Takes from a listener what reaches out of this host, and what would refuse the bench's own sender.
fn move_to_loopback(listener: &mut Listener, changed: &mut Vec<String>) {
    let addresses: Vec<String> = listener.addresses.iter().map(ToString::to_string).collect();
    changed.push(format!("it listens on a free port of 127.0.0.1 instead of {}", addresses.join(", ")));
    listener.addresses = vec![(Ipv4Addr::LOCALHOST, 0).into()];
    if let Some(interface) = listener.interface.take() {
        if listener.lanes == Lanes::Auto {
            changed.push(format!("lanes = \"auto\" does not follow the receive queues of {interface}"));
        }
        if listener.spread == Spread::Queue {
            listener.spread = Spread::Flow;
            changed.push("spread is \"flow\" instead of \"queue\": loopback has no receive queues".to_owned());
        }
    }
    if listener.multicast != Multicast::default() {
        listener.multicast = Multicast::default();
        changed.push("it joins no multicast group".to_owned());
    }
    let own = IpNet::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    if !listener.access.is_open() {
        listener.access.deny.retain(|network| *network != own);
        listener.access.allow.retain(|network| *network != own);
        listener.access.allow.push(own);
        if let Some(list) = &mut listener.access.list {
            *list = Arc::new(list.also_accepting(own.addr()));
        }
        changed.push("allow includes 127.0.0.1, from which the bench sends".to_owned());
    }
    if listener.proxies != Proxies::default() {
        listener.proxies = Proxies::default();
        changed.push("it reads no PROXY headers, because the bench sends none".to_owned());
    }
    if let Some(limit) = &mut listener.rate_limit {
        *limit = Limit { per_source: RATE_LIMIT_MAX, burst: RATE_LIMIT_MAX };
        changed.push(format!(
            "rate_limit lets {RATE_LIMIT_MAX}/s through from each source, because the bench is one source"
        ));
    }
}

fn chosen<'a>(listeners: &'a [Listener], name: Option<&str>) -> Result<&'a Listener, Failure> {
    let names = || listeners.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, listeners) {
        (None, [only]) => Ok(only),
        (None, _) => {
            let text = format!("--listener: the file has several, {}; write which one to measure", names());
            Err(Failure::new(ExitCode::Usage, text))
        }
        (Some(name), _) => listeners.iter().find(|listener| listener.name == name).ok_or_else(|| {
            Failure::new(ExitCode::Usage, format!("--listener: there is no listener {name}; the file has {}", names()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = r#"
            [[listener]]
            name = "a"
            address = "192.0.2.1:514"
            sinks = ["one"]
            [[listener]]
            name = "b"
            address = ["192.0.2.1:515", "192.0.2.1:516"]
            sinks = ["two"]
            [sink.one]
            type = "null"
            [sink.two]
            type = "null"
            queue_bytes = "7MiB"
        "#;
        Config::parse(text, "test.toml", &Host::default()).expect("a good file")
    }

    #[test]
    fn one_listener_and_its_sinks_move_to_loopback_and_it_is_said() {
        let subject = Subject::of(config(), Some("b"), Vec::new()).expect("a subject");
        let listener = &subject.config.listeners[0];
        assert_eq!((listener.name.as_str(), listener.sinks.as_slice()), ("b", &[0][..]));
        assert_eq!(listener.addresses, ["127.0.0.1:0".parse().expect("an address")]);
        assert_eq!((subject.config.sinks.len(), subject.config.sinks[0].queue_bytes), (1, Some(7 << 20)));
        assert!(
            subject.changed.iter().any(|line| line.contains("192.0.2.1:515, 192.0.2.1:516")),
            "{:?}",
            subject.changed
        );
    }

    #[test]
    fn of_several_listeners_one_has_to_be_named() {
        let failure = Subject::of(config(), None, Vec::new()).expect_err("which one?");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("a, b"), "{failure}");
        let failure = Subject::of(config(), Some("c"), Vec::new()).expect_err("no such listener");
        assert!(failure.message.contains("no listener c") && failure.message.contains("a, b"), "{failure}");
    }

    #[test]
    fn nothing_of_a_listener_reaches_out_of_this_host_or_refuses_the_benchs_own_sender() {
        let text = r#"
            [daemon]
            stats_on_exit = "/tmp/ledger.json"
            [[listener]]
            name = "a"
            address = "0.0.0.0:514"
            multicast_groups = ["239.1.2.3"]
            allow = ["10.0.0.0/8"]
            deny = ["127.0.0.0/8", "127.0.0.1/32"]
            rate_limit = { per_source = 10 }
            sinks = ["one"]
            [sink.one]
            type = "null"
            [steer]
            interfaces = ["eth0"]
            rx_queues = "max"
            cpus = "0"
        "#;
        let config = Config::parse(text, "test.toml", &Host::default()).expect("a good file");
        let Subject { config, changed, .. } = Subject::of(config, None, Vec::new()).expect("a subject");
        let listener = &config.listeners[0];
        assert_eq!((&listener.multicast, &listener.interface), (&Multicast::default(), &None));
        let networks = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(networks(&listener.access.allow), ["10.0.0.0/8", "127.0.0.1/32"]);
        assert_eq!(networks(&listener.access.deny), ["127.0.0.0/8"]);
        assert!(listener.rate_limit.is_some_and(|limit| limit.per_source == RATE_LIMIT_MAX));
        let request = Request { cores: Some(vec![0]), ..Request::default() };
        assert_eq!(config.steer, Steer { request, ..Steer::default() });
        let Daemon { control_socket, metrics_address, stats_on_exit, .. } = &config.daemon;
        assert_eq!((&control_socket.value, metrics_address.value, stats_on_exit), (&None, None, &None));
        for words in ["no multicast group", "127.0.0.1, from which the bench sends", "rate_limit"] {
            assert!(changed.iter().any(|line| line.contains(words)), "{words}: {changed:?}");
        }
    }
}
