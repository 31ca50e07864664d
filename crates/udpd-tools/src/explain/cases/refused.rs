//! What the kernel threw away before a socket had it, by its own reasons: a socket's filter, rules of a firewall,
//! frames and addresses that are not for this host, groups that no program joined, sources that cannot be, and sockets
//! on the port that take something else.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::subject;
use crate::explain::evidence::{DatagramDrops, Destination, Evidence, FirewallRule, SocketEvidence};
use crate::explain::finding::{Cure, Finding, LossLayer, quote};
use udpd_base::text::tables::grouped;

/// What a reason comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// Another case has it by its counter.
    Counted,
    Filter,
    Rule,
    Program,
    OtherHost,
    Source,
    Address,
    Group,
    TooLong,
    NoSocket,
    Unknown,
}

/// So many addresses are named.
const NAMED_MAX: usize = 3;

pub(super) fn refusal(evidence: &Evidence, drop: &DatagramDrops) -> Refusal {
    let mtu = |interface: &crate::explain::evidence::InterfaceEvidence| interface.mtu.unwrap_or(u64::MAX);
    match drop.reason.as_str() {
        _ if drop.is_elsewhere => {
            // A cable between namespaces gives no reason.
            let is_long = matches!(drop.reason.as_str(), "NOT_SPECIFIED" | "PKT_TOO_BIG")
                && evidence.interfaces.iter().any(|it| it.dropped > Some(0) && mtu(it) < drop.longest_bytes);
            if is_long { Refusal::TooLong } else { Refusal::Counted }
        }
        "SOCKET_RCVBUFF" | "PROTO_MEM" | "UDP_CSUM" | "CPU_BACKLOG" | "IP_RPFILTER" | "IP_CSUM" | "IP_INHDR"
        | "FRAG_REASM_TIMEOUT" | "DUP_FRAG" | "FRAG_TOO_FAR" | "IPV6_BAD_EXTHDR" => Refusal::Counted,
        "SOCKET_FILTER" => Refusal::Filter,
        "NETFILTER_DROP" => Refusal::Rule,
        "TC_INGRESS" | "XDP" => Refusal::Program,
        _ if drop.is_for_other_host && matches!(drop.aimed_at, Destination::Foreign | Destination::Unknown) => {
            Refusal::Counted
        }
        _ if drop.is_for_other_host => Refusal::OtherHost,
        "IP_INVALID_SOURCE" | "IP_LOCAL_SOURCE" => Refusal::Source,
        _ if drop.port == 0 => Refusal::Counted,
        _ if matches!(drop.aimed_at, Destination::Group(_)) => Refusal::Group,
        "NO_SOCKET" => Refusal::NoSocket,
        _ if drop.source.is_loopback() && !drop.destination.is_loopback() => Refusal::Source,
        _ if drop.aimed_at == Destination::Foreign => Refusal::Address,
        _ => Refusal::Unknown,
    }
}

/// What came to this, by port.
fn of(evidence: &Evidence, wanted: Refusal) -> BTreeMap<u16, Vec<&DatagramDrops>> {
    let mut by_port: BTreeMap<u16, Vec<&DatagramDrops>> = BTreeMap::new();
    for drop in evidence.datagrams.iter().flatten().filter(|drop| refusal(evidence, drop) == wanted) {
        by_port.entry(drop.port).or_default().push(drop);
    }
    by_port
}

/// The same of the ports that are meant: what a firewall drops for a port that no program has is no loss, and neither
/// are the groups and broadcasts of a network that no program here wants.
fn of_meant(evidence: &Evidence, wanted: Refusal) -> impl Iterator<Item = (u16, Vec<&DatagramDrops>)> {
    of(evidence, wanted).into_iter().filter(|(port, _)| evidence.is_meant(*port))
}

fn total(drops: &[&DatagramDrops]) -> u64 {
    drops.iter().map(|drop| drop.count).sum()
}

