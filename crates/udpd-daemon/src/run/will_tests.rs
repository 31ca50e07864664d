//! What a process says of those before it, however it and they have ended.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use udpd_base::os::threads::ThreadRegistry;
use udpd_engine::config::Config;
use udpd_engine::pipeline::{InheritedSockets, Pipeline};

const HELD: Held = Held { datagrams: 1000, bytes: 64_000 };

fn configuration(port: u16) -> (Config, PipelinePlan) {
    let text = format!(
        "[daemon]\ncontrol_socket = \"\"\n[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:{port}\"\nlanes = 1\n\
         sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n"
    );
    let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
    let plan = udpd_engine::plan::make(&config, &Default::default()).expect("a plan");
    (config, plan)
}

fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

/// A second descriptor of the file, as the service manager has one.
fn kept(will: &Will) -> OwnedFd {
    will.file.as_ref().expect("a file").descriptor().try_clone().expect("a copy").into()
}

fn record_in(kept: &OwnedFd) -> Record {
    RecordFile::open(kept.try_clone().expect("a copy")).expect("a record").1
}

/// The file of a process that was killed while it ran.
fn of_a_killed_one(drops: udpd_engine::pipeline::Drops) -> OwnedFd {
    let mut file = RecordFile::create().expect("a file in memory");
    let (kernel_dropped, dropped) = (Some(30), 40);
    let record =
        Record { pid: 7, held_at_most: HELD, in_flight: 10, drops, kernel_dropped, dropped, ..Record::default() };
    file.write(&record).expect("room");
    file.descriptor().try_clone().expect("a copy").into()
}

/// The will of a process that begins with this file.
fn beginning(file: OwnedFd, (config, plan): &(Config, PipelinePlan)) -> Will {
    let mut will = Will::new(Some(file), None);
    will.begin(config, plan, &InheritedSockets::default().assign(config, plan).expect("nothing was kept"));
    will
}

/// As SIGKILL ends a process: nothing is done any more.
fn kill(will: Will) -> OwnedFd {
    let file = kept(&will);
    std::mem::forget(will);
    file
}

#[test]
fn a_kill_before_a_process_is_ready_hides_nothing_of_those_before_it() {
    let own = configuration(5140);
    let held = own.1.held_at_most(&own.0);
    let mut file = of_a_killed_one(Default::default());
    for killed_at_start in 1..=3 {
        file = kill(beginning(file, &own));
        let lost = record_in(&file).lost();
        assert_eq!(lost.held_at_most.datagrams, HELD.datagrams + killed_at_start * held.datagrams);
        assert_eq!(lost.held_at_most.bytes, HELD.bytes + killed_at_start * held.bytes);
        assert_eq!(lost.in_flight, 10);
    }
    let said = summary(&record_in(&file));
    assert_eq!((said.ended, said.in_flight), (false, Some(10)));
    assert_eq!(said.lost_datagrams_at_most, Some(HELD.datagrams + 3 * held.datagrams));
    assert_eq!((said.kernel_dropped, said.dropped), (Some(30), Some(40)), "of the one that was ready");
}

#[test]
fn what_a_process_that_is_ready_has_said_is_said_by_no_other() {
    let own = configuration(free_port());
    let mut will = beginning(of_a_killed_one(Default::default()), &own);
    let pipeline = Pipeline::start(&own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
    will.run(&pipeline);
    will.look();
    let said = pipeline.ledger().snapshot().before.expect("of the one before");
    assert_eq!((said.pid, said.lost_datagrams_at_most), (7, Some(HELD.datagrams)));
    let file = kill(will);
    let lost = record_in(&file).lost();
    assert_eq!(lost.held_at_most, own.1.held_at_most(&own.0), "its own, and no more");
    assert_eq!((lost.kernel_dropped, lost.dropped), (Some(0), 0), "its own, and no more");
    pipeline.stop(Duration::ZERO, |_| true);
}

#[test]
fn only_a_process_whose_threads_have_all_lived_says_that_it_has_ended() {
    for is_orderly in [true, false] {
        let own = configuration(free_port());
        let mut will = beginning(of_a_killed_one(Default::default()), &own);
        let pipeline = Pipeline::start(&own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
        will.run(&pipeline);
        pipeline.stop(Duration::ZERO, |_| true);
        will.end(is_orderly);
        let record = record_in(&kept(&will));
        assert_eq!(record.ended, is_orderly);
        let lost = if is_orderly { Held::default() } else { own.1.held_at_most(&own.0) };
        assert_eq!(record.lost().held_at_most, lost);
    }
}

#[test]
fn what_a_start_that_fails_has_counted_is_not_counted_again_by_the_next() {
    let socket = Arc::new(mmsg::Socket::new(mmsg::Family::V4).expect("a socket"));
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let address = socket.local_addr().expect("bound");
    let inode = udpd_base::os::holder::inode_of(&*socket).expect("its number");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let drop_some = |datagrams: usize| {
        socket.refuse_arrivals().expect("a filter");
        (0..datagrams).for_each(|_| assert_eq!(sender.send_to(b"x", address).expect("loopback takes it"), 1));
    };
    let own = configuration(address.port());
    let file = of_a_killed_one([(inode, 0)].into());
    drop_some(3);
    let descriptor = std::os::fd::AsFd::as_fd(&*socket).try_clone_to_owned().expect("a copy");
    let claims =
        InheritedSockets::new(vec![("in.0".to_owned(), descriptor)]).and_then(|kept| kept.assign(&own.0, &own.1));
    let claims = claims.expect("it fits");
    let mut will = Will::new(Some(file), None);
    will.begin(&own.0, &own.1, &claims);
    let pipeline =
        Pipeline::start_with(claims, &own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
    drop_some(5);
    let books = pipeline.ledger();
    let ledger = pipeline.stop(Duration::from_secs(5), |wait| {
        std::thread::sleep(wait);
        false
    });
    assert_eq!(ledger.listeners[0].kernel_dropped, Some(5), "those before are in no books yet");
    will.give_back(&books);
    let file = kept(&will);
    drop(will);
    let record = record_in(&file);
    assert_eq!((record.pid, record.ended, record.lost().held_at_most), (7, false, HELD), "what was there");
    // The kernel is at 8 now: the next process finds the 3 that nobody has.
    assert_eq!(record.drops[&inode], 5);
}
