//! What is measured: one listener of a configuration with its sinks, moved to a port of loopback or to the end of a
//! cable, where it disturbs no other program. The rest of the configuration is not used: no control socket, no metrics,
//! no steering, no multicast group.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use steer::plan::Request;

use crate::cable::Cable;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::settings::Chosen;
use udpd_engine::config::{
    Config, DaemonConfig, EngineKind, Gro, HostView, Lanes, ListenerConfig, Multicast, RunArguments, SLOT_BYTES_MIN,
    Spread, SteerConfig,
};
use udpd_inspect::policy::{Proxies, RATE_LIMIT_MAX, SourceLimit};

/// The pipeline that is measured, and what differs from the configuration.
#[derive(Debug, Clone)]
pub(super) struct MeasuredListener {
    /// One listener at a free port of its place, and its sinks.
    pub(super) config: Config,
    /// What differs from the configuration, in words.
    pub(super) changed: Vec<String>,
}

impl MeasuredListener {
    /// A default listener and the sink of a URI.
    pub(super) fn of_uri(uri: &str, place: &ListenPlace) -> Result<Self, Failure> {
        let config = Config::from_arguments(&RunArguments::new("127.0.0.1:1", uri))?;
        let subject = Self::of(config, None, Vec::new(), place)?;
        // The address is replaced, which needs no note because the operator did not write it; a cable does.
        let changed = place.interface.iter().map(|_| format!("it receives at {}", place.what)).collect();
        Ok(Self { changed, ..subject })
    }

    /// A listener of a file: the one of this name, or the only one.
    pub(super) fn of_file(path: &Path, listener: Option<&str>, place: &ListenPlace) -> Result<Self, Failure> {
        let changed = vec!["metrics, control socket and stats_on_exit are not used".to_owned()];
        Self::of(
            Config::load(path, &HostView { becomes_user: false, ..HostView::default() })?,
            listener,
            changed,
            place,
        )
    }

    fn of(config: Config, name: Option<&str>, mut changed: Vec<String>, place: &ListenPlace) -> Result<Self, Failure> {
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
        move_to(place, &mut listener, &mut changed);
        choose_engine(place, &mut listener, &mut changed);
        // Which cores may be used is a matter of this host, and belongs to the figure.
        let request = Request { cores: config.steer.request.cores, ..Request::default() };
        let daemon = DaemonConfig {
            control_socket: unused(),
            metrics_address: unused(),
            stats_on_exit: None,
            history: None,
            ..config.daemon
        };
        let steer = SteerConfig { request, ..SteerConfig::default() };
        Ok(Self { config: Config { daemon, listeners: vec![listener], sinks, steer, warnings: Vec::new() }, changed })
    }
}

fn unused<T>() -> Chosen<Option<T>> {
    Chosen { value: None, written: true }
}

/// Where a listener is measured, and by what.
#[derive(Debug, Clone)]
pub(super) struct ListenPlace {
    address: SocketAddr,
    interface: Option<String>,
    /// The source networks of the bench's datagrams.
    sources: Vec<IpNet>,
    what: String,
    /// The engine of the command line, instead of the one of the configuration.
    engine: Option<Option<EngineKind>>,
}

impl ListenPlace {
    /// A free port of loopback, or of the receiving end of a cable.
    pub(super) fn of(cable: Option<&Cable>, engine: Option<Option<EngineKind>>) -> Result<Self, Failure> {
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        let Some(cable) = cable else {
            let (address, what) = ((own, 0).into(), "a free port of 127.0.0.1".to_owned());
            return Ok(Self { address, interface: None, sources: vec![own.into()], what, engine });
        };
        let address = cable.free_address()?;
        let what = format!("{address} of {}, {cable}", cable.receiver);
        Ok(Self { address, interface: Some(cable.receiver.clone()), sources: cable.senders.clone(), what, engine })
    }
}