/// How many of them came to this.
pub(super) fn count(evidence: &Evidence, wanted: Refusal) -> u64 {
    of(evidence, wanted).values().map(|drops| total(drops)).sum()
}

/// The most frequent of something about the drops, in words.
fn most(drops: &[&DatagramDrops], what: impl Fn(&DatagramDrops) -> String) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    drops.iter().for_each(|drop| *counts.entry(what(drop)).or_default() += drop.count);
    let mut named: Vec<(String, u64)> = counts.into_iter().filter(|(name, _)| !name.is_empty()).collect();
    named.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = if named.len() > NAMED_MAX { format!(" and {} more", named.len() - NAMED_MAX) } else { String::new() };
    named.truncate(NAMED_MAX);
    named.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ") + &more
}

fn sources(drops: &[&DatagramDrops]) -> String {
    most(drops, |drop| drop.source.to_string())
}

fn destinations(drops: &[&DatagramDrops]) -> String {
    most(drops, |drop| drop.destination.to_string())
}

/// " on eth0", where that is known.
fn on(drops: &[&DatagramDrops]) -> String {
    let names = most(drops, |drop| drop.interface.clone());
    if names.is_empty() { names } else { format!(" on {names}") }
}

fn finding(case: &'static str, layer: LossLayer, port: u16, drops: &[&DatagramDrops]) -> Finding {
    let name = if port == 0 { "later fragments".to_owned() } else { format!("port {port}") };
    let mut found = Finding::new(case, layer, name, (total(drops), "datagrams"));
    found.part = case;
    found
}

pub(super) fn socket_filter(evidence: &Evidence) -> Vec<Finding> {
    let told = of(evidence, Refusal::Filter).into_iter().filter_map(|(port, drops)| {
        // What udpd's own filter denies is asked for.
        let denied = evidence.listener_on(port).map_or(0, |listener| listener.denied_in_kernel);
        let lost = total(&drops).checked_sub(denied).filter(|lost| *lost > 0)?;
        let mut found = Finding { lost, ..finding("socket_filter", LossLayer::Socket, port, &drops) };
        if let Some(port) = evidence.ports.iter().find(|it| it.port == port) {
            found.subject = subject(evidence, port);
        }
        let cause = format!(
            "a filter on the socket refused them (SO_ATTACH_FILTER, SO_ATTACH_BPF, or a program of the control \
             group), from {}; its receive buffer had room",
            sources(&drops)
        );
        let note = "the program attached the filter itself, or its service manager did (IPAddressDeny=): no sysctl and \
                    no buffer changes that; let it start without the filter, or with one that lets them in";
        Some(found.because(cause).cured_by([Cure::elsewhere(note)]))
    });
    told.collect()
}

pub(super) fn firewall(evidence: &Evidence) -> Vec<Finding> {
    of_meant(evidence, Refusal::Rule).map(|(port, drops)| of_rules(evidence, port, &drops)).collect()
}

