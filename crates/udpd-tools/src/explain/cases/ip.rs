//! What IP and UDP refuse: fragments that do not become whole, sources from the wrong side, a full table of
//! connections, rules of a firewall, wrong checksums, and a port that no socket has: no program listens, or on another
//! address only, or in another network namespace.

use std::collections::BTreeMap;

use crate::explain::evidence::{Destination, Evidence};
use crate::explain::finding::{Cure, Finding, LossLayer, quote, sysctl_of_interface};
use crate::explain::sysctl_dropin::{megabytes, percent};
use udpd_base::text::tables::grouped;

/// From this share on the memory for fragments counts as full: a look sees it after the kernel has made room.
const FULL: f64 = 0.7;

/// A datagram in two fragments takes as much memory, at least.
const DATAGRAM_BYTES: u64 = 8192;

/// From this share on the table of connections counts as full.
const TABLE_FULL: f64 = 0.9;

/// So many closed ports are named.
const PORTS_NAMED: usize = 8;

const LOOSE: &str = "loose: any route to the source will do";

fn some(count: Option<u64>) -> Option<u64> {
    count.filter(|count| *count > 0)
}

pub(super) fn bad_fragments(evidence: &Evidence) -> Vec<Finding> {
    let settings = &evidence.settings;
    let sizes = settings.fragments_max_bytes.zip(settings.fragments_used_max_bytes);
    let sizes6 = settings.fragments6_max_bytes.zip(settings.fragments6_used_max_bytes);
    let of_family = |lost: Option<u64>, subject: &str, key: &str, sizes| {
        let lost = some(lost)?;
        let finding = Finding::new("fragments", LossLayer::Ip, subject, (lost, "failed reassemblies"));
        Some(fragments_of(finding, key, sizes))
    };
    let four = of_family(evidence.stack.reassembly_failed, "fragments", "net.ipv4.ipfrag_high_thresh", sizes);
    let six = of_family(evidence.stack.reassembly6_failed, "fragments of IPv6", "net.ipv6.ip6frag_high_thresh", sizes6);
    [four, six].into_iter().flatten().collect()
}

/// Of one family: each has memory of its own. `sizes` are what it may have and what it had at most.
fn fragments_of(finding: Finding, key: &str, sizes: Option<(u64, u64)>) -> Finding {
    let lost = finding.lost;
    let small = sizes.filter(|(limit, used)| *used as f64 >= *limit as f64 * FULL || *limit < DATAGRAM_BYTES * 8);
    let Some((limit, used)) = small else {
        let cause = "fragmented datagrams did not become whole: fragments of them never came";
        let arithmetic = "a datagram that is longer than the MTU (1,472 bytes of payload on Ethernet) is lost when one \
                          of its fragments is";
        let note =
            "at the sender: datagrams of at most 1,472 bytes (1,452 over IPv6), or a larger MTU on the whole way";
        return finding.because(cause).with(arithmetic).cured_by([Cure::elsewhere(note)]);
    };
    let cause = "fragmented datagrams did not become whole: the memory for fragments that wait for the others was full";
    let arithmetic = format!(
        "up to {} of {} were in use ({})",
        megabytes(used),
        megabytes(limit),
        percent(used as f64 / limit.max(1) as f64)
    );
    let needed = limit.saturating_mul(4).max(lost.saturating_mul(DATAGRAM_BYTES)).clamp(4 << 20, 1 << 28);
    let note = "fragments that never come fill any memory: better send datagrams of at most 1,472 bytes";
    let cure = Cure::sysctl(key, needed.next_multiple_of(1 << 20), note);
    finding.because(cause).with(arithmetic).cured_by([cure])
}

