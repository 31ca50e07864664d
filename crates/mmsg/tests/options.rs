//! Options and reuseport programs on live sockets.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use mmsg::{Control, Family, GroupSpread, SendBatch, Socket, Wait};

use crate::common::{DEADLINE, batch, bound_v4, drain, payloads, send, sender, unbound};

#[test]
fn a_buffer_says_what_was_granted() {
    let socket = unbound(Family::V4);
    for set in [Socket::set_receive_buffer, Socket::set_send_buffer] {
        let granted = set(&socket, 100_000).expect("a buffer");
        assert_eq!((granted.asked_bytes, granted.granted_bytes, granted.is_clamped()), (100_000, 200_000, false));
    }
    assert_eq!(socket.memory_info().expect("memory info").receive_buffer_bytes, 200_000);
    let absurd = socket.set_receive_buffer(usize::MAX).expect("clamped, not refused");
    assert!(absurd.is_clamped() && absurd.granted_bytes > 200_000, "{absurd:?}");
}

#[test]
fn options_that_need_nothing_special_are_taken() {
    for family in [Family::V4, Family::V6] {
        let socket = unbound(family);
        for on in [true, false] {
            socket.set_reuse_port(on).expect("SO_REUSEPORT");
            socket.set_packet_info(on).expect("packet info");
            socket.set_timestamps(on).expect("SO_TIMESTAMPNS");
            socket.set_drop_overflow(on).expect("SO_RXQ_OVFL");
        }
        socket.set_gro(false).expect("it is off");
        socket.set_gro(true).expect("UDP_GRO");
        assert!(socket.set_gro(false).is_err(), "trains that are queued could not be told from datagrams");
        socket.set_busy_poll_us(0).expect("SO_BUSY_POLL");
        assert_eq!(socket.incoming_cpu().expect("SO_INCOMING_CPU"), None);
        socket.set_incoming_cpu(1).expect("SO_INCOMING_CPU");
        assert_eq!(socket.incoming_cpu().expect("SO_INCOMING_CPU"), Some(1));
        assert_eq!(socket.incoming_napi_id().expect("SO_INCOMING_NAPI_ID"), 0);
        assert_eq!(socket.family(), family);
    }
}

#[test]
fn a_socket_is_not_handed_on_to_other_programs() {
    let socket = unbound(Family::V4);
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_fd().as_raw_fd())).expect("procfs");
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("always there");
    let flags = libc::c_int::from_str_radix(flags.trim(), 8).expect("octal");
    assert_ne!(flags & libc::O_CLOEXEC, 0, "{flags:o}");
}

#[test]
fn binding_to_a_device_works_by_name_and_nonsense_is_refused_by_name() {
    let socket = unbound(Family::V4);
    socket.bind_to_device("lo").expect("there is always a loopback");
    let error = socket.bind_to_device("a-name-much-too-long").expect_err("refused");
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("a-name-much-too-long"), "{error}");
}

#[test]
fn an_address_in_use_is_the_kernels_own_error() {
    let (_socket, address) = bound_v4();
    let error = unbound(Family::V4).bind(address).expect_err("in use");
    assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
}

