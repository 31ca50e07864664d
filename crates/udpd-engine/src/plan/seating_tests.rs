//! Lanes on made-up machines: where they sit, and that none shares a core while another is free.

use steer::plan::{DedicatedQueue, Dedication, QueueSeat, SpareSeat};

use super::*;
use crate::config::HostView;
use crate::plan::interfaces::receivers;
use crate::plan::remarks;

/// A plan for one interface: for each queue its interrupt and its receiver, and the cores of receivers beyond them.
fn part(name: &str, queues: &[(usize, usize)], spare: &[usize]) -> InterfacePlan {
    let rps: Vec<usize> = match spare {
        [] => Vec::new(),
        spare => queues.iter().map(|(_, receiver)| *receiver).chain(spare.iter().copied()).collect(),
    };
    let seat = |(queue, &(interrupt, receiver)): (usize, &(usize, usize))| QueueSeat {
        queue,
        receiver: queue,
        interrupt_core: Some(interrupt),
        receiver_core: receiver,
        receiver_cores: vec![receiver],
        rps_cores: rps.clone(),
        node: Some(0),
        why: String::new(),
    };
    let spare_seat = |(place, &core): (usize, &usize)| SpareSeat {
        receiver: queues.len() + place,
        core,
        cores: vec![core],
        is_fed_by_rps: true,
        node: Some(0),
        why: String::new(),
    };
    InterfacePlan {
        name: name.to_owned(),
        driver: "?".to_owned(),
        node: Some(0),
        seats: queues.iter().enumerate().map(seat).collect(),
        spare_seats: spare.iter().enumerate().map(spare_seat).collect(),
        dedicated: Vec::new(),
        wanted: Vec::new(),
        notes: Vec::new(),
        busiest_share_thousandths: 0,
    }
}

fn steered(parts: Vec<InterfacePlan>) -> Interfaces {
    let queues = parts.iter().map(|part| (part.name.clone(), part.seats.len())).collect();
    Interfaces { steered: parts, queues, ..Interfaces::default() }
}

/// Listeners with these keys on a host where every interface is called lo.
fn config(listeners: &[&str]) -> Config {
    let listener = |(number, keys): (usize, &&str)| {
        format!(
            "[[listener]]\nname = \"l{number}\"\naddress = \"127.0.0.1:{}\"\nsinks = [\"x\"]\n{keys}\n",
            5000 + number
        )
    };
    let listeners: String = listeners.iter().enumerate().map(listener).collect();
    let text = format!("{listeners}[sink.x]\ntype = \"null\"\n");
    let mut config = Config::parse(&text, "test", &HostView::default()).unwrap_or_else(|problems| panic!("{problems}"));
    // The test's host has no such card.
    for listener in config.listeners.iter_mut().filter(|listener| listener.interface.is_some()) {
        listener.interface = Some("eth0".to_owned());
    }
    config
}

/// `cores` cores, as many as that on each node.
fn machine(cores: usize, of_node: usize) -> Topology {
    let node_of_core = (0..cores).map(|core| (core, core / of_node)).collect();
    Topology { online: (0..cores).collect(), node_of_core, ..Topology::default() }
}

struct Seated {
    /// By listener, the core of each lane.
    cores: Vec<Vec<usize>>,
    expected: Vec<Vec<Vec<usize>>>,
    consumer_cores: Vec<usize>,
    shared: bool,
}

fn seat_on(topology: &Topology, interfaces: &Interfaces, listeners: &[&str]) -> Seated {
    seat_config(topology, interfaces, &config(listeners))
}

fn seat_config(topology: &Topology, interfaces: &Interfaces, config: &Config) -> Seated {
    let input = PlacementInput { topology, allowed: &topology.online, interfaces };
    let seating = seat(config, &input.feeders(config), &input);
    let cores = |places: &Vec<LanePlacement>| places.iter().map(|place| place.seat.expect("a seat").core).collect();
    let expected = |(listener, places): (&ListenerConfig, &Vec<LanePlacement>)| {
        intakes(listener, places, &input).into_iter().map(|intake| intake.expected).collect()
    };
    Seated {
        cores: seating.lanes.iter().map(cores).collect(),
        expected: config.listeners.iter().zip(&seating.lanes).map(expected).collect(),
        consumer_cores: seating.consumer_cores,
        shared: seating.shared,
    }
}