pub(super) fn reverse_path_filter(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.reverse_path) else { return Vec::new() };
    let settings = &evidence.settings;
    let all = settings.rp_filter_all.unwrap_or(0);
    let is_strict = |own: Option<u8>| own.unwrap_or(0).max(all) == 1;
    let strict: Vec<&str> = evidence
        .interfaces
        .iter()
        .filter(|interface| interface.rp_filter.is_some() && is_strict(interface.rp_filter))
        .filter(|interface| interface.packets != Some(0))
        .map(|interface| interface.name.as_str())
        .collect();
    let finding = Finding::new("reverse_path_filter", LossLayer::Ip, "reverse path filter", (lost, "packets"));
    let cause = format!(
        "the reverse path filter (rp_filter) refused them: this host would not answer their source through the \
         interface on which they came{}",
        if strict.is_empty() { String::new() } else { format!(" ({} is strict)", strict.join(", ")) }
    );
    let mut cures = Vec::new();
    // Without a default route no route may lead to the source, and then the loose filter refuses it as well.
    match strict.as_slice() {
        _ if !settings.has_default_route => {}
        [] => {}
        [one] => cures.push(Cure::sysctl(&sysctl_of_interface(one, "rp_filter"), 2, LOOSE)),
        _ => cures.push(Cure::sysctl(&sysctl_of_interface("all", "rp_filter"), 2, LOOSE)),
    }
    if strict.is_empty() || !settings.has_default_route {
        let names = evidence.interfaces.iter().filter(|interface| interface.rp_filter > Some(0));
        let names = names.map(|interface| interface.name.as_str());
        let off = |name: &str| format!("{}=0", quote(&sysctl_of_interface(name, "rp_filter")));
        let words: Vec<String> = ["all"].into_iter().chain(names).map(off).collect();
        let note = "if no route leads to these sources through any interface, the loose filter refuses them as well: \
                    add the route (ip route add NETWORK dev INTERFACE), or switch the filter off with this";
        cures.push(Cure::command(format!("sysctl -w {}", words.join(" ")), note));
    }
    vec![finding.because(cause).cured_by(cures)]
}

pub(super) fn conntrack_full(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.conntrack_dropped) else { return Vec::new() };
    let settings = &evidence.settings;
    let sizes = settings.conntrack_max.zip(settings.conntrack_count);
    let is_full = sizes.is_none_or(|(max, count)| count as f64 >= max as f64 * TABLE_FULL);
    let cause = match is_full {
        true => "the table of connections (conntrack) was full, and what has no entry in it is dropped",
        false => {
            "the table of connections (conntrack) dropped them: two packets raced for one entry, too many entries had \
             the same hash (net.netfilter.nf_conntrack_buckets), or the table was full for a moment; at the end it had \
             room"
        }
    };
    let mut finding = Finding::new("conntrack_full", LossLayer::Ip, "conntrack", (lost, "packets")).because(cause);
    if let Some((max, count)) = sizes {
        finding = finding.with(format!(
            "{} of {} entries are in use; each sender and port is one for 30 s after its last datagram",
            grouped(count),
            grouped(max)
        ));
        if is_full {
            let note = "about 320 bytes of kernel memory an entry";
            finding = finding.cured_by([Cure::sysctl("net.netfilter.nf_conntrack_max", max.saturating_mul(4), note)]);
        }
    }
    let without_entries = "a collector needs no entries; but without them rules with ctstate do not match the port's \
                           packets, and DNAT (a published port of a container) does not reach it";
    let cure = match evidence.asked_port.or_else(|| evidence.listeners.first()?.ports.first().copied()) {
        Some(port) => Cure::command(
            format!("iptables -t raw -A PREROUTING -p udp --dport {port} -j CT --notrack"),
            without_entries,
        ),
        None => Cure::elsewhere(format!("or take the ports of collectors out of tracking: {without_entries}")),
    };
    vec![finding.cured_by([cure])]
}

pub(super) fn header_errors(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.header_errors) else { return Vec::new() };
    let datagrams = evidence.datagrams.iter().flatten().map(|it| (it.reason.as_str(), it.count));
    let named = datagrams.chain(evidence.reasons.iter().map(|it| (it.name.as_str(), it.count)));
    let what = match named
        .filter(|(name, _)| name.starts_with("IP_CSUM") || name.starts_with("IP_INHDR"))
        .max_by_key(|it| it.1)
    {
        Some(("IP_CSUM", _)) => ": the checksum of the header does not fit it",
        Some(_) => ": its version, its length or an option cannot be",
        None => ", or it came to be forwarded and had gone too far (TTL)",
    };
    let cause = format!("the header of IP was wrong{what}; they were damaged on the way, or a program wrote them so");
    let note =
        "at the sender, where a program writes packets itself; otherwise look for the faulty card, cable or switch";
    let look = Cure::look("nstat -asz | grep -i Hdr", "whether more come");
    let finding = Finding::new("header_errors", LossLayer::Ip, "headers", (lost, "packets of any protocol"));
    vec![finding.because(cause).cured_by([Cure::elsewhere(note), look])]
}