fn of_rules(evidence: &Evidence, port: u16, drops: &[&DatagramDrops]) -> Finding {
    let found = finding("firewall", LossLayer::Ip, port, drops);
    let cause = format!("rules of the firewall dropped them (NETFILTER_DROP){}, from {}", on(drops), sources(drops));
    let candidates = candidates(&evidence.rules, port, drops);
    let place = |rule: &FirewallRule| {
        let hook = if rule.hook.is_empty() { String::new() } else { format!(", hook {}", rule.hook) };
        let counted = rule.counted.map_or(String::new(), |count| format!(" (counted {} meanwhile)", grouped(count)));
        format!("table {}, chain {}{hook}: {}{counted}", rule.table, rule.chain, rule.text)
    };
    let mut chains: Vec<(&str, &str)> = candidates.iter().map(|it| (it.table.as_str(), it.chain.as_str())).collect();
    chains.dedup();
    match chains.as_slice() {
        // Later fragments have no port, and nothing opens all of UDP.
        [(table, chain)] if port > 0 => {
            let arithmetic = candidates.iter().map(|rule| place(rule)).collect::<Vec<_>>().join("; ");
            let chain = chain.split(' ').map(quote).collect::<Vec<_>>().join(" ");
            let note = "if they are meant to come in: a rule before the one that drops; write it into the file of your \
                        firewall as well";
            let cure = Cure::command(format!("nft insert rule {table} {chain} udp dport {port} accept"), note);
            found.because(cause).with(arithmetic).cured_by([cure])
        }
        [] => {
            let note = "nft lists no rule that could be it: the rules may be those of iptables-legacy";
            let look = Cure::look("iptables -nvL; iptables -t raw -nvL; nft list ruleset", note);
            found.because(cause).cured_by([look])
        }
        _ => {
            let told = candidates.iter().map(|rule| place(rule)).collect::<Vec<_>>().join("; ");
            let note = "with `counter` in each of these rules the next udpd explain knows which one it is";
            let arithmetic = format!("it may be any of {}: {told}", candidates.len());
            found.because(cause).with(arithmetic).cured_by([Cure::look("nft -a list ruleset", note)])
        }
    }
}

/// The rules that may have dropped what came to the port: those whose counter rose and that name the port, then those
/// whose counter rose, then those that name the port, then those that name none.
fn candidates<'a>(rules: &'a [FirewallRule], port: u16, drops: &[&DatagramDrops]) -> Vec<&'a FirewallRule> {
    let rules: Vec<&FirewallRule> = rules.iter().filter(|rule| sees(rule, drops)).collect();
    let has_port = |word: &str| {
        let word = word.trim_matches(['{', '}', ',']);
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        first.parse().is_ok_and(|first: u16| first <= port) && last.parse().is_ok_and(|last: u16| port <= last)
    };
    let names_port = |rule: &FirewallRule| rule.text.contains("dport") && rule.text.split(' ').any(has_port);
    let has_counted = |rule: &FirewallRule| rule.counted > Some(0);
    let is_open = |rule: &FirewallRule| rule.counted.is_none() && !rule.text.contains("port ");
    let kinds: [&dyn Fn(&FirewallRule) -> bool; 4] = [
        &|rule| has_counted(rule) && names_port(rule),
        &has_counted,
        &|rule| rule.counted.is_none() && names_port(rule),
        &is_open,
    ];
    let found = kinds.iter().map(|kind| rules.iter().copied().filter(|rule| kind(rule)).collect::<Vec<_>>());
    found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// Whether any of them comes by the hook of a rule, and is of the family of its table. What is for this host is not
/// forwarded, and what came from outside was not sent here.
fn sees(rule: &FirewallRule, drops: &[&DatagramDrops]) -> bool {
    drops.iter().any(|drop| {
        let by_hook = match rule.hook.as_str() {
            "input" => drop.aimed_at != Destination::Foreign,
            "forward" => drop.aimed_at == Destination::Foreign,
            "output" | "postrouting" => drop.interface.is_empty() || drop.aimed_at == Destination::Foreign,
            _ => true,
        };
        by_hook
            && match rule.table.split(' ').next() {
                Some("ip") => drop.source.is_ipv4(),
                Some("ip6") => drop.source.is_ipv6(),
                _ => true,
            }
    })
}

pub(super) fn ingress_program(evidence: &Evidence) -> Vec<Finding> {
    let told = of_meant(evidence, Refusal::Program).map(|(port, drops)| {
        let interface = drops.first().map_or("", |drop| drop.interface.as_str());
        let reason = drops.first().map_or("", |drop| drop.reason.as_str());
        let cause = format!("a filter of traffic control or an XDP program dropped them{} ({reason})", on(&drops));
        let command = format!("tc filter show dev {0} ingress; ip -d link show dev {0}", quote(interface));
        let found = finding("ingress_program", LossLayer::Ip, port, &drops).because(cause);
        found.cured_by([Cure::look(command, "shows the filter, which then has to let the port in")])
    });
    told.collect()
}

