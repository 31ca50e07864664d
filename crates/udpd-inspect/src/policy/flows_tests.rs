//! The table of flows against a model, and what a listener shows of datagrams with and without headers.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use mmsg::proxy::Prefix;
use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait};
use seeds::Chance;

use super::*;
use crate::policy::{Proxies, ProxyProtocol, Unwrapper};
use udpd_base::ledger::LaneTally;

fn client(number: u64) -> SocketAddr {
    match number % 2 {
        0 => (Ipv4Addr::from_bits(0x0a00_0000 + number as u32), 1000).into(),
        _ => (Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(number)), 1000).into(),
    }
}

#[test]
fn a_flow_has_the_sender_that_its_last_header_names_until_it_is_silent_for_long() {
    // So many places that two hundred flows never want five of one hash.
    let mut table = FlowTable::new(FLOWS);
    let mut model: HashMap<(u16, u32), (SocketAddr, u32)> = HashMap::new();
    let mut chance = Chance::new(1);
    let proxy = |port: u16| SocketAddr::from(([10, 0, 0, 5], port));
    let (mut now_s, mut changes, mut known) = (1, 0, 0);
    for _ in 0..100_000 {
        now_s += u32::from(chance.happens(1, 20)) * chance.below(20) as u32;
        let (port, to) = (chance.below(100) as u16, chance.below(2) as u32);
        let is_used = |(_, used_s): &&(SocketAddr, u32)| now_s - used_s < IDLE_S;
        let before = model.get(&(port, to)).filter(is_used).map(|(sender, _)| *sender);
        if chance.happens(1, 4) {
            let sender = client(chance.below(50));
            let expected = before.is_some_and(|before| before != sender);
            changes += u32::from(expected);
            let named = if expected { Named::Changes } else { Named::Known };
            assert_eq!(table.name(proxy(port), to, sender, now_s), named);
            model.insert((port, to), (sender, now_s));
        } else {
            assert_eq!(table.sender(proxy(port), to, now_s), before, "{port} at {now_s}");
            if let Some(flow) = model.get_mut(&(port, to)).filter(|_| before.is_some()) {
                flow.1 = now_s;
                known += 1;
            }
        }
    }
    assert!(changes > 1000 && known > 10_000, "{changes} changes, {known} known");
}

#[test]
fn more_flows_than_there_are_places_evict_those_that_are_silent_for_longest_and_each_is_counted() {
    let mut table = FlowTable::new(1 << 8);
    let proxy = |port: u16| SocketAddr::from(([10, 0, 0, 5], port));
    let name = |table: &mut FlowTable, port, now_s| table.name(proxy(port), 0, client(port.into()), now_s);
    let evicted = (1..=1000).filter(|&port| name(&mut table, port, port.into()) == Named::Evicts).count();
    // All within the time of the others: what has no place has been evicted.
    let places = (1..=1000).filter(|&port| table.sender(proxy(port), 0, 299).is_some()).count();
    let idle = (1..=1000_u16).filter(|port| u32::from(*port) + IDLE_S <= 1000).count();
    assert!(places > 0 && evicted + places >= 1000 - idle && evicted < 1000, "{evicted} {places}");
    let mut full = FlowTable::new(WAYS);
    assert_eq!([1, 2, 3, 4].map(|port| name(&mut full, port, port.into())), [Named::Known; 4]);
    assert_eq!(full.sender(proxy(1), 0, 5), Some(client(1)));
    assert_eq!(name(&mut full, 5, 6), Named::Evicts);
    assert_eq!([1, 2, 3, 4, 5].map(|port| full.sender(proxy(port), 0, 7).is_some()), [true, false, true, true, true]);
    // The place of one that is silent for long is free.
    assert_eq!(name(&mut full, 6, 7 + IDLE_S), Named::Known);
}

/// Sends these from a port of 127.0.0.1 and one of 127.0.0.2, by turns; returns senders and payloads as they are shown.
struct Site {
    receiver: Socket,
    senders: [UdpSocket; 2],
    batch: RecvBatch,
    unwrapper: Unwrapper,
    tally: LaneTally,
}