#[test]
fn lanes_beyond_the_queues_have_cores_of_their_own_and_expect_rps_to_feed_them() {
    let interfaces = steered(vec![part("eth0", &[(0, 1)], &[2, 3])]);
    let seated = seat_on(&machine(4, 4), &interfaces, &["interface = \"lo\"\nlanes = 3\nspread = \"cpu\""]);
    assert_eq!(seated.cores, [[1, 2, 3]]);
    assert_eq!(seated.expected, [[[1], [2], [3]]]);
    assert!(!seated.shared);
    let seated = seat_on(&machine(4, 4), &interfaces, &["interface = \"lo\"\nlanes = 1\nspread = \"queue\""]);
    assert_eq!(seated.expected, [[[1, 2, 3]]], "the queue's datagrams arrive wherever RPS brings them");
}

#[test]
fn a_lane_past_the_stack_sits_on_the_seat_of_its_queue_and_those_of_addresses_beside_them() {
    let mut plan = part("eth0", &[(0, 1), (2, 3), (4, 5)], &[]);
    // The numbers of receivers say nothing here: a queue has one engine.
    (plan.seats[0].receiver, plan.seats[2].receiver) = (2, 0);
    plan.dedicated = vec![DedicatedQueue { dedication: 0, queue: 1 }];
    let seated = seat_on(&machine(8, 8), &steered(vec![plan]), &["interface = \"lo\"\nengine = \"af_xdp\""]);
    assert_eq!(seated.cores, [[1, 1, 3, 5]], "one for the address, and one for each queue");
    assert!(!seated.shared);
    assert_eq!(seated.consumer_cores, [6, 7]);
}

#[test]
fn fewer_lanes_than_queues_expect_the_cores_of_all_that_they_take() {
    let interfaces = steered(vec![part("eth0", &[(0, 4), (1, 5), (2, 4), (3, 5)], &[])]);
    for spread in ["cpu", "queue"] {
        let keys = format!("interface = \"lo\"\nlanes = 2\nspread = \"{spread}\"");
        let seated = seat_on(&machine(8, 8), &interfaces, &[&keys]);
        assert_eq!(seated.cores, [[4, 5]], "{spread}");
        assert_eq!(seated.expected, [[[0, 2], [1, 3]]], "{spread}");
    }
}

#[test]
fn listeners_of_one_interface_share_its_queues_and_their_seats() {
    let interfaces = steered(vec![part("eth0", &[(0, 1), (2, 3)], &[])]);
    let keys = "interface = \"lo\"\nlanes = 2\nspread = \"queue\"";
    let seated = seat_on(&machine(8, 8), &interfaces, &[keys, keys, "lanes = 2"]);
    assert_eq!(seated.cores, [[1, 3], [1, 3], [7, 6]]);
    assert!(seated.shared, "and that is said");
    assert_eq!(seated.expected[0], [[0], [2]]);
    assert_eq!(seated.expected[1], seated.expected[0]);
    assert_eq!(seated.consumer_cores, [4, 5], "neither where a receiver sits nor where an interrupt fires");
}

#[test]
fn with_more_queues_than_cores_there_is_a_lane_for_each_core_and_no_more() {
    let mut interfaces = steered(vec![part("eth0", &[(0, 0), (1, 1), (0, 0), (1, 1)], &[])]);
    interfaces.queues.insert("eth0".to_owned(), 4);
    let seated = seat_on(&machine(2, 2), &interfaces, &["interface = \"lo\"\nspread = \"queue\""]);
    assert_eq!(seated.cores, [[0, 1]]);
    assert_eq!(seated.expected, [[[0], [1]]]);
}