pub(super) fn wrong_mac(evidence: &Evidence) -> Vec<Finding> {
    let told = of(evidence, Refusal::OtherHost).into_iter().map(|(port, drops)| {
        let cause = format!(
            "the frames had an Ethernet address that is not this card's{}, and an IP address that is this host's ({}): \
             the kernel lets them be (OTHERHOST)",
            on(&drops),
            destinations(&drops)
        );
        let note = "at the sender or the last router: it has an old or a static entry for this address (there: ip \
                    neigh show, then ip neigh del ADDRESS dev INTERFACE); after a failover send a gratuitous ARP";
        finding("wrong_mac", LossLayer::Ip, port, &drops).because(cause).cured_by([Cure::elsewhere(note)])
    });
    told.collect()
}

pub(super) fn martian_source(evidence: &Evidence) -> Vec<Finding> {
    let told = of(evidence, Refusal::Source).into_iter().map(|(port, drops)| {
        let cause = format!(
            "their source address cannot come from a network ({}){}: it is a loopback, a group's or this host's own \
             address, and the kernel drops such packets (martians)",
            sources(&drops),
            on(&drops)
        );
        let note = "at the sender: it has to send from an address of its own; net.ipv4.conf.INTERFACE.log_martians=1 \
                    logs each here";
        finding("martian_source", LossLayer::Ip, port, &drops).because(cause).cured_by([Cure::elsewhere(note)])
    });
    told.collect()
}

pub(super) fn wrong_address(evidence: &Evidence) -> Vec<Finding> {
    let told = of(evidence, Refusal::Address).into_iter().map(|(port, drops)| {
        let cause = format!(
            "they were sent to {}, which is no address of this host, from {}{}; it does not forward them",
            destinations(&drops),
            sources(&drops),
            on(&drops)
        );
        let note = "at the sender: the right address; or give this host that one, if it should have it";
        let look = Cure::look("ip -br address", "shows the addresses of this host");
        finding("wrong_address", LossLayer::Ip, port, &drops).because(cause).cured_by([Cure::elsewhere(note), look])
    });
    told.collect()
}

pub(super) fn group_not_joined(evidence: &Evidence) -> Vec<Finding> {
    let told = of_meant(evidence, Refusal::Group).map(|(port, drops)| {
        let is_joined = drops.iter().all(|drop| drop.aimed_at == Destination::Group(true));
        let cause = match is_joined {
            true => format!(
                "they were sent to the group {}{}, which a program here has joined there, but no socket on the port \
                 takes it (another interface, another source, IP_MULTICAST_ALL off, or another program joined it)",
                destinations(&drops),
                on(&drops)
            ),
            false => format!(
                "they were sent to the group {}, which no program here has joined{}: a socket gets only groups that \
                 were joined on the interface on which they come",
                destinations(&drops),
                on(&drops)
            ),
        };
        let note = match evidence.listener_on(port) {
            Some(listener) => format!("name the group and the interface at listener {} and reload udpd", listener.name),
            None => "let the program join it there (IP_ADD_MEMBERSHIP with that interface)".to_owned(),
        };
        let look = Cure::look("ip maddress show", "shows the groups by interface");
        finding("group_not_joined", LossLayer::Ip, port, &drops).because(cause).cured_by([Cure::elsewhere(note), look])
    });
    told.collect()
}

