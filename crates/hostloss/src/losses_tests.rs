//! The sum of the layers over made-up differences: what is contained is not counted again, and what is not known is
//! never taken for nothing.

use std::collections::BTreeMap;

use super::*;
use crate::tables::{Conntrack, Ip, LinkCounters, QueueCounters, SocketDrops, Softnet};
use crate::{CounterUnit, DriverCounter};

/// A host on which everything is known and nothing was lost.
fn quiet() -> HostReading {
    fn zeroes<T: KernelTable>() -> T {
        let mut table = T::default();
        table.cells().for_each(|(_, cell)| *cell = Some(0));
        table
    }
    let interface = InterfaceReading { link: zeroes(), driver: "veth".to_owned(), ..InterfaceReading::default() };
    HostReading {
        nic: BTreeMap::from([("eth0".to_owned(), interface)]),
        softnet: BTreeMap::from([(0, zeroes())]),
        conntrack: zeroes(),
        ip: zeroes(),
        ip6: zeroes(),
        udp: zeroes(),
        udp6: zeroes(),
        socket_drops: zeroes(),
        ..HostReading::default()
    }
}

/// The terms of the sum, as `layer.counter of place`.
fn terms(losses: &Losses) -> Vec<(String, u64)> {
    let term = |loss: &Loss| (format!("{}.{} of {}", loss.layer.name(), loss.counter, loss.place), loss.count);
    losses.lost.iter().map(term).collect()
}

#[test]
fn a_host_that_lost_nothing_has_no_terms_and_nothing_unseen() {
    assert_eq!(Losses::of(&quiet()), Losses::default());
}

#[test]
fn interfaces_that_are_not_read_are_said_to_be_unseen() {
    let losses = Losses::of(&HostReading { interfaces_left_out: 3, ..quiet() });
    assert_eq!(losses.unseen.len(), 1, "{losses:?}");
    assert!(losses.unseen[0].what.contains("3 more interfaces"), "{losses:?}");
}

#[test]
fn each_layer_is_in_the_sum_once_whatever_else_has_counted_the_same() {
    let mut host = quiet();
    let eth0 = host.nic.get_mut("eth0").expect("eth0");
    // The backlog of a core was full 40 times, which the interface has counted as well, and the ring once more.
    eth0.link = LinkCounters { rx_dropped: Some(40), rx_missed_errors: Some(7), rx_fifo_errors: Some(7), ..eth0.link };
    eth0.queues.insert(0, QueueCounters { hw_drops: Some(7), ..QueueCounters::default() });
    eth0.driver_counters.push(DriverCounter { name: "rx_drops".to_owned(), queue: None, value: Some(7) });
    host.softnet.insert(0, Softnet { dropped: Some(40), flow_limit: Some(30), ..Softnet::default() });
    host.ip = Ip { reasm_fails: Some(3), reasm_timeout: Some(2), reverse_path_filter: Some(5), ..host.ip };
    host.conntrack = Conntrack { drop: Some(9), chain_too_long: Some(2), insert_failed: Some(11), ..host.conntrack };
    // 100 did not fit the buffer, 20 were damaged; a socket has counted 110 of them.
    host.udp =
        Udp { in_errors: Some(120), rcvbuf_errors: Some(100), in_csum_errors: Some(20), no_ports: Some(6), ..host.udp };
    host.socket_drops.own = Some(110);
    let losses = Losses::of(&host);
    let expected = [
        ("nic.rx_missed_errors of eth0", 7),
        ("nic.rx_dropped of eth0", 40),
        ("conntrack.drop of host", 9),
        ("conntrack.chain_too_long of host", 2),
        ("ip.reverse_path_filter of ipv4", 5),
        ("ip.reasm_fails of ipv4", 3),
        ("udp.in_errors of ipv4", 120),
        ("udp.no_ports of ipv4", 6),
    ];
    assert_eq!(terms(&losses), expected.map(|(term, count)| (term.to_owned(), count)));
    assert_eq!((losses.total, losses.of_any_protocol), (192, 66));
    assert_eq!(losses.unseen, []);
}

#[test]
fn what_sockets_have_dropped_beyond_what_udp_has_counted_is_in_the_sum_as_well() {
    let mut host = quiet();
    host.udp.in_errors = Some(30);
    host.udp6.in_errors = Some(10);
    host.socket_drops.own = Some(45);
    let losses = Losses::of(&host);
    assert_eq!(losses.total, 45);
    assert_eq!(terms(&losses).last().expect("a term"), &("socket.drops of all sockets".to_owned(), 5));
}