#[test]
fn lanes_follow_the_queues_that_the_card_is_to_have_and_not_those_before_it_is_steered() {
    use steer::plan::Amount;
    let wanted = |rx_queues| {
        let mut config = config(&["interface = \"lo\"\nspread = \"queue\""]);
        config.steer.interfaces = vec!["eth0".to_owned()];
        config.steer.request.rx_queues = rx_queues;
        let feeders = LaneFeeds::new(&config.listeners, &config.steer, |_| Some(4), Some(8));
        (feeders.lanes(0), receivers(&feeders, &config.steer, &[("eth0".to_owned(), 4)].into()).get("eth0").copied())
    };
    assert_eq!(wanted(Amount::Keep), (4, Some(4)));
    assert_eq!(wanted(Amount::Number(2)), (2, Some(2)));
    assert_eq!(wanted(Amount::Max), (4, None), "as many as there will be queues, and only the driver knows");
}

/// The same, and the first of these listeners has a receive queue of its own on eth0, which is steered.
fn config_with_own_queue(listeners: &[&str]) -> Config {
    let mut config = config(listeners);
    config.steer.interfaces = vec!["eth0".to_owned()];
    config.steer.dedicated_queues = vec![("l0".to_owned(), 1)];
    let interface = config.listeners[0].interface.clone();
    config.steer.request.dedicated = vec![Dedication { interface, destinations: Vec::new(), queues: 1 }];
    config
}

#[test]
fn a_listener_with_a_receive_queue_of_its_own_sits_there_alone() {
    let mut eth0 = part("eth0", &[(0, 1), (2, 3), (4, 5), (6, 7)], &[]);
    eth0.dedicated = vec![DedicatedQueue { queue: 3, dedication: 0 }];
    let interfaces = steered(vec![eth0]);
    let others = ["interface = \"lo\"\nspread = \"queue\"", "interface = \"lo\"\nspread = \"cpu\"", "lanes = 1"];
    for first in ["interface = \"lo\"\nspread = \"queue\"", "interface = \"lo\"\nspread = \"cpu\"", ""] {
        let config = config_with_own_queue(&[&[first], &others[..]].concat());
        let seated = seat_config(&machine(9, 9), &interfaces, &config);
        assert_eq!(seated.cores, [vec![7], vec![1, 3, 5], vec![1, 3, 5], vec![8]], "{first:?}");
        assert_eq!(seated.expected[1], [[0], [2], [4]]);
    }
    let config = config_with_own_queue(&["interface = \"lo\"\nspread = \"queue\"", others[0]]);
    let input = PlacementInput { topology: &machine(9, 9), allowed: &[0], interfaces: &interfaces };
    let wanted = receivers(
        &LaneFeeds::new(&config.listeners, &config.steer, |_| Some(4), None),
        &config.steer,
        &input.interfaces.queues,
    );
    assert_eq!(
        wanted,
        [("eth0".to_owned(), 4)].into(),
        "three lanes of the other, and a seat for the queue that is kept"
    );
}

#[test]
fn where_the_card_keeps_no_queue_its_listener_sits_where_all_datagrams_arrive() {
    let interfaces = steered(vec![part("eth0", &[(0, 1), (2, 3)], &[])]);
    let config = config_with_own_queue(&["interface = \"lo\"\nspread = \"queue\""]);
    let seated = seat_config(&machine(4, 4), &interfaces, &config);
    assert_eq!((seated.cores, seated.expected), (vec![vec![1]], vec![vec![vec![0, 2]]]));
}