pub(super) fn longer_than_mtu(evidence: &Evidence) -> Vec<Finding> {
    let told = of(evidence, Refusal::TooLong).into_iter().map(|(port, drops)| {
        let longest = drops.iter().map(|drop| drop.longest_bytes).max().unwrap_or(0);
        let found = finding("longer_than_mtu", LossLayer::Nic, port, &drops);
        let narrow = evidence.interfaces.iter().filter(|it| it.dropped > Some(0) && it.mtu < Some(longest));
        let Some(interface) = narrow.min_by_key(|it| it.mtu) else { return found };
        let mtu = interface.mtu.unwrap_or(0);
        let cause = format!(
            "packets of {longest} bytes came for {}, whose MTU is {mtu}: the sender's end of the cable has a larger \
             one, and what is longer is dropped without an answer",
            interface.name
        );
        let command = format!("ip link set dev {} mtu {longest}", quote(&interface.name));
        let cure = Cure::command(command, "or the sender's end as small as this one; both ends must be equal");
        found.because(cause).cured_by([cure])
    });
    told.collect()
}

/// There is a socket on the port, and it does not take them.
pub(super) fn socket_takes_others(evidence: &Evidence) -> Vec<Finding> {
    let told = of(evidence, Refusal::NoSocket).into_iter().filter_map(|(port, drops)| {
        let sockets: Vec<&SocketEvidence> =
            evidence.ports.iter().filter(|it| it.port == port).flat_map(|it| &it.sockets).collect();
        let first = drops.iter().max_by_key(|drop| drop.count)?;
        let whys: Vec<(String, &str)> = sockets.iter().map(|socket| why_not(socket, first)).collect();
        let (_, cure) = whys.first()?;
        let mut words: Vec<&str> = whys.iter().map(|(words, _)| words.as_str()).collect();
        words.dedup();
        let cause = format!(
            "no socket on the port takes what comes from {} to {}{}: {}",
            sources(&drops),
            destinations(&drops),
            on(&drops),
            words.join("; ")
        );
        let found = finding("socket_takes_others", LossLayer::Udp, port, &drops);
        Some(found.because(cause).cured_by([Cure::elsewhere(*cure)]))
    });
    told.collect()
}

/// Why a socket does not take it, and what would let it.
fn why_not(socket: &SocketEvidence, drop: &DatagramDrops) -> (String, &'static str) {
    let address = &socket.address;
    let ip = address.parse::<SocketAddr>().map(|address| address.ip().to_canonical()).ok();
    if let Some(peer) = socket.peer {
        let note = "let the program not connect() the socket that receives, or let it connect to that sender (from \
                    the same address and port)";
        return (format!("the socket on {address} is connected to {peer} and takes datagrams from there alone"), note);
    }
    if let Some(interface) = socket.interface.as_ref().filter(|name| **name != drop.interface) {
        let note = "let the program leave out SO_BINDTODEVICE, or name the interface on which they come";
        return (format!("the socket on {address} is bound to the interface {interface} (SO_BINDTODEVICE)"), note);
    }
    if drop.destination.is_ipv4() && socket.v6_only {
        let note = "let the program switch IPV6_V6ONLY off, or bind a socket to 0.0.0.0 as well";
        return (format!("the socket on {address} takes IPv6 alone (IPV6_V6ONLY)"), note);
    }
    if ip.is_some_and(|ip| !ip.is_unspecified() && ip != drop.destination) {
        let note = "send there, or let the program listen on 0.0.0.0 (or [::])";
        return (format!("the socket is bound to {address} and takes only what is sent to that address"), note);
    }
    if ip.is_some_and(|ip| ip.is_ipv4()) && drop.destination.is_ipv6() {
        return (format!("the socket on {address} takes IPv4 alone"), "let the program listen on [::] as well");
    }
    (format!("the socket on {address} was made later, or does not tell why"), "watch again while it is there")
}

