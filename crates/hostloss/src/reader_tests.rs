//! The reader over made-up files, over the wrap of counters, and in a network namespace of its own where datagrams are
//! lost on purpose and counted exactly.

use std::net::UdpSocket;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, setsockopt, socket, sockopt,
};

use super::*;
use crate::tables::{LinkCounters, QueueCounters, SocketDrops, Softnet};
use crate::testing::root;
use crate::{DriverCounter, HostLedger, InterfaceReading, Losses};

const SNMP: &str = "Ip: InReceives InHdrErrors\nIp: 100 2\nUdp: NoPorts InErrors RcvbufErrors\nUdp: 3 9 8\n";
const NETSTAT: &str = "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 50 6\nIpExt: InNoRoutes\nIpExt: 7\n";

#[test]
fn each_file_fills_its_table_and_what_is_not_there_stays_unknown() {
    let proc = root(&[
        ("thread-self/net/snmp", SNMP),
        ("thread-self/net/netstat", NETSTAT),
        ("thread-self/net/softnet_stat", "0000000a 00000001 00000002\n"),
        ("thread-self/net/sockstat", "UDP: inuse 3 mem 13\nFRAG: inuse 0 memory 40\n"),
        ("sys/net/ipv4/udp_mem", "100 200 300\n"),
    ]);
    let mut reader = HostReader::under(proc.path(), []);
    let reading = reader.read();
    assert_eq!(reading.unread, []);
    assert_eq!((reading.ip.in_receives, reading.ip.in_hdr_errors, reading.ip.in_discards), (Some(100), Some(2), None));
    assert_eq!((reading.ip.reverse_path_filter, reading.ip.in_no_routes), (Some(6), Some(7)));
    assert_eq!((reading.udp.in_errors, reading.udp.rcvbuf_errors, reading.udp.mem_errors), (Some(9), Some(8), None));
    assert_eq!((reading.udp6, reading.ip6), Default::default(), "no IPv6 here");
    assert_eq!(reading.conntrack, Default::default(), "nor connection tracking");
    assert_eq!(reading.softnet[&0].dropped, Some(1));
    let memory = reading.memory;
    assert_eq!((memory.udp_pages, memory.udp_pages_max, memory.fragment_bytes), (Some(13), Some(300), Some(40)));
    assert_eq!((memory.udp_sockets, memory.rmem_max), (Some(3), None));
    // The files stay open, and are read from their beginning each time.
    std::fs::write(proc.path().join("thread-self/net/snmp"), "Udp: NoPorts\nUdp: 5\n").expect("written");
    let reading = reader.read();
    assert_eq!((reading.udp.no_ports, reading.udp.in_errors, reading.ip.in_receives), (Some(5), None, None));
}

#[test]
fn a_file_that_every_kernel_has_is_missed_by_its_name() {
    let proc = root(&[("thread-self/net/snmp", SNMP), ("thread-self/net/netstat", NETSTAT)]);
    let mut reader = HostReader::under(proc.path(), []);
    let unread: Vec<&str> = reader.read().unread.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(unread.len(), 2, "{unread:?}");
    assert!(unread[0].ends_with("thread-self/net/softnet_stat is not there"), "{unread:?}");
    assert!(unread[1].ends_with("thread-self/net/sockstat is not there"), "{unread:?}");
}

#[test]
fn a_daemon_counts_from_its_start_and_past_the_wrap_of_a_counter() {
    let line = |dropped: u32| format!("00000001 {dropped:08x} 00000000\n");
    let proc = root(&[
        ("thread-self/net/snmp", SNMP),
        ("thread-self/net/netstat", NETSTAT),
        ("thread-self/net/softnet_stat", &line(u32::MAX - 4)),
        ("thread-self/net/sockstat", ""),
    ]);
    let ledger = HostLedger::over(HostReader::under(proc.path(), []));
    ledger.look([]);
    assert_eq!(ledger.sums().softnet[&0].dropped, Some(0), "what was before is not ours");
    for dropped in [u32::MAX, 10, 10] {
        std::fs::write(proc.path().join("thread-self/net/softnet_stat"), line(dropped)).expect("written");
        ledger.look([]);
    }
    let sums = ledger.sums();
    assert_eq!(sums.softnet[&0].dropped, Some(4 + 11));
    assert_eq!(sums.udp.rcvbuf_errors, Some(0));
    assert_eq!(sums.udp.mem_errors, None, "what the kernel does not tell is not 0");
}

