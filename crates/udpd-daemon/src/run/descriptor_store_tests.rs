//! What a service manager keeps when it has room for all sockets, for some, or for none.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::super::manager::Manager;
use super::*;
use udpd_base::os::threads::ThreadRegistry;
use udpd_engine::config::Config;

fn pipeline(lanes: usize) -> Pipeline {
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let text = format!(
        "[daemon]\ncontrol_socket = \"\"\n[[listener]]\nname = \"in\"\naddress = \"{free}\"\nlanes = {lanes}\n\
         sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n"
    );
    let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
    let plan = udpd_engine::plan::make(&config, &Default::default()).expect("a plan");
    Pipeline::start(&config, &plan, Instant::now(), &ThreadRegistry::new().0).expect("started")
}

#[test]
fn all_sockets_are_kept_or_none_and_the_record_only_where_there_is_a_place_for_it() {
    let lanes = ["in.0", "in.1", "in.2"];
    for (limit, kept) in [(4, 4), (3, 3), (2, 0), (0, 0)] {
        let directory = tempfile::tempdir().expect("a directory");
        let manager = Manager::new(directory.path(), limit, limit);
        let mut store = DescriptorStore::new(&manager.notifier(), &InheritedSockets::default(), None, None);
        let pipeline = pipeline(3);
        store.keep(&pipeline);
        store.look(&pipeline);
        let wanted: Vec<&str> = lanes.into_iter().chain([RECORD_NAME]).take(kept).collect();
        assert_eq!(manager.names(), wanted, "room for {limit}");
        let survive: Vec<bool> = pipeline.lanes().iter().map(Lane::socket_survives).collect();
        assert_eq!(survive, [kept > 0; 3], "room for {limit}");
        pipeline.stop(Duration::ZERO, |_| true);
    }
}

#[test]
fn what_is_no_lane_any_more_is_let_go_and_the_record_makes_room_for_a_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = Manager::new(directory.path(), 3, 3);
    let mut store = DescriptorStore::new(&manager.notifier(), &InheritedSockets::default(), None, None);
    let (two, three, four) = (pipeline(2), pipeline(3), pipeline(4));
    store.keep(&two);
    assert_eq!(manager.names(), ["in.0", "in.1", RECORD_NAME]);
    store.keep(&three);
    assert_eq!(manager.names(), ["in.0", "in.1", "in.2"], "sockets come before the record");
    let inodes: Vec<u64> = manager.passed().sockets.sockets().iter().map(|own| own.inode).collect();
    assert_eq!(inodes, three.socket_inodes(), "and they are those of the pipeline that runs");
    store.keep(&four);
    assert_eq!(manager.names(), Vec::<String>::new(), "where not all have room none is promised");
    assert!(!four.lanes().iter().any(Lane::socket_survives));
    [two, three, four].into_iter().for_each(|own| drop(own.stop(Duration::ZERO, |_| true)));
}

#[test]
fn after_a_take_over_the_manager_gives_up_what_no_lane_has_any_more() {
    for (lanes, kept) in [(2, 3), (4, 0)] {
        let directory = tempfile::tempdir().expect("a directory");
        let manager = Manager::new(directory.path(), 3, 3);
        let mut old = DescriptorStore::new(&manager.notifier(), &InheritedSockets::default(), None, None);
        let (three, other) = (pipeline(3), pipeline(lanes));
        old.keep(&three);
        let earlier = ["in.0", "in.1", "in.2"].map(str::to_owned).into_iter().zip(three.socket_inodes()).collect();
        let mut new = DescriptorStore::after(&manager.notifier(), Value::Null, earlier);
        new.keep(&other);
        let inodes: Vec<u64> = manager.passed().sockets.sockets().iter().map(|own| own.inode).collect();
        assert!(!inodes.iter().any(|inode| three.socket_inodes().contains(inode)), "{lanes} lanes");
        assert_eq!(inodes.len(), kept.min(lanes), "{lanes} lanes");
        [three, other].into_iter().for_each(|own| drop(own.stop(Duration::ZERO, |_| true)));
    }
}

#[test]
fn after_a_take_over_no_record_of_the_old_process_takes_the_place_of_a_socket() {
    for (lanes, kept) in [(2, ["in.0", "in.1", RECORD_NAME]), (3, ["in.0", "in.1", "in.2"])] {
        let directory = tempfile::tempdir().expect("a directory");
        let manager = Manager::new(directory.path(), 3, 3);
        let mut old = DescriptorStore::new(&manager.notifier(), &InheritedSockets::default(), None, None);
        let (two, other) = (pipeline(2), pipeline(lanes));
        old.keep(&two);
        let earlier = ["in.0", "in.1"].map(str::to_owned).into_iter().zip(two.socket_inodes()).collect();
        let mut new = DescriptorStore::after(&manager.notifier(), Value::Null, earlier);
        new.keep(&other);
        assert_eq!(manager.names(), kept, "{lanes} lanes");
        let inodes: Vec<u64> = manager.passed().sockets.sockets().iter().map(|own| own.inode).collect();
        assert_eq!(inodes, other.socket_inodes(), "{lanes} lanes");
        [two, other].into_iter().for_each(|own| drop(own.stop(Duration::ZERO, |_| true)));
    }
}
