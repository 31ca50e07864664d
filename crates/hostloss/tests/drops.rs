//! The kernel's own names for its drops, compared with what its counters say. Needs `CAP_PERFMON` and a tracefs that
//! may be read; says so and passes where there is none. `tests/rigs/drop_reasons.sh` runs this with both.
#![cfg(not(miri))] // system calls throughout

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait};
use udpd_hostloss::drops::{BlindSpot, DropTally, Tracepoints, Watch};

/// Nothing on loopback takes this long.
const DEADLINE: Duration = Duration::from_secs(20);

fn loopback(family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([127, 0, 0, 1], 0)),
        Family::V6 => "[::1]:0".parse().expect("valid"),
    }
}

/// A socket bound to a free port of loopback, after `prepare` has set its options.
fn bound(family: Family, prepare: impl FnOnce(&Socket)) -> (Socket, SocketAddr) {
    let socket = Socket::new(family).expect("a socket");
    prepare(&socket);
    socket.bind(loopback(family)).expect("loopback has free ports");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

/// A watch sees the drops of the whole host, so the tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A watch, or `None` where there can be none, which is said.
#[allow(clippy::print_stderr)]
fn watch() -> Option<Watch> {
    match Tracepoints::read().and_then(|tracepoints| Watch::open(&tracepoints)) {
        Ok(watch) => Some(watch),
        Err(why) => {
            eprintln!("not tested: the names of drops, because {why}");
            None
        }
    }
}

/// A socket whose buffer holds a few datagrams.
fn narrow(family: Family) -> (Socket, SocketAddr) {
    bound(family, |socket| {
        socket.set_receive_buffer(4096).expect("a small buffer");
    })
}

/// Sends so many datagrams, and says how many of them the socket has dropped when none is on its way any more.
fn send_and_count_drops(socket: &Socket, to: SocketAddr, count: u32) -> u64 {
    let sender = UdpSocket::bind(loopback(if to.is_ipv4() { Family::V4 } else { Family::V6 })).expect("a free port");
    let before = socket.memory_info().expect("its counters").drops;
    for _ in 0..count {
        sender.send_to(&[7; 100], to).expect("sent");
    }
    let mut batch = RecvBatch::new(&BatchShape::new(64, 2048)).expect("memory for a batch");
    let (began, mut received) = (Instant::now(), 0);
    loop {
        received += u32::try_from(batch.receive(socket, Wait::No).expect("receive")).expect("few");
        let dropped = socket.memory_info().expect("its counters").drops.wrapping_sub(before);
        if received + dropped == count {
            return dropped.into();
        }
        assert!(began.elapsed() < DEADLINE, "{received} received and {dropped} dropped of {count}");
    }
}

/// Reads until `enough` says so of the tally: the kernel writes a record just after it has counted.
fn read_until(watch: &mut Watch, enough: impl Fn(&DropTally) -> bool) -> DropTally {
    let began = Instant::now();
    loop {
        watch.read().expect("read");
        let tally = watch.tally();
        if enough(&tally) {
            return tally;
        }
        assert!(began.elapsed() < DEADLINE, "never seen: {tally:?}");
    }
}

fn of_port(tally: &DropTally, port: u16) -> u64 {
    let of_port = tally.by_port.iter().filter(|drop| drop.port == port && drop.reason == "SOCKET_RCVBUFF");
    of_port.map(|drop| drop.count).sum()
}

/// Older kernels may tell the ports of IPv4 alone, and the tally then says so.
fn has_port(tally: &DropTally, family: Family) -> bool {
    family == Family::V4 || !tally.unseen.contains(&BlindSpot::PortsOfIpv6)
}

fn of_reason(tally: &DropTally, reason: &str, is_ipv6: bool) -> u64 {
    let of_reason = tally.by_reason.iter().filter(|drop| drop.reason == reason && drop.is_ipv6 == is_ipv6);
    of_reason.map(|drop| drop.count).sum()
}

#[test]
fn a_full_receive_buffer_has_its_name_its_port_and_the_exact_count_of_the_socket() {
    let _turn = turn();
    for family in [Family::V4, Family::V6] {
        // What others on this machine drop may overrun the ring; then it is done again.
        loop {
            let Some(mut watch) = watch() else { return };
            let (socket, address) = narrow(family);
            let dropped = send_and_count_drops(&socket, address, 300);
            assert!(dropped > 100, "the buffer is no small one: {dropped}");
            let tally = read_until(&mut watch, |tally| {
                let named = of_reason(tally, "SOCKET_RCVBUFF", family == Family::V6);
                let has_port = has_port(tally, family);
                (!has_port || of_port(tally, address.port()) + tally.lost_ports >= dropped)
                    && named + tally.lost_reasons >= dropped
            });
            if !has_port(&tally, family) {
                break;
            }
            if (tally.lost_ports, tally.lost_reasons) == (0, 0) {
                assert_eq!(of_port(&tally, address.port()), dropped);
                break;
            }
        }
    }
}

#[test]
fn a_port_without_a_listener_has_its_name() {
    let _turn = turn();
    for (family, is_ipv6) in [(Family::V4, false), (Family::V6, true)] {
        let Some(mut watch) = watch() else { return };
        let (socket, closed) = bound(family, |_| {});
        drop(socket);
        let sender = UdpSocket::bind(loopback(family)).expect("a free port");
        for _ in 0..50 {
            sender.send_to(b"to a closed port", closed).expect("sent");
        }
        // Others on this machine may send to closed ports at the same time.
        read_until(&mut watch, |tally| of_reason(tally, "NO_SOCKET", is_ipv6) >= 50);
    }
}

#[test]
fn what_is_left_in_a_socket_that_is_closed_is_seen_without_a_reason() {
    let _turn = turn();
    let Some(mut watch) = watch() else { return };
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = UdpSocket::bind(loopback(Family::V4)).expect("a free port");
    for _ in 0..50 {
        sender.send_to(b"never read", address).expect("sent");
    }
    assert!(socket.wait_readable(DEADLINE).expect("poll"));
    drop(socket);
    // Kernels differ in whether they give a reason.
    read_until(&mut watch, |tally| tally.unnamed.unwrap_or(0) + of_reason(tally, "QUEUE_PURGE", false) >= 50);
}

#[test]
fn a_burst_that_overruns_the_rings_is_counted_to_the_last_one_and_what_follows_is_named_again() {
    let _turn = turn();
    stay_on_one_core();
    let began = Instant::now();
    // What others on this machine drop may overrun the rings as well; then it is done again.
    loop {
        assert!(began.elapsed() < DEADLINE, "the others never rest");
        let Some(mut watch) = watch() else { return };
        let (socket, address) = narrow(Family::V4);
        let dropped = send_and_count_drops(&socket, address, 20_000);
        let tally = read_until(&mut watch, |tally| of_port(tally, address.port()) + tally.lost_ports >= dropped);
        let (named, lost) = (of_port(&tally, address.port()), tally.lost_ports);
        assert!(named < dropped, "all of {dropped} have a name, and the rings were not overrun");
        let more = send_and_count_drops(&socket, address, 300);
        let tally = read_until(&mut watch, |tally| {
            of_port(tally, address.port()) + tally.lost_ports.saturating_sub(lost) >= named + more
        });
        if named > 500 && tally.lost_ports == lost {
            assert_eq!(of_port(&tally, address.port()), named + more);
            break;
        }
    }
}

/// Keeps this thread on the first core that it may run on: each core has a ring of its own.
fn stay_on_one_core() {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list");
    let first = allowed.trim().split(['-', ',']).next().expect("at least one").to_owned();
    let thread = std::fs::read_link("/proc/thread-self").expect("procfs");
    let thread = thread.file_name().expect("its id");
    let output = std::process::Command::new("taskset").args(["-c", "-p", &first]).arg(thread).output();
    let output = output.expect("taskset (util-linux) is needed by this test");
    assert!(output.status.success(), "{output:?}");
}