#[test]
fn a_core_or_an_interface_that_comes_back_counts_on() {
    let proc = root(&[("thread-self/net/softnet_stat", "00000005 0 0\n00000007 0 0\n")]);
    let ledger = HostLedger::over(HostReader::under(proc.path(), []));
    ledger.look([]);
    for text in ["00000006 0 0\n", "00000008 0 0\n00000001 0 0\n", "00000008 0 0\n00000004 0 0\n"] {
        std::fs::write(proc.path().join("thread-self/net/softnet_stat"), text).expect("written");
        ledger.look([]);
    }
    let sums = ledger.sums();
    assert_eq!(sums.softnet[&0].processed, Some(3));
    assert_eq!(sums.softnet[&1].processed, Some(3), "counted from when it was seen again");
}

/// Runs in a thread that has a network namespace of its own with nothing but a loopback that is up.
#[allow(clippy::print_stderr)]
fn alone(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                eprintln!("NOT CHECKED: a network namespace: {error}");
                return;
            }
            match Command::new("ip").args(["link", "set", "lo", "up"]).status() {
                Ok(status) if status.success() => test(),
                outcome => eprintln!("NOT CHECKED: ip link set lo up: {outcome:?}"),
            }
        });
        thread.join().expect("the test in its namespace");
    });
}

/// A datagram of UDP from 127.0.0.1 to a port, with a checksum that is wrong.
fn damaged(port: u16) -> Vec<u8> {
    let mut datagram = Vec::new();
    for field in [4000, port, 8 + 4, 0x1234] {
        datagram.extend(field.to_be_bytes());
    }
    datagram.extend(b"text");
    datagram
}

#[test]
fn what_is_lost_on_purpose_is_found_exactly_and_summed_once() {
    alone(|| {
        let listener = UdpSocket::bind("127.0.0.1:5140").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let mut reader = HostReader::new([5140]);
        let before = reader.read().clone();
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let send = |count, to| {
            (0..count).for_each(|_| assert_eq!(sender.send_to(&[7; 100], to).expect("loopback takes it"), 100));
        };
        // More than the buffer holds, and no program reads meanwhile.
        send(3000, "127.0.0.1:5140");
        let mut buffer = [0; 200];
        let queued = std::iter::from_fn(|| listener.recv(&mut buffer).ok()).count() as u64;
        assert!(queued > 0 && queued < 3000, "{queued} fit");
        // No socket has that port.
        send(7, "127.0.0.1:9");
        let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Udp).expect("root");
        for _ in 0..5 {
            let sent = sendto(
                std::os::fd::AsRawFd::as_raw_fd(&raw),
                &damaged(9),
                &SockaddrIn::new(127, 0, 0, 1, 0),
                MsgFlags::empty(),
            );
            assert_eq!(sent.expect("sent"), 12);
        }
        let since = reader.read().since(&before);
        let udp = since.udp;
        assert_eq!(udp.rcvbuf_errors, Some(3000 - queued));
        assert_eq!((udp.no_ports, udp.in_csum_errors, udp.mem_errors), (Some(7), Some(5), Some(0)));
        assert_eq!(udp.in_errors, Some(3000 - queued + 5));
        let sockets = since.sockets.as_ref().expect("sock_diag");
        let drops: Vec<Option<u64>> = sockets.iter().map(|socket| socket.counts.drops).collect();
        assert_eq!(drops, [Some(3000 - queued)], "of the one socket on the port");
        let losses = Losses::of(&since);
        assert_eq!(losses.total, 3000 - queued + 7 + 5, "{losses:?}");
        assert_eq!(losses.unseen, []);
    });
}