/// What programs here could not send.
pub(super) fn send_buffer(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.send_buffer_errors) else { return Vec::new() };
    let cause = "programs here wanted to send them, and were refused because their send buffer was full, or the queue \
                 of the interface (UDP counts SndbufErrors): they are answers that nothing received";
    let note = "a program that sends without waiting loses what does not fit: let it wait until the socket is \
                writable, or ask for a larger SO_SNDBUF for bursts (up to net.core.wmem_max)";
    let look =
        Cure::look("ss -uamn; tc -s qdisc show", "shows full send buffers (t in skmem) and what a queue dropped");
    let finding = Finding::new("send_buffer", LossLayer::Udp, "send buffers", (lost, "datagrams"));
    vec![finding.because(cause).cured_by([Cure::elsewhere(note), look])]
}

/// Without the headers of what was dropped the kernel names no port and counts every protocol, so this is not called a
/// loss of datagrams.
pub(super) fn firewall_of_any_port(evidence: &Evidence) -> Vec<Finding> {
    if evidence.datagrams.is_some() {
        return Vec::new();
    }
    let of_rules = evidence.reasons.iter().filter(|reason| reason.name == "NETFILTER_DROP");
    let dropped: u64 = of_rules.map(|reason| reason.count).sum();
    if dropped == 0 {
        return Vec::new();
    }
    let cause = format!(
        "rules of the firewall dropped {} packets, of any protocol and in all network namespaces (the kernel's reason: \
         NETFILTER_DROP); whether datagrams for a listener were among them the kernel does not tell",
        grouped(dropped)
    );
    let port = evidence.asked_port.or_else(|| evidence.listeners.first()?.ports.first().copied());
    let port = port.map_or("the port".to_owned(), |port| format!("port {port}"));
    let note = format!("if they are meant to come in, accept UDP to {port} before the rule that drops");
    let finding = Finding::new("firewall", LossLayer::Ip, "firewall", (0, "packets"));
    vec![finding.because(cause).cured_by([
        Cure::look("nft list ruleset", "the rules, and what their counters say"),
        Cure::look("iptables -nvL", "the same where iptables-legacy has them"),
        Cure::elsewhere(note),
    ])]
}

pub(super) fn bad_checksums(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.checksum_errors) else { return Vec::new() };
    let cause = "their UDP checksum was wrong: they were damaged on the way, or the sender never computed it";
    let note = "at the sender, where it is a virtual machine, a container or a program that writes packets itself: \
                ethtool -K INTERFACE tx off; otherwise look for the faulty card, cable or switch";
    let finding = Finding::new("bad_checksums", LossLayer::Udp, "checksums", (lost, "datagrams"));
    vec![finding.because(cause).cured_by([Cure::elsewhere(note)])]
}

