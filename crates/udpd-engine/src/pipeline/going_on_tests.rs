//! Groups that are received from, when some of what is to join them cannot.

use std::net::UdpSocket;

use mmsg::Family;

use super::super::bind;
use super::super::kept::Claims;
use super::super::setup::LaneSetup;
use super::super::sweep;
use super::*;

/// A configuration of one listener that has two lanes at each of these addresses.
fn setups(addresses: [SocketAddr; 2]) -> (Config, PipelinePlan) {
    let [first, second] = addresses;
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = [\"{first}\", \"{second}\"]\nlanes = 2\nspread = \"random\"\n\
         sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n"
    );
    let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
    let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
    (config, plan)
}

fn made() -> Arc<Socket> {
    Arc::new(Socket::new(Family::V4).expect("a socket"))
}

/// One that is received from, alone at its address.
fn received_from() -> (Arc<Socket>, SocketAddr) {
    let socket = made();
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let address = socket.local_addr().expect("bound");
    (socket, address)
}

/// From as many ports.
fn send(to: SocketAddr, datagrams: usize) {
    for _ in 0..datagrams {
        let sent = UdpSocket::bind("127.0.0.1:0").and_then(|sender| sender.send_to(b"x", to));
        assert_eq!(sent.expect("loopback takes it"), 1);
    }
}

fn waiting(socket: &Socket) -> u64 {
    let mut all = 0;
    sweep::count_out(socket, |datagrams| all += datagrams).expect("readable");
    all
}

#[test]
fn where_one_address_cannot_have_more_lanes_no_other_one_keeps_those_that_it_got() {
    let ((first, first_address), (second, second_address)) = (received_from(), received_from());
    let (config, plan) = setups([first_address, second_address]);
    let setups = LaneSetup::all(&config, &plan);
    let mut claims = Claims::none(&plan);
    claims.of_lanes = vec![Some(Arc::clone(&first)), None, Some(Arc::clone(&second)), None];
    claims.are_in_use = true;
    // What is bound already cannot be bound once more.
    let (joins, (cannot_join, _)) = (made(), received_from());
    let sockets = [Arc::clone(&first), Arc::clone(&joins), Arc::clone(&second), cannot_join];
    let lanes: Vec<(&LaneSetup, Arc<Socket>)> = setups.iter().zip(sockets).collect();
    let refused =
        bind::open(&lanes, lanes.iter().map(|_| None).collect(), &claims).expect_err("the last cannot be bound");
    assert!(refused.message.contains("cannot add to"), "{refused}");
    assert!(joins.is_withdrawn(), "it is out of the group, and nothing comes there");
    send(first_address, 100);
    send(second_address, 100);
    assert_eq!((waiting(&first), waiting(&joins), waiting(&second)), (100, 0, 100));
    assert_eq!(claims.closed.unread(), 0);
}

#[test]
fn what_comes_to_a_socket_before_it_is_taken_back_is_counted() {
    let ((first, address), (_, other)) = (received_from(), received_from());
    let (config, plan) = setups([address, other]);
    let setups = LaneSetup::all(&config, &plan);
    let setups: Vec<&LaneSetup> = setups.iter().collect();
    let mut claims = Claims::none(&plan);
    claims.of_lanes = vec![Some(Arc::clone(&first)), None, None, None];
    let sockets = [Arc::clone(&first), made()];
    let mut group = GoingOn::adopt(&setups[..2], &sockets, &claims).expect("a group of one");
    group.grow().expect("and of two");
    send(address, 200);
    group.take_back(&claims);
    let taken_back = claims.closed.unread();
    assert!(taken_back > 0, "none of 200 went to the second of two");
    assert_eq!(waiting(&first) + taken_back, 200);
    send(address, 50);
    assert_eq!(waiting(&first), 50);
}