#[test]
fn what_other_programs_drop_at_their_sockets_is_never_said_of_ours() {
    alone(|| {
        let full = |address: &str| {
            let socket = UdpSocket::bind(address).expect("a port");
            socket.set_nonblocking(true).expect("a socket");
            // Whatever the host gives others.
            setsockopt(&socket, sockopt::RcvBuf, &65_536).expect("a small buffer");
            socket
        };
        let inode = |socket: &UdpSocket| nix::sys::stat::fstat(socket).expect("a socket").st_ino;
        let (ours, beside, elsewhere) = (full("127.0.0.1:5140"), full("127.0.0.2:5140"), full("127.0.0.1:6000"));
        let ledger = HostLedger::new([5140]);
        ledger.look([inode(&ours)]);
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let dropped = |socket: &UdpSocket, count: u64| {
            let to = socket.local_addr().expect("bound");
            (0..count).for_each(|_| assert_eq!(sender.send_to(&[7; 100], to).expect("loopback takes it"), 100));
            let mut buffer = [0; 200];
            count - std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count() as u64
        };
        let [own, others_on_ports, lost_elsewhere] =
            [(&ours, 2000), (&beside, 3000), (&elsewhere, 4000)].map(|(socket, count)| dropped(socket, count));
        assert!(own > 0 && own < others_on_ports && others_on_ports < lost_elsewhere);
        ledger.look([inode(&ours)]);
        let expected =
            SocketDrops { own: Some(own), others_on_ports: Some(others_on_ports), elsewhere: Some(lost_elsewhere) };
        assert_eq!(ledger.sums().socket_drops, expected);
        drop((beside, elsewhere));
        ledger.look([inode(&ours)]);
        let sums = ledger.sums();
        assert_eq!(sums.socket_drops, expected, "a socket that is closed takes nothing back");
        assert_eq!(sums.lost.total, own + others_on_ports + lost_elsewhere, "each once: {:?}", sums.lost);
    });
}

#[test]
fn a_reader_sees_the_interfaces_of_its_own_namespace_alone() {
    alone(|| {
        let mut reader = HostReader::new([]);
        let names: Vec<String> = reader.read().nic.keys().cloned().collect();
        assert!(names.contains(&"lo".to_owned()) && !names.iter().any(|name| name.starts_with("eth")), "{names:?}");
        let status = Command::new("ip").args(["link", "add", "end0", "type", "veth", "peer", "end1"]).status();
        assert!(status.expect("ip").success());
        let reading = reader.read();
        assert_eq!(reading.nic["end0"].driver, "veth");
        assert_eq!(reading.nic["end0"].link.rx_dropped, Some(0));
        let status = Command::new("ip").args(["link", "set", "end0", "name", "cable"]).status();
        assert!(status.expect("ip").success());
        assert!((0..10).any(|_| reader.read().nic.contains_key("cable")), "a new name is learnt");
        let status = Command::new("ip").args(["link", "del", "cable"]).status();
        assert!(status.expect("ip").success());
        assert!(!reader.read().nic.contains_key("cable"), "what is gone is not read any more");
    });
}