#[test]
fn a_joined_group_is_heard_and_a_left_one_is_not() {
    let group = IpAddr::from([239, 255, 77, 1]);
    let socket = unbound(Family::V4);
    socket.bind(SocketAddr::new(group, 0)).expect("a free port");
    let to = socket.local_addr().expect("bound");
    // Bound to loopback, so that the group is reached by it and not by a default route.
    let sender = sender(Family::V4);
    let loopback = interface_index("lo");
    socket.join_multicast(group, loopback, None).expect("joined");
    sender.send_to(b"heard", to).expect("sent, by the interface of its own address");
    assert_eq!(payloads(&socket, 1), [b"heard"]);
    socket.leave_multicast(group, loopback, None).expect("left");
    let again = socket.leave_multicast(group, loopback, None).expect_err("it is left");
    assert_eq!(again.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn a_group_can_be_joined_for_one_source_on_both_families() {
    let loopback = interface_index("lo");
    let cases = [
        (Family::V4, "232.1.2.3", "127.0.0.1"),
        (Family::V6, "ff3e::7", "::1"),
        (Family::V6, "232.1.2.3", "127.0.0.1"),
    ];
    for (family, group, source) in cases {
        let (group, source) = (group.parse().expect("valid"), source.parse().expect("valid"));
        let socket = unbound(family);
        socket.join_multicast(group, loopback, Some(source)).unwrap_or_else(|error| panic!("{group}: {error}"));
        socket.leave_multicast(group, loopback, Some(source)).unwrap_or_else(|error| panic!("{group}: {error}"));
    }
}

#[test]
fn what_is_sent_to_a_group_leaves_by_the_chosen_interface_and_comes_back_only_where_asked_for() {
    let loopback = interface_index("lo");
    // On the IPv6 socket the same three options hold for groups of IPv4. Loopback has no route to groups of IPv6.
    for (family, group) in [(Family::V4, "239.255.77.2"), (Family::V6, "239.255.77.3")] {
        let group: IpAddr = group.parse().expect("valid");
        let receiver = unbound(Family::V4);
        receiver.set_report_hop_limit(true).expect("reported");
        receiver.bind(SocketAddr::new(group, 0)).expect("bound");
        receiver.join_multicast(group, loopback, None).expect("joined");
        let to = SocketAddr::new(group, receiver.local_addr().expect("bound").port());
        let (sender, mut out) = (unbound(family), SendBatch::new(1, 16).expect("memory"));
        sender.set_multicast_interface(loopback).expect("an interface");
        sender.set_multicast_hops(3).expect("hops");
        for (loops, payload) in [(false, b"unheard"), (true, b"hearing")] {
            sender.set_multicast_loop(loops).expect("loop");
            out.push(payload, Some(to)).expect("a free slot");
            out.flush(&sender).expect("sent").all_sent().expect("sent");
        }
        let mut batch = batch(8, 16, Control::new().hop_limit(true));
        assert!(receiver.wait_readable(DEADLINE).expect("polled"), "{group}");
        batch.receive(&receiver, Wait::No).expect("received");
        let heard: Vec<_> = batch.datagrams().map(|one| (one.payload().to_vec(), one.hop_limit())).collect();
        // Loopback brings back what leaves by it, whatever the option says.
        assert_eq!(heard.last(), Some(&(b"hearing".to_vec(), Some(3))), "{family:?} {group}");
        sender.set_multicast_interface(0).expect("as the routes say");
        let absent = sender.set_multicast_interface(u32::MAX >> 1).expect_err("there is no such interface");
        assert!([libc::ENODEV, libc::EADDRNOTAVAIL].contains(&absent.raw_os_error().expect("a number")), "{absent}");
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn a_raw_socket_of_either_family_takes_what_is_set_for_sending() {
    for family in [Family::V4, Family::V6] {
        let socket = match Socket::raw(family) {
            Ok(socket) => socket,
            Err(error) => return eprintln!("NOT CHECKED: raw sockets: {error}"),
        };
        socket.set_hop_limit(3).expect("hops");
        socket.set_traffic_class(8).expect("a class");
        socket.set_multicast_hops(3).expect("hops to a group");
        socket.set_multicast_loop(false).expect("loop");
        socket.set_multicast_interface(interface_index("lo")).expect("an interface");
    }
}

#[test]
fn a_broadcast_address_is_refused_until_it_is_permitted() {
    let socket = unbound(Family::V4);
    let mut out = SendBatch::new(1, 16).expect("memory");
    let to = SocketAddr::from(([127, 255, 255, 255], 9));
    out.push(b"to all", Some(to)).expect("a free slot");
    let refused = out.flush(&socket).expect("not an error of the call").all_sent().expect_err("refused");
    assert_eq!((refused.index, refused.errno), (0, libc::EACCES));
    socket.set_broadcast(true).expect("permitted");
    out.push(b"to all", Some(to)).expect("a free slot");
    out.flush(&socket).expect("sent").all_sent().expect("sent");
}

fn interface_index(name: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).expect("sysfs");
    text.trim().parse().expect("a number")
}

/// A reuseport group of `count` sockets with a program for `members` of them, attached in the order the documentation
/// asks for.
fn group(count: usize, spread: &GroupSpread, members: u32) -> (Vec<Socket>, SocketAddr) {
    let sockets: Vec<Socket> = (0..count)
        .map(|_| {
            let socket = unbound(Family::V4);
            socket.set_reuse_port(true).expect("SO_REUSEPORT");
            socket.set_receive_buffer(1 << 20).expect("a buffer");
            socket
        })
        .collect();
    sockets[0].attach_reuseport(spread, members).expect("a program before the first bind");
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for socket in &sockets {
        socket.bind(address).expect("the group");
        address = socket.local_addr().expect("bound");
    }
    (sockets, address)
}

/// How many datagrams each member has got.
fn counts(sockets: &[Socket]) -> Vec<usize> {
    sockets.iter().map(drain).collect()
}

#[test]
fn random_spreads_one_sender_over_all_sockets() {
    let (sockets, address) = group(4, &GroupSpread::Random, 4);
    send(address, [b"x"; 2000]);
    let counts = counts(&sockets);
    assert_eq!(counts.iter().sum::<usize>(), 2000);
    // 500 expected each, standard deviation 19.4: outside of this only once in 10^20 runs.
    assert!(counts.iter().all(|count| (300..700).contains(count)), "{counts:?}");
}

#[test]
fn without_a_program_one_sender_stays_on_one_socket_and_detaching_returns_to_that() {
    let (sockets, address) = group(4, &GroupSpread::Random, 4);
    sockets[3].attach_reuseport(&GroupSpread::Flow, 4).expect("any member may");
    send(address, [b"x"; 200]);
    let counts = counts(&sockets);
    assert_eq!(counts.iter().copied().max(), Some(200), "{counts:?}");
    assert_eq!(sockets[0].detach_reuseport().expect_err("none left").raw_os_error(), Some(libc::ENOENT));
    sockets[0].attach_reuseport(&GroupSpread::Flow, 4).expect("as it is already");
}

#[test]
fn loopback_records_no_queue_so_the_kernel_chooses_and_nothing_is_lost() {
    let (sockets, address) = group(2, &GroupSpread::Queue(vec![(0, 0), (1, 1)]), 2);
    send(address, [b"x"; 100]);
    let counts = counts(&sockets);
    assert!(counts == [100, 0] || counts == [0, 100], "{counts:?}");
}

#[test]
fn datagrams_go_to_the_socket_of_the_core_they_were_sent_on() {
    // Only a process can be pinned from here without unsafe code, so a pinned copy of this test sends; on loopback the
    // receiving softirq runs on the sender's core.
    if let Ok(address) = std::env::var("MMSG_SEND_TO") {
        send(address.parse().expect("given by the test below"), [b"x"; 50]);
        return;
    }
    let cpus = allowed_cpus();
    let pairs: Vec<(usize, u32)> = cpus.iter().copied().zip(0..).collect();
    let members = u32::try_from(cpus.len() + 1).expect("small");
    let (sockets, address) = group(cpus.len() + 1, &GroupSpread::Cpu(pairs.clone()), members);
    for (cpu, socket) in &pairs {
        let copy = std::env::current_exe().expect("known");
        let output = Command::new("taskset")
            .args(["-c", &cpu.to_string()])
            .arg(copy)
            .args(["--exact", "options::datagrams_go_to_the_socket_of_the_core_they_were_sent_on"])
            .env("MMSG_SEND_TO", address.to_string())
            .output()
            .expect("taskset (util-linux) is needed by this test");
        assert!(output.status.success(), "{output:?}");
        let counts = counts(&sockets);
        let expected: Vec<usize> =
            (0..).take(sockets.len()).map(|index| if index == *socket { 50 } else { 0 }).collect();
        assert_eq!(counts, expected, "sent on core {cpu}");
    }
}

/// The cores this process may run on, from a list such as `0-1,4`.
fn allowed_cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("always there");
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().expect("a number")..=last.parse().expect("a number")
    };
    list.trim().split(',').flat_map(range).collect()
}

#[test]
fn a_program_can_be_replaced_while_the_group_lives() {
    let (sockets, address) = group(2, &GroupSpread::Random, 1);
    send(address, [b"x"; 10]);
    assert_eq!(counts(&sockets), [10, 0], "modulo 1 is always the first");
    sockets[1].attach_reuseport(&GroupSpread::Random, 2).expect("replaced by any member");
    send(address, [b"x"; 200]);
    let counts = counts(&sockets);
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

#[test]
fn a_second_socket_with_a_program_of_its_own_cannot_join() {
    let (_sockets, address) = group(1, &GroupSpread::Random, 1);
    let late = unbound(Family::V4);
    late.set_reuse_port(true).expect("SO_REUSEPORT");
    late.attach_reuseport(&GroupSpread::Random, 1).expect("unbound, so it is taken");
    assert_eq!(late.bind(address).expect_err("refused").kind(), ErrorKind::AddrInUse);
}