impl Site {
    fn new(listener: &str) -> Self {
        let receiver = Socket::new(Family::V4).expect("a socket");
        receiver.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let senders = [1, 2].map(|host| UdpSocket::bind((Ipv4Addr::new(127, 0, 0, host), 0)).expect("a port"));
        let batch = RecvBatch::new(&BatchShape::new(64, 2048)).expect("memory");
        let from = vec!["127.0.0.1/32".parse().expect("a network")];
        let proxies = Proxies { protocol: ProxyProtocol::V2First, from };
        let unwrapper = Unwrapper::new(listener, &proxies).expect("one").at(client(0));
        Self { receiver, senders, batch, unwrapper, tally: LaneTally::default() }
    }

    fn shown(&mut self, datagrams: &[(usize, Vec<u8>)]) -> Vec<(SocketAddr, Vec<u8>)> {
        self.batch.clear();
        for (from, datagram) in datagrams {
            let to = self.receiver.local_addr().expect("bound");
            self.senders[*from].send_to(datagram, to).expect("sent to this host");
            self.batch.receive_more(&self.receiver, Wait::Block).expect("received");
        }
        self.unwrapper.apply(&mut self.batch, &mut self.tally);
        self.batch.datagrams().filter_map(|one| Some((one.source()?, one.payload().to_vec()))).collect()
    }
}

fn with_header(sender: SocketAddr, payload: &[u8]) -> Vec<u8> {
    [Prefix::new(sender, "192.0.2.1:514".parse().expect("an address")).as_bytes(), payload].concat()
}

#[test]
fn datagrams_without_a_header_are_of_the_sender_that_the_first_of_their_flow_names() {
    let mut site = Site::new("flows");
    let plain = |payload: &[u8]| (0, payload.to_vec());
    assert_eq!(site.shown(&[plain(b"too early")]), []);
    assert_eq!(site.tally.dropped.proxy_missing, 1);
    let first = [(0, with_header(client(1), b"a")), plain(b"b"), plain(b""), (1, b"direct".to_vec())];
    let direct = (site.senders[1].local_addr().expect("bound"), b"direct".to_vec());
    let of = |sender, payload: &[u8]| (sender, payload.to_vec());
    assert_eq!(site.shown(&first), [of(client(1), b"a"), of(client(1), b"b"), of(client(1), b""), direct]);
    assert_eq!(site.shown(&[plain(b"c")]), [of(client(1), b"c")]);
    let second = [(0, with_header(client(2), b"d")), plain(b"e")];
    assert_eq!(site.shown(&second), [of(client(2), b"d"), of(client(2), b"e")]);
    // A header from elsewhere than a proxy, or a damaged one, says nothing of a sender.
    let damaged = with_header(client(3), b"")[..20].to_vec();
    assert_eq!(site.shown(&[(1, with_header(client(3), b"forged")), (0, damaged), plain(b"f")]), [of(client(2), b"f")]);
    let LaneTally { dropped, proxy_flows_changed, proxy_flows_evicted, .. } = site.tally;
    assert_eq!((dropped.proxy_missing, dropped.proxy_malformed, dropped.proxy_untrusted), (1, 1, 1));
    assert_eq!((proxy_flows_changed, proxy_flows_evicted), (1, 0));
    // A header that names no sender: the proxy speaks for itself from then on.
    let mut local = with_header(client(4), b"probe");
    local[12] = 0x20;
    let proxy = site.senders[0].local_addr().expect("bound");
    assert_eq!(site.shown(&[(0, local), plain(b"g")]), [of(proxy, b"probe"), of(proxy, b"g")]);
}

#[test]
fn lanes_and_reloads_of_a_listener_share_its_flows_and_other_listeners_and_addresses_do_not() {
    let mut site = Site::new("shared");
    site.shown(&[(0, with_header(client(1), b"a"))]);
    let proxies = Proxies { protocol: ProxyProtocol::V2First, from: vec!["127.0.0.0/8".parse().expect("a network")] };
    let mut next = |listener: &str, to: SocketAddr| {
        site.unwrapper = Unwrapper::new(listener, &proxies).expect("one").at(to);
        site.shown(&[(0, b"b".to_vec())]).first().map(|(sender, _)| *sender)
    };
    // Before anything else holds the table of "shared", which would end with the first.
    let kept = Unwrapper::new("shared", &proxies);
    assert_eq!(next("shared", client(0)), Some(client(1)));
    assert_eq!(next("shared", client(2)), None);
    assert_eq!(next("other", client(0)), None);
    drop(kept);
    assert_eq!(next("shared", client(0)), None, "nothing holds what nothing uses");
}