#[test]
fn a_reading_that_fails_once_takes_no_sum_away_and_hides_nothing() {
    let reading = |count: u64| {
        let counts = SocketCounts { drops: Some(count), ..SocketCounts::default() };
        let address = "0.0.0.0:514".parse().expect("an address");
        let socket =
            SocketReading { address, inode: 7, uid: 0, interface: 0, peer: None, v6_only: false, own: false, counts };
        let queues = [(0, QueueCounters { packets: Some(count), ..QueueCounters::default() })].into();
        let link = LinkCounters { rx_packets: Some(count), ..LinkCounters::default() };
        HostReading {
            nic: [("eth0".to_owned(), InterfaceReading { link, queues, ..InterfaceReading::default() })].into(),
            softnet: [(1, Softnet { dropped: Some(count), ..Softnet::default() })].into(),
            udp: Udp { in_errors: Some(count), ..Udp::default() },
            sockets: Some(vec![socket]),
            ..HostReading::default()
        }
    };
    let told = |sums: &HostReading| {
        let eth0 = &sums.nic["eth0"];
        let drops = sums.sockets.as_ref().expect("sockets")[0].counts.drops;
        [eth0.link.rx_packets, eth0.queues[&0].packets, sums.softnet[&1].dropped, sums.udp.in_errors, drops]
    };
    let failed = HostReading { sockets: None, ..HostReading::default() };
    let mut without_queues = reading(20);
    without_queues.nic.get_mut("eth0").expect("eth0").queues.clear();
    let mut before = reading(5);
    let mut sums = before.since(&before);
    for (now, expected) in [(reading(9), 4), (failed, 4), (reading(15), 10)] {
        sums.count_on(&now.since(&before));
        before = now.after(before);
        assert_eq!(told(&sums), [Some(expected); 5]);
    }
    sums.count_on(&without_queues.since(&before));
    assert_eq!(told(&sums), [Some(15), Some(10), Some(15), Some(15), Some(15)]);
}

#[test]
fn a_card_whose_driver_did_not_answer_while_its_queues_changed_hides_nothing_that_was_lost_meanwhile() {
    let reading = |missed: &[u64]| {
        let counter = |(queue, value): (u32, &u64)| DriverCounter {
            name: "pkts rx OOB".to_owned(),
            queue: Some(queue),
            value: Some(*value),
        };
        let driver_counters: Vec<DriverCounter> = (0..).zip(missed).map(counter).collect();
        let rx_missed_errors = crate::nic::missed("vmxnet3", &driver_counters).expect("of this driver");
        let link = LinkCounters { rx_packets: Some(0), rx_missed_errors, ..LinkCounters::default() };
        let card = InterfaceReading {
            index: 2,
            driver: "vmxnet3".to_owned(),
            link,
            driver_counters,
            ..InterfaceReading::default()
        };
        HostReading { nic: [("eth0".to_owned(), card)].into(), ..HostReading::default() }
    };
    let mut before = reading(&[100, 70]);
    let mut sums = before.since(&before);
    let missed = |sums: &HostReading| sums.nic["eth0"].link.rx_missed_errors;
    for (now, expected) in [
        (reading(&[104, 70]), 4),
        (reading(&[]), 4),
        (reading(&[]), 4),
        (reading(&[110]), 10),
        (reading(&[110, 5]), 15),
        (reading(&[3, 2]), 20),
    ] {
        sums.count_on(&now.since(&before));
        before = now.after(before);
        assert_eq!(missed(&sums), Some(expected));
    }
}

#[test]
fn a_counter_that_is_read_a_little_too_low_once_is_not_booked_again() {
    let received = &LinkCounters::COUNTERS[0];
    assert_eq!((received.name, received.bits), ("rx_packets", 64));
    let life = 1 << 40;
    assert_eq!(received.difference(life, life - 3), 0, "a step back");
    assert_eq!(received.difference(life, 12), 12, "begun anew");
    assert_eq!(received.difference((1 << 32) - 5, 10), 15, "wrapped at 32 bits");
}

#[test]
fn sockets_on_other_ports_are_not_known_where_one_is_silent_or_too_many_have_dropped_something() {
    assert_eq!(untold(false, SOCKETS_ELSEWHERE_MAX), None);
    assert!(untold(false, SOCKETS_ELSEWHERE_MAX + 1).is_some_and(|why| why.contains("more than 4096")));
    assert!(untold(true, 0).is_some_and(|why| why.contains("this kernel")));
}

#[test]
fn sockets_that_have_dropped_nothing_take_no_place_among_those_that_are_told_apart() {
    alone(|| {
        let _idle: Vec<UdpSocket> = (0..20).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
        let mut reader = HostReader::new([5140]);
        assert_eq!(reader.read().elsewhere, Some(vec![]), "of 20 idle ones");
    });
}
