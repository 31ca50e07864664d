//! The parsers against what kernels of different ages write: columns that are not there yet, and columns of the future.

use super::*;
use crate::tables::{Ip, Udp};

/// What `sections` finds in a text, as `section.name=value`.
fn found(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    sections(text, |section, name, value| found.push(format!("{section}.{name}={value}")));
    found
}

#[test]
fn names_and_values_of_a_section_belong_together_by_their_place() {
    let text =
        "Ip: Forwarding InReceives\nIp: 2 700\nTcp: MaxConn InSegs\nTcp: -1 5\nUdp: InErrors NoPorts\nUdp: 9 8\n";
    assert_eq!(
        found(text),
        ["Ip.Forwarding=2", "Ip.InReceives=700", "Tcp.InSegs=5", "Udp.InErrors=9", "Udp.NoPorts=8"],
        "what is negative is no counter"
    );
}

#[test]
fn a_kernel_without_a_counter_leaves_it_unknown_and_one_with_more_of_them_changes_nothing() {
    let mut udp = Udp::default();
    sections("Udp: InDatagrams NoPorts InErrors\nUdp: 5 4 3\n", |_, name, value| udp.set(name, value));
    let old = Udp { in_datagrams: Some(5), no_ports: Some(4), in_errors: Some(3), ..Udp::default() };
    assert_eq!(udp, old, "an old kernel has no MemErrors");
    sections("Udp: InErrors OfTomorrow NoPorts\nUdp: 3 77 4\n", |_, name, value| udp.set(name, value));
    assert_eq!(udp, old);
}

#[test]
fn a_text_that_is_cut_off_or_out_of_step_gives_what_came_before() {
    assert_eq!(found("Ip: A B\nIp: 1\n"), ["Ip.A=1"]);
    assert_eq!(found("Ip: A\nIp: 1\nUdp: B\n"), ["Ip.A=1"]);
    assert_eq!(found("Ip: A\nUdp: 1\n"), [] as [&str; 0]);
    assert_eq!(found("nothing of the kind\nat all\n"), [] as [&str; 0]);
}

#[test]
fn ipv6_has_a_line_for_each_counter() {
    let mut ip = Ip::default();
    let text = "Ip6InReceives                   \t12\nIp6InDiscards \t3\nIcmp6InMsgs\t1\nIp6OfTomorrow\n";
    lines(text, |name, value| ip.set(name.strip_prefix("Ip6").unwrap_or_default(), value));
    assert_eq!(ip, Ip { in_receives: Some(12), in_discards: Some(3), ..Ip::default() });
}

#[test]
fn a_core_is_known_by_the_number_in_its_line_where_there_is_one() {
    let mut cores = Vec::new();
    let mut read = |text| {
        cores.clear();
        parse_softnet(text, |core, counts| cores.push((core, counts)));
        cores.clone()
    };
    // Linux 4.18: eleven columns. 6.1: thirteen, of which the last is the core. 6.18: fifteen.
    let old = "0000000a 00000001 00000002 0 0 0 0 0 0 00000003 00000004\n0000000b 0 0 0 0 0 0 0 0 0 0\n";
    let counts = Softnet {
        processed: Some(10),
        dropped: Some(1),
        time_squeeze: Some(2),
        received_rps: Some(3),
        flow_limit: Some(4),
        backlog: None,
    };
    assert_eq!(read(old)[0], (0, counts));
    assert_eq!(read(old)[1].0, 1);
    let new = "0000000a 00000001 00000002 0 0 0 0 0 0 00000003 00000004 00000005 00000007 00000005 00000000\n";
    assert_eq!(read(new), [(7, Softnet { backlog: Some(5), ..counts })]);
    assert_eq!(read("no hexadecimal\n\n"), []);
}

#[test]
fn the_counts_of_all_cores_are_summed_and_stay_right_when_one_of_them_wraps() {
    // The names differ between kernels: `new` and `searched` went, `clashres` and `chainlength` came.
    let text = |drops: [u32; 2]| {
        let [first, second] = drops.map(|drops| format!("{drops:08x}"));
        format!(
            "entries  found insert_failed drop early_drop\n1 0 00000002 {first} 0\n1 0 00000003 {second} 00000001\n"
        )
    };
    let read = |drops| {
        let mut counts = Conntrack::default();
        parse_conntrack(&text(drops), &mut counts);
        counts
    };
    let (before, after) = (read([u32::MAX - 1, 10]), read([5, 12]));
    assert_eq!((before.insert_failed, before.early_drop, before.invalid), (Some(5), Some(1), None));
    assert_eq!(after.since(&before).drop, Some(7 + 2));
    assert_eq!(before.chain_too_long, Some(0), "a kernel without the column drops nothing for that");
    let mut counts = Conntrack::default();
    parse_conntrack(
        "entries chainlength insert_failed drop\n1 00000002 00000005 00000003\n1 00000004 0 0\n",
        &mut counts,
    );
    assert_eq!((counts.chain_too_long, counts.drop, counts.insert_failed), (Some(6), Some(3), Some(5)));
}

#[test]
fn the_sections_of_sockets_are_told_apart() {
    let mut found = Vec::new();
    let text = "sockets: used 16\nUDP: inuse 3 mem 13\nUDPLITE: inuse 0\nFRAG: inuse 0 memory 40\n";
    pairs(text, |section, name, value| found.push(format!("{section} {name} {value}")));
    assert_eq!(found[1..3], ["UDP inuse 3", "UDP mem 13"]);
    assert_eq!(found.last().expect("six"), "FRAG memory 40");
    assert_eq!(numbers("576918\t769224\t1153836\n").collect::<Vec<_>>(), [576_918, 769_224, 1_153_836]);
}