/// Reasons that no case knows: told by their name, so that what is dropped is never passed over.
pub(super) fn unknown_reason(evidence: &Evidence) -> Vec<Finding> {
    let told = of_meant(evidence, Refusal::Unknown).map(|(port, drops)| {
        let reasons = most(&drops, |drop| drop.reason.clone());
        let cause = format!(
            "the kernel dropped them{}, from {}, and calls the reason {reasons}, of which udpd explain knows no case",
            on(&drops),
            sources(&drops)
        );
        let found = finding("unexplained", LossLayer::Ip, port, &drops).because(cause);
        found.cured_by([Cure::look("nstat -asz", "shows all counters of IP and UDP")])
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{assert_told, first, told};
    use crate::explain::evidence::{InterfaceEvidence, ListenerEvidence, Port};

    fn drops(reason: &str, aimed_at: Destination, count: u64) -> DatagramDrops {
        DatagramDrops {
            reason: reason.into(),
            source: [10, 0, 0, 9].into(),
            destination: [10, 0, 0, 1].into(),
            aimed_at,
            port: 514,
            interface: "eth0".into(),
            is_for_other_host: false,
            is_elsewhere: false,
            longest_bytes: 88,
            count,
        }
    }

    fn evidence(datagrams: Vec<DatagramDrops>) -> Evidence {
        Evidence { seconds: 5.0, asked_port: Some(514), datagrams: Some(datagrams), ..Evidence::default() }
    }

    #[test]
    fn what_the_kernel_threw_away_is_told_by_its_cause_with_its_number() {
        use Destination::{Foreign, Group, Local};
        for (case, drop) in [
            ("socket_filter", drops("SOCKET_FILTER", Local, 7)),
            ("firewall", drops("NETFILTER_DROP", Local, 7)),
            ("ingress_program", drops("TC_INGRESS", Local, 7)),
            ("wrong_mac", DatagramDrops { is_for_other_host: true, ..drops("OTHERHOST", Local, 7) }),
            ("martian_source", drops("IP_INVALID_SOURCE", Local, 7)),
            ("wrong_address", drops("IP_INADDRERRORS", Foreign, 7)),
            ("group_not_joined", drops("NOT_SPECIFIED", Group(false), 7)),
            ("unexplained", drops("OF_TOMORROW", Local, 7)),
        ] {
            let found = first(&evidence(vec![drop]));
            assert_eq!((found.case, found.lost), (case, 7), "{found:?}");
        }
        let for_others = DatagramDrops { is_for_other_host: true, ..drops("OTHERHOST", Foreign, 7) };
        assert!(diagnose(&evidence(vec![for_others])).is_empty(), "what a promiscuous card sees is no loss");
        let mut denied = evidence(vec![drops("SOCKET_FILTER", Local, 7)]);
        let listener = ListenerEvidence { ports: vec![514], denied_in_kernel: 7, ..ListenerEvidence::default() };
        denied.listeners.push(listener);
        assert!(diagnose(&denied).is_empty(), "what a filter of udpd denies is asked for");
    }

    #[test]
    fn the_rule_that_dropped_is_the_one_whose_counter_rose_and_names_the_port() {
        let rule = |chain: &str, text: &str, counted| FirewallRule {
            table: "inet filter".into(),
            chain: chain.into(),
            hook: chain.into(),
            text: text.into(),
            counted,
        };
        let mut evidence = evidence(vec![drops("NETFILTER_DROP", Destination::Local, 40)]);
        evidence.rules =
            vec![rule("forward", "drop", None), rule("input", "udp dport { 514, 515 } counter drop", Some(40))];
        assert_told(&evidence, "firewall", 40, "nft insert rule inet filter input udp dport 514 accept");
        evidence.rules = vec![rule("input", "drop", None), rule("prerouting", "policy drop", None)];
        assert_eq!(told(&evidence).2, "nft -a list ruleset", "where two may be it, none is changed");
        evidence.rules = vec![rule("input", "udp dport 500-600 drop", None), rule("other", "udp dport 53 drop", None)];
        assert_told(&evidence, "firewall", 40, "nft insert rule inet filter input udp dport 514 accept");
        evidence.rules = vec![rule("input", "drop", None)];
        assert!(told(&evidence).2.starts_with("nft insert rule"));
        evidence.datagrams.iter_mut().flatten().for_each(|drop| drop.port = 0);
        assert_eq!(told(&evidence).2, "nft -a list ruleset", "fragments without a port open no other port");
        evidence.datagrams.iter_mut().flatten().for_each(|drop| drop.port = 514);
        evidence.rules = vec![rule("forward", "policy drop", None)];
        assert!(told(&evidence).2.starts_with("iptables -nvL"), "what is for this host is not forwarded");
        evidence.rules = vec![FirewallRule { table: "ip6 filter".into(), ..rule("input", "policy drop", None) }];
        assert!(told(&evidence).2.starts_with("iptables -nvL"), "another family");
    }

    #[test]
    fn without_a_port_that_was_asked_for_only_those_that_a_program_has_are_told() {
        use Destination::{Group, Local};
        let all =
            vec![drops("NETFILTER_DROP", Local, 7), drops("NOT_SPECIFIED", Group(false), 7), drops("x", Local, 7)];
        let mut evidence = Evidence { asked_port: None, ..evidence(all) };
        assert_eq!(diagnose(&evidence), []);
        evidence.ports.push(Port { port: 514, ..Port::default() });
        assert_eq!(diagnose(&evidence).len(), 3);
    }

    #[test]
    fn where_the_table_was_full_what_is_unknown_is_no_wrong_address() {
        let unknown = |reason| drops(reason, Destination::Unknown, 9);
        let mirrored = DatagramDrops { is_for_other_host: true, ..unknown("OTHERHOST") };
        let mut evidence = evidence(vec![unknown("NO_SOCKET"), mirrored]);
        evidence.stack.no_ports = Some(9);
        let told: Vec<_> = diagnose(&evidence).iter().map(|finding| (finding.case, finding.lost)).collect();
        assert_eq!(told, [("no_listener", 9)]);
    }

    #[test]
    fn why_a_socket_on_the_port_does_not_take_it_is_said() {
        let any = SocketEvidence { address: "0.0.0.0:514".into(), ..SocketEvidence::default() };
        let peer = "10.0.0.7:5000".parse().ok();
        for (words, socket) in [
            ("is connected to 10.0.0.7:5000", SocketEvidence { peer, ..any.clone() }),
            ("bound to the interface eth1", SocketEvidence { interface: Some("eth1".into()), ..any.clone() }),
            ("IPV6_V6ONLY", SocketEvidence { address: "[::]:514".into(), v6_only: true, ..any.clone() }),
            ("bound to 127.0.0.1:514", SocketEvidence { address: "127.0.0.1:514".into(), ..any.clone() }),
        ] {
            let mut evidence = evidence(vec![drops("NO_SOCKET", Destination::Local, 9)]);
            evidence.stack.no_ports = Some(9);
            evidence.ports.push(Port { port: 514, sockets: vec![socket], ..Port::default() });
            let found = first(&evidence);
            assert_eq!((found.case, found.lost), ("socket_takes_others", 9));
            assert!(found.cause.contains(words), "{words}: {found:?}");
        }
    }

    #[test]
    fn what_is_longer_than_an_mtu_is_charged_to_the_interface_once() {
        let long =
            DatagramDrops { is_elsewhere: true, longest_bytes: 2528, ..drops("NOT_SPECIFIED", Destination::Local, 5) };
        let mut evidence = evidence(vec![long.clone()]);
        let interface = InterfaceEvidence {
            name: "eth0".into(),
            dropped: Some(5),
            mtu: Some(1500),
            ..InterfaceEvidence::default()
        };
        evidence.interfaces.push(interface);
        assert_told(&evidence, "longer_than_mtu", 5, "ip link set dev eth0 mtu 2528");
        evidence.datagrams = Some(vec![DatagramDrops { reason: "NETFILTER_DROP".into(), ..long }]);
        assert_eq!(diagnose(&evidence), [], "a firewall of another namespace");
    }
}
