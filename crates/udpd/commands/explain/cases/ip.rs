//! What IP and UDP refuse: fragments that do not become whole, sources from the wrong side, a full table of
//! connections, rules of a firewall, and checksums that are wrong.

use crate::commands::explain::evidence::Evidence;
use crate::commands::explain::finding::{Cure, Finding, Layer};
use crate::commands::explain::sums::{megabytes, percent};
use crate::text::tables::grouped;

/// So near to its limit the memory for fragments counts as full: a look sees it after the kernel has made room.
const FULL: f64 = 0.7;

/// A datagram in two fragments takes as much memory, at least.
const DATAGRAM_BYTES: u64 = 8192;

/// Positive counts only.
fn some(count: Option<u64>) -> Option<u64> {
    count.filter(|count| *count > 0)
}

pub fn bad_fragments(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.reassembly_failed) else { return Vec::new() };
    let finding = Finding::new("fragments", Layer::Ip, "fragments", (lost, "failed reassemblies"));
    let settings = &evidence.settings;
    let sizes = settings.fragments_max_bytes.zip(settings.fragments_used_max_bytes);
    let small = sizes.filter(|(limit, used)| *used as f64 >= *limit as f64 * FULL || *limit < DATAGRAM_BYTES * 8);
    let Some((limit, used)) = small else {
        let cause = "fragmented datagrams did not become whole: fragments of them never came";
        let arithmetic = "a datagram that is longer than the MTU (1,472 bytes of payload on Ethernet) is lost when one \
                          of its fragments is";
        let note =
            "at the sender: datagrams of at most 1,472 bytes (1,452 over IPv6), or a larger MTU on the whole way";
        return vec![finding.because(cause).with(arithmetic).cured_by([Cure::elsewhere(note)])];
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
    let cure = Cure::sysctl("net.ipv4.ipfrag_high_thresh", needed.next_multiple_of(1 << 20), note);
    vec![finding.because(cause).with(arithmetic).cured_by([cure])]
}

pub fn reverse_path_filter(evidence: &Evidence) -> Vec<Finding> {
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
    let finding = Finding::new("reverse_path_filter", Layer::Ip, "reverse path filter", (lost, "packets"));
    let cause = format!(
        "the reverse path filter (rp_filter) refused them: this host would not answer their source through the \
         interface on which they came{}",
        if strict.is_empty() { String::new() } else { format!(" ({} is strict)", strict.join(", ")) }
    );
    if strict.is_empty() || !settings.has_default_route {
        let note = "there is no route to these sources through any interface, which the loose filter asks for as well: \
                    add the route (ip route add NETWORK dev INTERFACE), or switch the filter off";
        let off = |name: &str| Cure::sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), 0, note);
        let names = evidence.interfaces.iter().filter(|interface| interface.rp_filter.unwrap_or(0) > 0);
        let mut cures: Vec<Cure> = (all > 0).then(|| off("all")).into_iter().collect();
        cures.extend(names.map(|interface| off(&interface.name)));
        return vec![finding.because(cause).cured_by(cures)];
    }
    let note = "loose: any route to the source will do";
    let loose = |name: &str| Cure::sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), 2, note);
    let cures = match strict.as_slice() {
        [one] => vec![loose(one)],
        _ => vec![loose("all")],
    };
    vec![finding.because(cause).cured_by(cures)]
}

pub fn conntrack_full(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.conntrack_dropped) else { return Vec::new() };
    let settings = &evidence.settings;
    let cause = "the table of connections (conntrack) was full, and what has no entry in it is dropped";
    let finding = Finding::new("conntrack_full", Layer::Ip, "conntrack", (lost, "packets")).because(cause);
    let mut cures = vec![];
    let mut arithmetic = String::new();
    if let (Some(max), Some(count)) = (settings.conntrack_max, settings.conntrack_count) {
        arithmetic = format!(
            "{} of {} entries are in use; each sender and port is one for 30 s after its last datagram",
            grouped(count),
            grouped(max)
        );
        let note = "about 320 bytes of kernel memory an entry";
        cures.push(Cure::sysctl("net.netfilter.nf_conntrack_max", max.saturating_mul(4), note));
    }
    let port = evidence.asked_port.or_else(|| evidence.listeners.first()?.ports.first().copied());
    let port = port.map_or("PORT".to_owned(), |port| port.to_string());
    let command = format!("iptables -t raw -A PREROUTING -p udp --dport {port} -j CT --notrack");
    let note = "better: a collector needs no entries at all";
    cures.push(Cure::command(command, note));
    vec![finding.with(arithmetic).cured_by(cures)]
}