#[test]
fn lanes_beyond_the_queues_have_cores_of_their_own_also_where_a_queue_is_kept() {
    let mut eth0 = part("eth0", &[(0, 1), (2, 3), (4, 5), (6, 7)], &[8, 9]);
    eth0.dedicated = vec![DedicatedQueue { queue: 3, dedication: 0 }];
    let interfaces = steered(vec![eth0]);
    let keys = ["interface = \"lo\"\nspread = \"queue\"", "interface = \"lo\"\nlanes = 5\nspread = \"flow\""];
    let config = config_with_own_queue(&keys);
    let topology = machine(12, 12);
    let seated = seat_config(&topology, &interfaces, &config);
    assert_eq!((seated.cores, seated.shared), (vec![vec![7], vec![1, 3, 5, 8, 9]], false));
    let input = PlacementInput { topology: &topology, allowed: &topology.online, interfaces: &interfaces };
    let seating = seat(&config, &input.feeders(&config), &input);
    let own = intakes(&config.listeners[0], &seating.lanes[0], &input);
    assert_eq!(own[0].queue, Some(3), "the queue that is its own, not that of its number");
}

#[test]
fn a_kept_queue_between_the_others_takes_no_lane_from_them() {
    let mut eth0 = part("eth0", &[(0, 1), (2, 3), (4, 5), (6, 7)], &[]);
    eth0.dedicated = vec![DedicatedQueue { queue: 1, dedication: 0 }];
    let interfaces = steered(vec![eth0]);
    let by_queue = "interface = \"lo\"\nspread = \"queue\"";
    let config = config_with_own_queue(&[by_queue, by_queue]);
    let topology = machine(9, 9);
    let seated = seat_config(&topology, &interfaces, &config);
    assert_eq!(seated.cores, [vec![3], vec![1, 5, 7]]);
    assert_eq!(seated.expected, [vec![vec![2]], vec![vec![0], vec![4], vec![6]]]);
    let input = PlacementInput { topology: &topology, allowed: &topology.online, interfaces: &interfaces };
    let seating = seat(&config, &input.feeders(&config), &input);
    let intakes = intakes(&config.listeners[1], &seating.lanes[1], &input);
    let taken: Vec<(Option<usize>, &[u32])> = intakes.iter().map(|lane| (lane.queue, lane.queues.as_slice())).collect();
    let program = "each its own queue, and the kept one, which brings them nothing, in its turn";
    assert_eq!(taken, [(Some(0), &[0][..]), (Some(2), &[1, 2]), (Some(3), &[3])], "{program}");
}

#[test]
fn what_is_said_of_lanes_tells_kept_queues_from_cores() {
    let keys = ["interface = \"lo\"\nspread = \"queue\"", "interface = \"lo\"\nspread = \"queue\""];
    let config = config_with_own_queue(&keys);
    let mut eth0 = part("eth0", &[(0, 1), (2, 3), (4, 5), (6, 7)], &[]);
    let topology = machine(8, 8);
    let said = |eth0: &InterfacePlan, allowed: &[usize]| {
        let interfaces = steered(vec![eth0.clone()]);
        let input = PlacementInput { topology: &topology, allowed, interfaces: &interfaces };
        [remarks::lanes_of_cores(&config, &input), remarks::queues_not_kept(&config, &input)].concat()
    };
    let not_kept = "interface eth0 keeps no receive queue: listener l0 has one lane for what arrives on all queues; \
                    write lanes = 4 for it, or take it out of [steer] dedicated_queues";
    assert_eq!(said(&eth0, &topology.online), [not_kept]);
    eth0.dedicated = vec![DedicatedQueue { queue: 3, dedication: 0 }];
    assert_eq!(said(&eth0, &topology.online), [""; 0]);
    let few = "listener l1: eth0 has 3 receive queues beside 1 kept for others and udpd may use 2 cores, so it gets 2 \
               lanes, and each takes several of the queues";
    assert_eq!(said(&eth0, &[0, 1]), [few]);
}

fn unsteered(node: Option<usize>, fires_on: &[usize]) -> Interfaces {
    let surroundings = Surroundings { node, fires_on: fires_on.to_vec() };
    Interfaces {
        around: [("eth0".to_owned(), surroundings)].into(),
        queues: [("eth0".to_owned(), 1)].into(),
        ..Interfaces::default()
    }
}