#[test]
fn what_the_sockets_of_another_program_dropped_hides_nothing_of_our_own() {
    let mut host = quiet();
    // UDP has counted what the others dropped, and nothing of ours.
    host.udp.in_errors = Some(1000);
    host.socket_drops = SocketDrops { own: Some(45), others_on_ports: Some(300), elsewhere: Some(700) };
    let losses = Losses::of(&host);
    assert_eq!((losses.total, losses.unseen.len()), (1045, 0), "{losses:?}");
    host.socket_drops.elsewhere = None;
    let losses = Losses::of(&host);
    assert_eq!(losses.total, 1000, "what is not known is not added");
    let unseen = |losses: &Losses| losses.unseen.iter().map(|unseen| unseen.what.clone()).collect::<Vec<_>>();
    let hidden = "how many of 345 drops of the sockets seen here are not among the 1000 errors of UDP";
    assert_eq!(unseen(&losses), ["what UDP sockets on other ports dropped: it has not been read twice", hidden]);
    host.unread.push((KernelLayer::Socket, "there are more than 4096".to_owned()));
    assert_eq!(unseen(&Losses::of(&host)), [hidden, "there are more than 4096"], "the true reason alone");
    // UDP has counted nothing, so nothing can be hidden behind it.
    host.udp.in_errors = Some(0);
    let losses = Losses::of(&host);
    assert_eq!((losses.total, unseen(&losses)), (345, vec!["there are more than 4096".to_owned()]));
}

#[test]
fn a_bond_repeats_its_members_and_is_not_counted_again() {
    let mut host = quiet();
    let mut bond = host.nic["eth0"].clone();
    bond.link.rx_dropped = Some(8);
    host.nic.insert("eth0".to_owned(), bond.clone());
    host.nic.insert("bond0".to_owned(), InterfaceReading { repeats_others: true, ..bond });
    assert_eq!(Losses::of(&host).total, 8);
}

#[test]
fn what_is_not_known_is_named_and_never_taken_for_nothing() {
    let unseen = |host: &HostReading| -> Vec<String> {
        let losses = Losses::of(host);
        assert_eq!(losses.total, 0);
        losses.unseen.into_iter().map(|unseen| format!("{}: {}", unseen.layer.name(), unseen.what)).collect()
    };
    let mut host = quiet();
    host.udp.in_errors = None;
    assert_eq!(unseen(&host), ["udp: in_errors of ipv4: this kernel does not count it"]);
    // A detail of what is known is no loss of sight.
    let mut host = quiet();
    host.udp.mem_errors = None;
    host.nic.get_mut("eth0").expect("eth0").link.rx_crc_errors = None;
    assert_eq!(unseen(&host), [] as [&str; 0]);
    // Neither is what this host does not have.
    host.conntrack = Conntrack::default();
    (host.ip6, host.udp6) = (Ip::default(), Udp::default());
    assert_eq!(unseen(&host), [] as [&str; 0]);
    host.nic.get_mut("eth0").expect("eth0").link = LinkCounters::default();
    host.unread.push((KernelLayer::Socket, "the UDP sockets: sock_diag: refused".to_owned()));
    host.socket_drops = SocketDrops::default();
    assert_eq!(
        unseen(&host),
        ["nic: what eth0 lost: it has not been read twice", "socket: the UDP sockets: sock_diag: refused"]
    );
}

#[test]
fn what_a_hypervisor_or_a_cloud_drops_before_the_card_is_said_to_be_unseen() {
    let mut host = quiet();
    let eth0 = host.nic.get_mut("eth0").expect("eth0");
    eth0.driver = "virtio_net".to_owned();
    let allowance = |value| DriverCounter { name: "pps_allowance_exceeded".to_owned(), queue: None, value };
    eth0.driver_counters = vec![allowance(Some(12)), allowance(Some(0))];
    let losses = Losses::of(&host);
    assert_eq!((losses.total, losses.unseen.len()), (0, 2), "{losses:?}");
    assert!(losses.unseen[0].what.contains("12 packets"), "{losses:?}");
    assert!(losses.unseen[1].what.contains("hypervisor"), "{losses:?}");
    assert_eq!(losses.lost.iter().filter(|loss| loss.unit == CounterUnit::Packets).count(), 0);
}