pub(super) fn no_listener(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = evidence.stack.no_ports.filter(|count| *count > 0) else { return Vec::new() };
    let asked = evidence.asked_port;
    // Where the kernel's reasons have ports, only those of the ports that are meant count.
    let has_socket = |port: u16| evidence.ports.iter().any(|it| it.port == port && !it.sockets.is_empty());
    let datagrams = evidence.datagrams.as_ref().filter(|_| asked.is_some() || evidence.has_all_ports);
    let unheard = datagrams.map(|datagrams| {
        let is_ours = |aimed_at| matches!(aimed_at, Destination::Local | Destination::Unknown);
        datagrams.iter().filter(move |it| it.reason == "NO_SOCKET" && is_ours(it.aimed_at) && !it.is_elsewhere)
    });
    let ports: Option<BTreeMap<u16, u64>> = unheard.map(|unheard| {
        let mut ports = BTreeMap::new();
        unheard.for_each(|it| *ports.entry(it.port).or_insert(0) += it.count);
        ports
    });
    let told: u64 = ports.iter().flat_map(|ports| ports.values()).sum();
    let sockets = evidence.ports.iter().find(|port| Some(port.port) == asked).map(|port| port.sockets.as_slice());
    if sockets.is_some_and(|sockets| !sockets.is_empty()) || (asked.is_none() && !evidence.listeners.is_empty()) {
        let lost = lost.saturating_sub(told);
        return (lost > 0).then(|| of_others(evidence, lost)).into_iter().collect();
    }
    let lost = match &ports {
        Some(ports) => ports.iter().filter(|(port, _)| !has_socket(**port)).map(|(_, count)| *count).sum(),
        None => lost,
    };
    if lost == 0 {
        return Vec::new();
    }
    let name = asked.map_or("ports without a socket".to_owned(), |port| format!("port {port}"));
    let on = asked.map_or("a port".to_owned(), |port| format!("port {port}"));
    let finding = Finding::new("no_listener", LossLayer::Udp, name, (lost, "datagrams"));
    if let Some((found, port)) = evidence.elsewhere.first().zip(asked) {
        let cause = format!(
            "they came for {on} of this network namespace, where no socket has it; {} (pid {}) listens in another one",
            found.command, found.pid
        );
        let command = format!("nsenter --target {} --net udpd explain --port {port}", found.pid);
        let note = "shows that namespace; publish the container's port, run it in the host's network, or send there";
        return vec![finding.because(cause).cured_by([Cure::look(command, note)])];
    }
    let named = ports.iter().flatten().filter(|(port, _)| asked.is_none() && !has_socket(**port)).take(PORTS_NAMED);
    let named: Vec<String> = named.map(|(port, count)| format!("port {port} ({})", grouped(*count))).collect();
    let on = if named.is_empty() { on } else { named.join(", ") };
    let cause = format!("no program listens on {on}: the kernel answers with an ICMP error and drops");
    let cure = match asked {
        Some(port) => Cure::command(
            format!("udpd run --listen 0.0.0.0:{port} --to null:"),
            "or start the program that should listen there; ss -ulpn shows who listens where",
        ),
        None => Cure::look(
            "ss -ulpn",
            "shows who listens where; where no ports are named, tcpdump -n icmp shows the kernel's answers with them",
        ),
    };
    vec![finding.because(cause).cured_by([cure])]
}