#[test]
fn where_no_card_is_steered_lanes_sit_near_it_and_not_on_its_interrupt_and_expect_nothing() {
    let keys = |lanes: usize| format!("interface = \"lo\"\nlanes = {lanes}\nspread = \"cpu\"");
    let cores = |interfaces: &Interfaces, lanes: usize| {
        let seated = seat_on(&machine(8, 4), interfaces, &[&keys(lanes)]);
        assert!(seated.expected.concat().iter().all(Vec::is_empty), "{:?}", seated.expected);
        (seated.cores.concat(), seated.shared)
    };
    let near = unsteered(Some(0), &[3]);
    assert_eq!(cores(&near, 1), (vec![2], false));
    assert_eq!(cores(&near, 3), (vec![2, 1, 0], false));
    assert_eq!(cores(&near, 4), (vec![2, 1, 0, 7], false), "another node before the interrupt's core");
    assert_eq!(cores(&near, 8), (vec![2, 1, 0, 7, 6, 5, 4, 3], false));
    assert_eq!(cores(&near, 9), (vec![2, 1, 0, 7, 6, 5, 4, 3, 2], true));
    assert_eq!(cores(&unsteered(None, &[7]), 2), (vec![6, 5], false), "of no node that is known");
}

#[test]
fn the_sibling_thread_of_a_core_in_use_is_the_last_to_be_taken() {
    let physical_of_core = (0..4).map(|core| (core, core % 2)).collect();
    let topology = Topology { physical_of_core, ..machine(4, 4) };
    let seated = seat_on(&topology, &unsteered(Some(0), &[1]), &["interface = \"lo\"\nlanes = 1"]);
    assert!([0, 2].contains(&seated.cores[0][0]), "not core 3, which is core 1's other thread: {:?}", seated.cores);
}

#[test]
fn a_listener_of_no_interface_leaves_the_interrupts_of_steered_ones_alone() {
    let interfaces = steered(vec![part("eth0", &[(3, 2)], &[])]);
    let seated = seat_on(&machine(4, 4), &interfaces, &["lanes = 1"]);
    assert_eq!(seated.cores, [[2]], "no listener is bound to eth0, so the seat of its receiver is free");
    let seated = seat_on(&machine(4, 4), &interfaces, &["lanes = 4"]);
    assert_eq!(seated.cores, [[2, 1, 0, 3]], "the interrupt's core comes last");
    assert!(!seated.shared);
}

#[test]
fn the_cores_of_other_daemons_are_taken_only_when_nothing_else_is_free() {
    let interfaces = Interfaces { taken: vec![3, 1], ..Interfaces::default() };
    let seated = seat_on(&machine(4, 4), &interfaces, &["lanes = 1"]);
    assert_eq!((seated.cores, seated.consumer_cores), (vec![vec![2]], vec![0]));
    let seated = seat_on(&machine(4, 4), &interfaces, &["lanes = 3"]);
    assert_eq!((seated.cores, seated.shared), (vec![vec![2, 0, 3]], false));
}

#[test]
fn every_shape_has_a_seat_for_each_lane_and_shares_none_while_a_core_is_free() {
    for cores in 1..=9 {
        for fires in 0..cores {
            for lanes in 1..=10 {
                let keys = format!("interface = \"lo\"\nlanes = {lanes}\nspread = \"flow\"");
                let interfaces = unsteered(Some(0), &[fires]);
                let seated = seat_on(&machine(cores, 4), &interfaces, &[&keys]);
                let mut own = seated.cores.concat();
                assert_eq!(own.len(), lanes);
                assert!(lanes >= cores || !own.contains(&fires), "{cores} cores, {lanes} lanes: {own:?}");
                own.sort_unstable();
                own.dedup();
                assert_eq!((own.len(), seated.shared), (lanes.min(cores), lanes > cores));
                assert!(!seated.consumer_cores.is_empty());
            }
        }
    }
}
