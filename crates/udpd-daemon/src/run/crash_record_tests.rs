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
fn kept(record: &CrashRecord) -> OwnedFd {
    record.file().expect("a file").try_clone().expect("a copy").into()
}

fn record_in(kept: &OwnedFd) -> ProcessRecord {
    RecordFile::open(kept.try_clone().expect("a copy")).expect("a record").1
}

/// The file of a process that was killed while it ran.
fn of_a_killed_process(drops: udpd_engine::pipeline::Drops) -> OwnedFd {
    let mut file = RecordFile::create().expect("a file in memory");
    let (kernel_dropped, dropped) = (Some(30), 40);
    let record = ProcessRecord {
        pid: 7,
        held_at_most: HELD,
        in_flight: 10,
        drops,
        kernel_dropped,
        dropped,
        ..ProcessRecord::default()
    };
    file.write(&record).expect("room");
    file.file.try_clone().expect("a copy").into()
}

/// The record of a process that begins with this file.
fn beginning(file: OwnedFd, (config, plan): &(Config, PipelinePlan)) -> CrashRecord {
    let mut record = CrashRecord::new(Some(file), None);
    record.begin(config, plan, &InheritedSockets::default().assign(config, plan).expect("nothing was kept"));
    record
}

/// As SIGKILL ends a process: nothing is done any more.
fn kill(record: CrashRecord) -> OwnedFd {
    let file = kept(&record);
    std::mem::forget(record);
    file
}

#[test]
fn a_kill_before_a_process_is_ready_hides_nothing_of_those_before_it() {
    let own = configuration(5140);
    let held = own.1.held_at_most(&own.0);
    let mut file = of_a_killed_process(Default::default());
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
    let mut record = beginning(of_a_killed_process(Default::default()), &own);
    let pipeline = Pipeline::start(&own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
    record.set_running(&pipeline);
    record.update();
    let said = pipeline.ledger().snapshot().before.expect("of the one before");
    assert_eq!((said.pid, said.lost_datagrams_at_most), (7, Some(HELD.datagrams)));
    let file = kill(record);
    let lost = record_in(&file).lost();
    assert_eq!(lost.held_at_most, own.1.held_at_most(&own.0), "its own, and no more");
    assert_eq!((lost.kernel_dropped, lost.dropped), (Some(0), 0), "its own, and no more");
    pipeline.stop(Duration::ZERO, |_| true);
}

#[test]
fn only_a_process_whose_threads_have_all_lived_says_that_it_has_ended() {
    for is_orderly in [true, false] {
        let own = configuration(free_port());
        let mut record = beginning(of_a_killed_process(Default::default()), &own);
        let pipeline = Pipeline::start(&own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
        record.set_running(&pipeline);
        pipeline.stop(Duration::ZERO, |_| true);
        record.close(is_orderly);
        let record = record_in(&kept(&record));
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
    let file = of_a_killed_process([(inode, 0)].into());
    drop_some(3);
    let descriptor = std::os::fd::AsFd::as_fd(&*socket).try_clone_to_owned().expect("a copy");
    let claims =
        InheritedSockets::new(vec![("in.0".to_owned(), descriptor)]).and_then(|kept| kept.assign(&own.0, &own.1));
    let claims = claims.expect("it fits");
    let mut record = CrashRecord::new(Some(file), None);
    record.begin(&own.0, &own.1, &claims);
    let pipeline =
        Pipeline::start_with(claims, &own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
    drop_some(5);
    let ledger = pipeline.ledger();
    let last = pipeline.stop(Duration::from_secs(5), |wait| {
        std::thread::sleep(wait);
        false
    });
    assert_eq!(last.listeners[0].kernel_dropped, Some(5), "those before are in no ledger yet");
    record.restore_previous(&ledger);
    let file = kept(&record);
    drop(record);
    let record = record_in(&file);
    assert_eq!((record.pid, record.ended, record.lost().held_at_most), (7, false, HELD), "what was there");
    // The kernel is at 8 now: the next process finds the 3 that are in no ledger.
    assert_eq!(record.drops[&inode], 5);
}

fn of_sockets(in_flight: u64, sockets: u64) -> ProcessRecord {
    let drops = (0..sockets).map(|inode| (inode, 7)).collect();
    let held_at_most = Held { datagrams: 5, bytes: 6 };
    ProcessRecord { pid: 4, held_at_most, in_flight, drops, ..ProcessRecord::default() }
}

fn reopened(file: &RecordFile) -> Option<ProcessRecord> {
    RecordFile::open(file.file.try_clone().expect("a copy").into()).map(|(_, record)| record)
}

#[test]
fn the_record_that_was_written_last_is_read_also_by_the_next_that_writes() {
    let mut file = RecordFile::create().expect("a file in memory");
    assert_eq!(reopened(&file), None, "nothing is written yet");
    for in_flight in 1..=5 {
        // Long ones before short ones: what is behind the end of a shorter one does not count.
        file.write(&of_sockets(in_flight, 900 / in_flight)).expect("room");
        assert_eq!(reopened(&file), Some(of_sockets(in_flight, 900 / in_flight)));
    }
    let (mut next, _) = RecordFile::open(file.file.try_clone().expect("a copy").into()).expect("a record");
    next.write(&of_sockets(6, 1)).expect("room");
    assert_eq!(reopened(&file), Some(of_sockets(6, 1)));
}

#[test]
fn a_record_that_was_cut_off_anywhere_leaves_the_one_before() {
    let mut file = RecordFile::create().expect("a file in memory");
    file.write(&of_sockets(1, 40)).expect("room");
    file.write(&of_sockets(2, 40)).expect("room");
    file.write(&of_sockets(3, 40)).expect("room");
    let whole = std::fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.file)));
    let whole = whole.expect("it can be read");
    let mut fourth = RecordFile::create().expect("a file in memory");
    fourth.written = 3;
    fourth.write(&of_sockets(4, 41)).expect("room");
    let text = std::fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fourth.file)));
    let text = text.expect("it can be read");
    for cut in (0..text.len()).step_by(7) {
        file.file.write_all_at(&whole, 0).expect("as it was");
        file.file.write_all_at(&text[..cut], 0).expect("a part");
        assert_eq!(reopened(&file), Some(of_sockets(3, 40)), "cut at {cut}");
    }
    file.file.write_all_at(&text, 0).expect("all of it");
    assert_eq!(reopened(&file), Some(of_sockets(4, 41)));
}