/// Removes from a listener what reaches other hosts, and what would refuse the bench's own sender.
fn move_to(place: &ListenPlace, listener: &mut ListenerConfig, changed: &mut Vec<String>) {
    let addresses: Vec<String> = listener.addresses.iter().map(ToString::to_string).collect();
    changed.push(format!("it listens on {} instead of {}", place.what, addresses.join(", ")));
    listener.addresses = vec![place.address];
    let interface = std::mem::replace(&mut listener.interface, place.interface.clone());
    if let Some(interface) = interface.filter(|_| place.interface.is_none()) {
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
    if !listener.access.is_open() {
        accept(&place.sources, listener);
        let sources: Vec<String> = place.sources.iter().map(|own| host_or_network(*own)).collect();
        changed.push(format!("allow includes {}, from which the bench sends", sources.join(", ")));
    }
    if listener.proxies != Proxies::default() {
        listener.proxies = Proxies::default();
        changed.push("it reads no PROXY headers, because the bench sends none".to_owned());
    }
    if let Some(limit) = &mut listener.rate_limit {
        *limit = SourceLimit { per_source: RATE_LIMIT_MAX, burst: RATE_LIMIT_MAX };
        changed.push(format!(
            "rate_limit lets {RATE_LIMIT_MAX}/s through from each source, because the bench is one source"
        ));
    }
}

fn accept(sources: &[IpNet], listener: &mut ListenerConfig) {
    for own in sources {
        listener.access.deny.retain(|network| network != own);
        listener.access.allow.retain(|network| network != own);
        listener.access.allow.push(*own);
        if let Some(list) = &mut listener.access.list {
            *list = Arc::new(list.also_accepting(*own));
        }
    }
}

fn host_or_network(network: IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() { network.addr().to_string() } else { network.to_string() }
}

/// Sets the engine that is asked for, and the keys that it needs.
fn choose_engine(place: &ListenPlace, listener: &mut ListenerConfig, changed: &mut Vec<String>) {
    if let Some(engine) = place.engine {
        listener.engine = engine;
    }
    if !listener.is_past_the_stack() {
        return;
    }
    if place.interface.is_none() {
        listener.engine = None;
        changed.push("engine is \"auto\" instead of \"af_xdp\", which loopback has not: add --interface".to_owned());
        return;
    }
    let mut set = |is_other: bool, what: &str| {
        if is_other {
            changed.push(format!("{what}, because engine = \"af_xdp\" wants it"));
        }
    };
    set(listener.lanes != Lanes::Auto, "lanes is \"auto\"");
    set(listener.spread != Spread::Flow, "spread is \"flow\"");
    set(listener.gro.is_on(), "gro is \"off\"");
    set(listener.max_length_bytes < SLOT_BYTES_MIN, "max_length is 2KiB");
    (listener.lanes, listener.spread, listener.gro) = (Lanes::Auto, Spread::Flow, Gro::Off);
    listener.max_length_bytes = listener.max_length_bytes.max(SLOT_BYTES_MIN);
}

fn chosen<'a>(listeners: &'a [ListenerConfig], name: Option<&str>) -> Result<&'a ListenerConfig, Failure> {
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

    fn loopback() -> ListenPlace {
        ListenPlace::of(None, None).expect("it is always there")
    }

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
        Config::parse(text, "test.toml", &HostView::default()).expect("a good file")
    }

    #[test]
    fn one_listener_and_its_sinks_move_to_loopback_and_it_is_said() {
        let subject = MeasuredListener::of(config(), Some("b"), Vec::new(), &loopback()).expect("a subject");
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
    fn on_a_cable_the_engine_gets_what_it_wants_of_the_other_keys_and_it_is_said() {
        let text = r#"
            [[listener]]
            name = "a"
            address = "192.0.2.1:514"
            lanes = 3
            gro = "on"
            max_length = 512
            allow = ["10.0.0.0/8"]
            sinks = ["one"]
            [sink.one]
            type = "null"
        "#;
        let config = Config::parse(text, "test.toml", &HostView::default()).expect("a good file");
        let cable = ListenPlace {
            address: "198.19.0.1:5140".parse().expect("an address"),
            interface: Some("card0".to_owned()),
            sources: vec!["198.18.0.0/16".parse().expect("a network")],
            what: "198.19.0.1:5140 of card0".to_owned(),
            engine: Some(Some(EngineKind::AfXdp)),
        };
        let subject = MeasuredListener::of(config.clone(), None, Vec::new(), &cable).expect("a subject");
        let listener = &subject.config.listeners[0];
        assert!(listener.is_past_the_stack() && listener.interface.as_deref() == Some("card0"));
        assert_eq!((listener.lanes, listener.gro, listener.max_length_bytes), (Lanes::Auto, Gro::Off, 2048));
        assert!(listener.access.allow.iter().any(|own| own.to_string() == "198.18.0.0/16"));
        for words in ["of card0 instead of 192.0.2.1:514", "lanes is", "gro is", "max_length is 2KiB", "198.18.0.0/16"]
        {
            assert!(subject.changed.iter().any(|line| line.contains(words)), "{words}: {:?}", subject.changed);
        }
        let on_loopback = ListenPlace { interface: None, ..cable };
        let subject = MeasuredListener::of(config, None, Vec::new(), &on_loopback).expect("a subject");
        assert_eq!(subject.config.listeners[0].engine, None);
        assert!(subject.changed.iter().any(|line| line.contains("add --interface")), "{:?}", subject.changed);
    }

    #[test]
    fn of_several_listeners_one_has_to_be_named() {
        let failure = MeasuredListener::of(config(), None, Vec::new(), &loopback()).expect_err("which one?");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("a, b"), "{failure}");
        let failure = MeasuredListener::of(config(), Some("c"), Vec::new(), &loopback()).expect_err("no such listener");
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
        let config = Config::parse(text, "test.toml", &HostView::default()).expect("a good file");
        let MeasuredListener { config, changed, .. } =
            MeasuredListener::of(config, None, Vec::new(), &loopback()).expect("a subject");
        let listener = &config.listeners[0];
        assert_eq!((&listener.multicast, &listener.interface), (&Multicast::default(), &None));
        let networks = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(networks(&listener.access.allow), ["10.0.0.0/8", "127.0.0.1/32"]);
        assert_eq!(networks(&listener.access.deny), ["127.0.0.0/8"]);
        assert!(listener.rate_limit.is_some_and(|limit| limit.per_source == RATE_LIMIT_MAX));
        let request = Request { cores: Some(vec![0]), ..Request::default() };
        assert_eq!(config.steer, SteerConfig { request, ..SteerConfig::default() });
        let DaemonConfig { control_socket, metrics_address, stats_on_exit, .. } = &config.daemon;
        assert_eq!((&control_socket.value, metrics_address.value, stats_on_exit), (&None, None, &None));
        for words in ["no multicast group", "127.0.0.1, from which the bench sends", "rate_limit"] {
            assert!(changed.iter().any(|line| line.contains(words)), "{words}: {changed:?}");
        }
    }
}
