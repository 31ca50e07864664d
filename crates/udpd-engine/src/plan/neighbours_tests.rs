//! What goes over the socket means the same on both sides.

use steer::Topology;

use super::*;
use udpd_endpoint::control::{LaneSeat, Neighbour, Seats};

fn queue(number: usize, interrupt: Option<usize>, receiver: usize) -> QueueSeat {
    QueueSeat {
        queue: number,
        receiver: number,
        interrupt_core: interrupt,
        receiver_core: receiver,
        receiver_cores: vec![receiver],
        rps_cores: Vec::new(),
        node: Some(0),
        why: "as the running udpd has it".to_owned(),
    }
}

/// A daemon of this network namespace with these seats at interface 7, which it calls eth0.
fn daemon(seats: &[QueueSeat]) -> Neighbours {
    let interface = SteeredInterface {
        name: "eth0".to_owned(),
        index: Some(7),
        is_steered: true,
        queues: seats.len(),
        seats: seats.iter().map(seat).collect(),
        ..SteeredInterface::default()
    };
    let lane = LaneSeat { cpu: Some(9), ..LaneSeat::default() };
    let seats = Seats {
        pid: 1,
        network_namespace: network_namespace(),
        interfaces: vec![interface],
        lanes: vec![lane],
        ..Seats::default()
    };
    Neighbours { daemons: vec![Neighbour { path: "/run/a".into(), seats }], silent: Vec::new() }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn seats_come_back_as_they_were_told() {
    let told = [queue(0, Some(0), 1), queue(1, None, 3)];
    let neighbours = daemon(&told);
    assert_eq!(seated(&names(&["eth0"]), |_| Some(7), &neighbours), [("eth0".to_owned(), told.to_vec())].into());
    assert_eq!(cores(&neighbours), [0, 1, 3, 9]);
}

#[test]
fn a_card_is_known_by_its_number_whatever_it_is_called_now() {
    let neighbours = daemon(&[queue(0, Some(0), 1)]);
    let found = |index| seated(&names(&["lan0", "eth0"]), move |name| (name == "lan0").then_some(index), &neighbours);
    assert_eq!(
        found(7).into_keys().collect::<Vec<_>>(),
        ["eth0", "lan0"],
        "a name without a number is taken at its word"
    );
    assert_eq!(found(8).into_keys().collect::<Vec<_>>(), ["eth0"]);
    assert!(seated(&names(&["eth0"]), |_| Some(8), &neighbours).is_empty(), "another card has that name now");
}

#[test]
fn an_interface_of_another_network_namespace_is_another_one() {
    let mut neighbours = daemon(&[queue(0, Some(0), 1)]);
    neighbours.daemons[0].seats.network_namespace = Some(1);
    assert!(seated(&names(&["eth0"]), |_| Some(7), &neighbours).is_empty());
    assert_eq!(cores(&neighbours), [0, 1, 9], "and its cores are taken all the same");
}

#[test]
fn a_second_daemon_has_receivers_of_its_own_and_leaves_the_interrupts_where_they_are() {
    let part = InterfacePlan {
        name: "eth0".to_owned(),
        driver: "?".to_owned(),
        node: Some(0),
        seats: vec![queue(0, Some(2), 3), queue(1, Some(4), 5)],
        spare_seats: Vec::new(),
        dedicated: Vec::new(),
        wanted: Vec::new(),
        notes: Vec::new(),
        busiest_share_thousandths: 0,
    };
    let host = Host { topology: Topology::default(), interfaces: Vec::new() };
    let merged = merge(&host, &Plan { interfaces: vec![part] }, &daemon(&[queue(0, Some(0), 1)]));
    let cores: Vec<(Option<usize>, usize)> =
        merged["eth0"].iter().map(|seat| (seat.interrupt_core, seat.receiver_core)).collect();
    assert_eq!(cores, [(Some(0), 3), (Some(4), 5)], "of queue 1 the first one tells nothing");
}