/// The kernel names no port and counts every protocol, so it is told without being called a loss of datagrams.
pub fn firewall(evidence: &Evidence) -> Vec<Finding> {
    let of_rules = |name: &str| name == "NETFILTER_DROP" || name == "IPTABLES_DROP";
    let dropped: u64 = evidence.reasons.iter().filter(|reason| of_rules(&reason.name)).map(|reason| reason.count).sum();
    if dropped == 0 {
        return Vec::new();
    }
    let cause = format!(
        "rules of the firewall dropped {} packets, of any protocol and in all network namespaces (the kernel's reason: \
         NETFILTER_DROP); whether datagrams for a listener were among them the kernel does not tell",
        grouped(dropped)
    );
    let command = match evidence.asked_port.or_else(|| evidence.listeners.first()?.ports.first().copied()) {
        Some(port) => format!("iptables -I INPUT -p udp --dport {port} -j ACCEPT"),
        None => "nft list ruleset".to_owned(),
    };
    let note = "if they are meant to come in; with nftables alone look first: nft list ruleset";
    let finding = Finding::new("firewall", Layer::Ip, "firewall", (0, "packets"));
    vec![finding.because(cause).cured_by([Cure::command(command, note)])]
}

pub fn bad_checksums(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = some(evidence.stack.checksum_errors) else { return Vec::new() };
    let cause = "their UDP checksum was wrong: they were damaged on the way, or the sender never computed it";
    let note = "at the sender, where it is a virtual machine, a container or a program that writes packets itself: \
                ethtool -K INTERFACE tx off; otherwise look for the faulty card, cable or switch";
    let finding = Finding::new("bad_checksums", Layer::Udp, "checksums", (lost, "datagrams"));
    vec![finding.because(cause).cured_by([Cure::elsewhere(note)])]
}

#[cfg(test)]
mod tests {
    use crate::commands::explain::cases::testing::{first, told};
    use crate::commands::explain::evidence::{Evidence, Interface, Reason, Settings, Stack};

    fn stack(stack: Stack, settings: Settings) -> Evidence {
        Evidence { seconds: 5.0, stack, settings, ..Evidence::default() }
    }

    #[test]
    fn full_memory_for_fragments_is_raised_and_fragments_that_never_come_are_the_senders() {
        let failed = Stack { reassembly_failed: Some(80), ..Stack::default() };
        let full = Settings {
            fragments_max_bytes: Some(4 << 20),
            fragments_used_max_bytes: Some(4 << 20),
            ..Settings::default()
        };
        assert_eq!(told(&stack(failed, full)), ("fragments", 80, "net.ipv4.ipfrag_high_thresh=16777216".to_owned()));
        let empty = Settings { fragments_used_max_bytes: Some(0), ..full };
        let finding = first(&stack(failed, empty));
        assert!(finding.cause.contains("never came"), "{finding:?}");
    }

    #[test]
    fn a_strict_filter_is_made_loose_where_it_is_strict_and_switched_off_where_that_does_not_help() {
        let mut evidence = stack(
            Stack { reverse_path: Some(9), ..Stack::default() },
            Settings { rp_filter_all: Some(0), has_default_route: true, ..Settings::default() },
        );
        for (name, strict) in [("eth0", 0), ("eth1", 1)] {
            let interface = Interface { name: name.into(), rp_filter: Some(strict), ..Interface::default() };
            evidence.interfaces.push(interface);
        }
        assert_eq!(told(&evidence), ("reverse_path_filter", 9, "net.ipv4.conf.eth1.rp_filter=2".to_owned()));
        evidence.settings.has_default_route = false;
        assert_eq!(told(&evidence).2, "net.ipv4.conf.eth1.rp_filter=0");
    }

    /// Recorded: only the first network namespace may set how large the table is.
    #[test]
    fn a_full_table_of_connections_is_named_with_its_size() {
        let settings = Settings { conntrack_max: Some(1000), conntrack_count: Some(1000), ..Settings::default() };
        let evidence = stack(Stack { conntrack_dropped: Some(7), ..Stack::default() }, settings);
        assert_eq!(told(&evidence), ("conntrack_full", 7, "net.netfilter.nf_conntrack_max=4000".to_owned()));
    }

    #[test]
    fn rules_of_a_firewall_are_told_by_the_kernels_reason_and_are_no_certain_loss() {
        let mut evidence = stack(Stack::default(), Settings::default());
        evidence.asked_port = Some(514);
        evidence.reasons.push(Reason { name: "NETFILTER_DROP".into(), port: None, count: 40 });
        let command = "iptables -I INPUT -p udp --dport 514 -j ACCEPT".to_owned();
        assert_eq!(told(&evidence), ("firewall", 0, command));
    }

    #[test]
    fn wrong_checksums_are_cured_at_the_sender() {
        let evidence = stack(Stack { checksum_errors: Some(4), ..Stack::default() }, Settings::default());
        let (case, lost, cure) = told(&evidence);
        assert_eq!((case, lost), ("bad_checksums", 4));
        assert!(cure.starts_with("at the sender"), "{cure}");
    }
}