/// The port that matters has a listener, and the kernel counts all ports together.
fn of_others(evidence: &Evidence, lost: u64) -> Finding {
    let addresses = evidence.ports.iter().flat_map(|port| &port.sockets).map(|socket| socket.address.as_str());
    let mut specific: Vec<&str> =
        addresses.filter(|it| !it.starts_with("0.0.0.0:") && !it.starts_with("[::]:")).collect();
    specific.sort_unstable();
    specific.dedup();
    let only = match specific.as_slice() {
        [] => String::new(),
        some => format!("; a socket that is bound to {} takes only what is sent to that address", some.join(" or ")),
    };
    let cause = format!(
        "{} datagrams of this network namespace came for a port or an address that no socket has: the kernel counts \
         them all together{only}",
        grouped(lost)
    );
    let note = "tcpdump -n icmp shows the kernel's answers with their ports; udpd explain --port N says who has one";
    Finding::new("other_ports", LossLayer::Udp, "ports without a socket", (0, "datagrams"))
        .because(cause)
        .cured_by([Cure::elsewhere(note)])
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::testing::{assert_told, first, told};
    use crate::explain::evidence::{
        Elsewhere, Evidence, InterfaceEvidence, KernelSettings, NamedDrops, Port, SocketEvidence, Stack,
    };
    use crate::explain::finding::Cure;

    fn stack(stack: Stack, settings: KernelSettings) -> Evidence {
        Evidence { seconds: 5.0, stack, settings, ..Evidence::default() }
    }

    #[test]
    fn full_memory_for_fragments_is_raised_and_fragments_that_never_come_are_the_senders() {
        let failed = Stack { reassembly_failed: Some(80), ..Stack::default() };
        let full = KernelSettings {
            fragments_max_bytes: Some(4 << 20),
            fragments_used_max_bytes: Some(4 << 20),
            ..KernelSettings::default()
        };
        assert_told(&stack(failed, full), "fragments", 80, "net.ipv4.ipfrag_high_thresh=16777216");
        let empty = KernelSettings { fragments_used_max_bytes: Some(0), ..full };
        let finding = first(&stack(failed, empty));
        assert!(finding.cause.contains("never came"), "{finding:?}");
        let failed = Stack { reassembly6_failed: Some(80), ..Stack::default() };
        assert!(first(&stack(failed, full)).cause.contains("never came"), "its memory is its own");
        let full =
            KernelSettings { fragments6_max_bytes: Some(20_000), fragments6_used_max_bytes: Some(20_000), ..full };
        assert_eq!(told(&stack(failed, full)).2, "net.ipv6.ip6frag_high_thresh=4194304");
    }

    #[test]
    fn a_strict_filter_is_made_loose_where_it_is_strict_and_switched_off_where_that_does_not_help() {
        let mut evidence = stack(
            Stack { reverse_path: Some(9), ..Stack::default() },
            KernelSettings { rp_filter_all: Some(0), has_default_route: true, ..KernelSettings::default() },
        );
        for (name, strict) in [("eth0", 0), ("eth1", 1)] {
            let interface =
                InterfaceEvidence { name: name.into(), rp_filter: Some(strict), ..InterfaceEvidence::default() };
            evidence.interfaces.push(interface);
        }
        assert_told(&evidence, "reverse_path_filter", 9, "net.ipv4.conf.eth1.rp_filter=2");
        evidence.interfaces[1].name = "eth0.100".into();
        assert_eq!(told(&evidence).2, "net.ipv4.conf.eth0/100.rp_filter=2");
        evidence.settings.has_default_route = false;
        let off = "sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0/100.rp_filter=0";
        assert!(matches!(&first(&evidence).cures[0], Cure::Command { command, .. } if command == off), "{evidence:?}");
    }

    /// Recorded: only the first network namespace may set how large the table is.
    #[test]
    fn a_full_table_of_connections_is_named_with_its_size() {
        let settings =
            KernelSettings { conntrack_max: Some(1000), conntrack_count: Some(1000), ..KernelSettings::default() };
        let evidence = stack(Stack { conntrack_dropped: Some(7), ..Stack::default() }, settings);
        assert_told(&evidence, "conntrack_full", 7, "net.netfilter.nf_conntrack_max=4000");
        let mut with_room = evidence;
        with_room.settings.conntrack_count = Some(10);
        assert!(first(&with_room).cause.contains("raced"), "{:?}", first(&with_room));
        assert!(told(&with_room).2.contains("DNAT"), "no command without a port: {:?}", told(&with_room));
    }

    #[test]
    fn rules_of_a_firewall_are_told_by_the_kernels_reason_and_are_no_certain_loss() {
        let mut evidence = stack(Stack::default(), KernelSettings::default());
        evidence.asked_port = Some(514);
        evidence.reasons.push(NamedDrops { name: "NETFILTER_DROP".into(), port: None, count: 40 });
        assert_told(&evidence, "firewall", 0, "nft list ruleset");
    }

    #[test]
    fn wrong_checksums_are_cured_at_the_sender() {
        let evidence = stack(Stack { checksum_errors: Some(4), ..Stack::default() }, KernelSettings::default());
        let (case, lost, cure) = told(&evidence);
        assert_eq!((case, lost), ("bad_checksums", 4));
        assert!(cure.starts_with("at the sender"), "{cure}");
    }

    fn unheard() -> Evidence {
        let stack = Stack { no_ports: Some(50), ..Stack::default() };
        Evidence { seconds: 5.0, stack, asked_port: Some(514), ..Evidence::default() }
    }

    #[test]
    fn a_port_without_a_listener_gets_one() {
        assert_told(&unheard(), "no_listener", 50, "udpd run --listen 0.0.0.0:514 --to null:");
        let nobody_asked = Evidence { asked_port: None, ..unheard() };
        assert_told(&nobody_asked, "no_listener", 50, "ss -ulpn");
    }

    #[test]
    fn a_listener_in_another_namespace_is_named() {
        let mut evidence = unheard();
        evidence.elsewhere.push(Elsewhere { pid: 77, command: "rsyslogd".into() });
        assert!(told(&evidence).2.starts_with("nsenter --target 77 --net "), "{:?}", told(&evidence));
        assert!(first(&evidence).cause.contains("rsyslogd (pid 77) listens in another one"));
    }

    #[test]
    fn what_is_known_of_all_ports_alone_is_no_loss_of_one_that_is_read() {
        let mut evidence = unheard();
        let socket = SocketEvidence { address: "127.0.0.1:514".into(), ..SocketEvidence::default() };
        evidence.ports.push(Port { port: 514, sockets: vec![socket], ..Port::default() });
        assert_eq!((first(&evidence).case, first(&evidence).lost), ("other_ports", 0));
        assert!(first(&evidence).cause.contains("bound to 127.0.0.1:514"), "{:?}", first(&evidence));
    }
}