#[test]
fn what_is_no_record_is_none() {
    let null = File::open("/dev/null").expect("every host has one");
    assert!(RecordFile::open(null.into()).is_none());
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    assert!(RecordFile::open(socket.into()).is_none());
    let mut file = RecordFile::create().expect("a file in memory");
    let many = (0..60_000).map(|inode| (1_000_000_000 + inode, u32::MAX)).collect();
    let record = ProcessRecord { drops: many, ..of_sockets(1, 0) };
    assert!(file.write(&record).is_err(), "more than there is room for is refused");
}

#[test]
fn what_another_version_says_of_itself_is_read_as_far_as_it_is_known() {
    let newer = serde_json::json!({ "pid": 9, "ended": true, "dropped": 3, "moon": "full" });
    let record = CrashRecord::after(newer);
    let before = record.before.as_ref().expect("it is read");
    assert_eq!((before.pid, before.ended, before.dropped, before.kernel_dropped), (9, true, 3, None));
    for strange in [serde_json::json!("nonsense"), serde_json::json!({ "pid": "nine" }), Value::Null] {
        assert!(!CrashRecord::after(strange.clone()).has_before(), "{strange}");
    }
}

#[test]
fn one_that_was_killed_after_it_had_handed_over_has_lost_only_what_it_had_counted() {
    let said =
        |ended| serde_json::to_value(ProcessRecord { ended, pid: 4, drops: [(5, 7)].into(), ..of_sockets(3, 0) });
    let last = ProcessRecord { dropped: 8, kernel_dropped: Some(2), ..of_sockets(6, 9) };
    let mut record = CrashRecord::after(said(true).expect("it is shown"));
    record.set_killed(last.clone());
    let before = record.before.as_ref().expect("it is known");
    assert_eq!((before.ended, before.in_flight, before.held_at_most), (false, 0, Held::default()), "it had delivered");
    assert_eq!((before.dropped, before.kernel_dropped, &before.drops), (8, Some(2), &[(5, 7)].into()));
    assert_eq!(record.own.before, before.lost(), "and the next process hears of it");
    // Of one whose death is recorded already nothing more is known.
    let mut record = CrashRecord::after(said(false).expect("it is shown"));
    let before = record.before.clone();
    record.set_killed(last);
    assert_eq!((record.before.clone(), record.own.before), (before, UnreportedLoss::default()));
}

#[test]
fn of_a_process_that_died_with_its_sockets_the_ledger_says_that_nothing_is_known() {
    let own = configuration(free_port());
    let mut record = CrashRecord::new(None, Some(77));
    record.begin(&own.0, &own.1, &InheritedSockets::default().assign(&own.0, &own.1).expect("nothing was kept"));
    let pipeline = Pipeline::start(&own.0, &own.1, Instant::now(), &ThreadRegistry::new().0).expect("started");
    record.restore_previous(&pipeline.ledger());
    record.set_running(&pipeline);
    record.set_running(&pipeline);
    let said = pipeline.ledger().snapshot().before.expect("of the one before");
    assert_eq!((said.pid, said.ended, said.lost_datagrams_at_most, said.dropped), (77, false, None, None));
    pipeline.stop(Duration::ZERO, |_| true);
}

#[test]
fn a_record_that_cannot_be_written_is_given_up_and_the_process_goes_on() {
    let own = configuration(5140);
    let kept = of_a_killed_process(Default::default());
    let number = std::os::fd::AsRawFd::as_raw_fd(&kept);
    let only_read = File::open(format!("/proc/self/fd/{number}")).expect("it can be read");
    let record = beginning(only_read.into(), &own);
    assert!(record.has_before(), "what was there is known");
    assert!(record.file().is_none() && record.duplicate_file().is_none(), "and no more is written");
    drop(record);
    assert_eq!(record_in(&kept).pid, 7, "what was there stays");
}
