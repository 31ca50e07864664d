//! Tests of the ioctls against the running kernel: on loopback, which answers little, and on a virtual cable in a
//! network namespace of the test's own, which can be changed without touching anything real.

use std::io;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::ethtool::{EthtoolError, NTUPLE};
use crate::sys::seam;

/// Runs `body` on a thread of its own in a new network namespace with a cable of 4 queues, or says why it cannot.
fn with_cable(body: impl FnOnce(&Ioctl) + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                skip(&format!("a network namespace of our own needs root: {error}"));
                return;
            }
            let arguments =
                "link add wire0 numrxqueues 4 numtxqueues 4 type veth peer name wire1 numrxqueues 4 numtxqueues 4";
            match Command::new("ip").args(arguments.split(' ')).status() {
                Ok(status) if status.success() => body(&Ioctl::new().or_else(|_| lo_up_and_new()).expect("a socket")),
                other => skip(&format!("ip {arguments}: {other:?}")),
            }
        });
        thread.join().expect("the thread's assertions hold");
    });
}

fn lo_up_and_new() -> io::Result<Ioctl> {
    Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    Ioctl::new()
}

#[test]
fn an_interface_that_does_not_exist_is_said_to_be_missing() {
    let ioctl = Ioctl::new().expect("a socket");
    for name in ["nosuchif0", "", "a-name-that-is-far-too-long", "zero\0"] {
        assert!(matches!(ioctl.channels(name), Err(EthtoolError::NoInterface)), "{name:?}");
    }
}

#[test]
fn loopback_has_neither_channels_nor_a_hash() {
    let ioctl = Ioctl::new().expect("a socket");
    assert!(matches!(ioctl.channels("lo"), Err(EthtoolError::NotSupported)));
    assert!(matches!(ioctl.rss("lo"), Err(EthtoolError::NotSupported)));
}

#[test]
fn channels_of_a_cable_are_read_set_and_read_back() {
    with_cable(|ioctl| {
        let before = ioctl.channels("wire0").expect("a cable has channels");
        assert_eq!((before.rx, before.rx_max, before.combined_max), (4, 4, 0));
        ioctl.set_channels("wire0", &Channels { rx: 2, tx: 3, ..before }).expect("within what it can");
        let after = ioctl.channels("wire0").expect("a cable has channels");
        assert_eq!((after.rx, after.tx, after.receiving()), (2, 3, 2));
        let error = ioctl.set_channels("wire0", &Channels { rx: 9, ..before }).expect_err("more than there can be");
        assert!(error.to_string().contains("set the channels of wire0 to rx 9"), "{error}");
    });
}

#[test]
fn what_a_cable_does_not_have_is_not_supported_and_no_failure() {
    with_cable(|ioctl| {
        assert!(matches!(ioctl.rss("wire0"), Err(EthtoolError::NotSupported)));
        assert!(matches!(ioctl.flow_hash("wire0", Family::V4), Err(EthtoolError::NotSupported)));
        assert!(matches!(ioctl.set_rss_key("wire0", &[1; 40]), Err(EthtoolError::NotSupported)));
        assert_eq!(ioctl.driver("wire0").expect("a driver"), "veth");
    });
}

#[test]
fn a_feature_of_a_cable_is_found_by_its_name_turned_off_and_on_again() {
    with_cable(|ioctl| {
        let on = Feature { is_on: true, is_changeable: true };
        assert_eq!(ioctl.feature("wire0", "tx-checksum-ip-generic").expect("a cable can do that"), on);
        ioctl.set_feature("wire0", "tx-checksum-ip-generic", false).expect("it can be turned off");
        let off = Feature { is_on: false, ..on };
        assert_eq!(ioctl.feature("wire0", "tx-checksum-ip-generic").expect("still there"), off);
        assert!(ioctl.feature("wire0", "rx-checksum").expect("another one").is_on, "nothing else was touched");
        let never = Feature { is_on: false, is_changeable: false };
        assert_eq!(ioctl.feature("wire0", NTUPLE).expect("every kernel has the name"), never);
        assert!(matches!(ioctl.feature("wire0", "no-such-feature"), Err(EthtoolError::NotSupported)));
        assert!(matches!(ioctl.rules("wire0"), Err(EthtoolError::NotSupported)));
        assert!(matches!(ioctl.coalescing("wire0"), Err(EthtoolError::NotSupported)));
    });
}

type Call = fn(&Ioctl) -> Answer<()>;

#[test]
fn every_call_that_fails_is_told_with_its_operation() {
    let ioctl = Ioctl::new().expect("a socket");
    let calls: [(&str, Call); 9] = [
        ("the driver of lo", |ioctl| ioctl.driver("lo").map(drop)),
        ("the channels of lo", |ioctl| ioctl.channels("lo").map(drop)),
        ("the rings of lo", |ioctl| ioctl.rings("lo").map(drop)),
        ("the hash spreading of lo", |ioctl| ioctl.rss("lo").map(drop)),
        ("the coalescing of lo", |ioctl| ioctl.coalescing("lo").map(drop)),
        ("the features of lo", |ioctl| ioctl.feature("lo", NTUPLE).map(drop)),
        ("the number of rules of lo", |ioctl| ioctl.rules("lo").map(drop)),
        ("to port 514 to queue 3", |ioctl| ioctl.insert_rule("lo", &rule(), None).map(drop)),
        ("the rule at place 7 of lo", |ioctl| ioctl.delete_rule("lo", 7)),
    ];
    for (operation, call) in calls {
        seam::FAIL.set(Some((0, libc::EIO)));
        let error = call(&ioctl).expect_err("the call fails");
        assert!(error.to_string().contains(operation), "{error}");
        assert!(matches!(error, EthtoolError::Failed { cause, .. } if cause.raw_os_error() == Some(libc::EIO)));
    }
    seam::FAIL.set(Some((0, libc::EPERM)));
    assert!(matches!(ioctl.channels("lo"), Err(EthtoolError::Permission)));
}

#[test]
fn a_driver_that_knows_no_such_flows_does_not_support_the_hash_and_one_that_fails_fails() {
    let ioctl = Ioctl::new().expect("a socket");
    seam::FAIL.set(Some((0, libc::EINVAL)));
    assert!(matches!(ioctl.flow_hash("lo", Family::V4), Err(EthtoolError::NotSupported)));
    seam::FAIL.set(Some((0, libc::EIO)));
    let error = ioctl.flow_hash("lo", Family::V4).expect_err("the call fails");
    assert!(error.to_string().starts_with("cannot read what lo hashes of UDP over IPv4: "), "{error}");
}

/// A driver whose table has so many entries at each question, one after the other; the last stays.
fn driver_with_tables(sizes: &'static [u32]) -> seam::Driver {
    let mut asked = 0;
    Box::new(move |request| {
        let size = sizes[asked.min(sizes.len() - 1)];
        asked += 1;
        assert_eq!(wire::u32_at(request, wire::COMMAND_AT), command::GET_RSS);
        match wire::u32_at(request, wire::RSS_TABLE_SIZE_AT) {
            0 => wire::put_u32(request, wire::RSS_TABLE_SIZE_AT, size),
            known if known != size => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            _ => (0..size).for_each(|entry| {
                wire::put_u32(request, wire::RSS_HEADER_BYTES + 4 * entry as usize, entry % 2);
            }),
        }
        Ok(())
    })
}

#[test]
fn a_table_that_grows_while_it_is_asked_for_is_asked_for_again_and_not_for_ever() {
    let ioctl = Ioctl::new().expect("a socket");
    seam::DRIVER.set(Some(driver_with_tables(&[2, 4, 4, 6])));
    assert_eq!(ioctl.rss("any0").expect("the third time both agree").indirection, [0, 1, 0, 1, 0, 1]);

    // It grows at each question.
    seam::DRIVER.set(Some(driver_with_tables(&[2, 4, 6, 8, 10, 12, 14, 16])));
    let error = ioctl.rss("any0").expect_err("it never ends");
    assert!(error.to_string().starts_with("cannot read the hash spreading of any0: "), "{error}");
    seam::DRIVER.set(None);
}

fn rule() -> Rule {
    Rule { family: Family::V4, destination: None, port: 514, queue: 3 }
}

fn skip(reason: &str) {
    use std::io::Write as _;
    let _ = writeln!(io::stderr(), "SKIPPED: {reason}");
}

/// A driver with rules at places 3 and 5, of which the one at 5 goes at this reading of a rule, with this answer.
fn driver_that_loses_a_rule(reading: usize, errno: i32) -> seam::Driver {
    let (mut readings, mut is_there) = (0, true);
    Box::new(move |request| {
        match wire::u32_at(request, wire::COMMAND_AT) {
            command::COUNT_RULES => wire::put_u32(request, wire::RULE_COUNT_AT, if is_there { 2 } else { 1 }),
            command::LIST_RULES => {
                wire::put_u32(request, wire::RULE_COUNT_AT, if is_there { 2 } else { 1 });
                wire::put_u32(request, wire::PLACES_AT, 3);
                if is_there {
                    wire::put_u32(request, wire::PLACES_AT + 4, 5);
                }
            }
            command::GET_RULE => {
                readings += 1;
                is_there &= readings != reading;
                if wire::u32_at(request, wire::PLACE_AT) == 5 && readings >= reading {
                    return Err(io::Error::from_raw_os_error(errno));
                }
            }
            other => panic!("{other:#x} was not to be asked"),
        }
        Ok(())
    })
}

#[test]
fn a_rule_that_goes_while_the_rules_are_read_makes_them_be_listed_again() {
    for errno in [libc::ENOENT, libc::EINVAL] {
        let ioctl = Ioctl::new().expect("a socket");
        seam::DRIVER.set(Some(driver_that_loses_a_rule(2, errno)));
        assert_eq!(ioctl.rules("any0").expect("listed again").taken, [(3, None)]);
    }
    let ioctl = Ioctl::new().expect("a socket");
    seam::DRIVER.set(Some(driver_that_loses_a_rule(0, libc::EINVAL)));
    let error = ioctl.rules("any0").expect_err("not for ever").to_string();
    assert!(error.contains("they changed 5 times while they were listed"), "{error}");
    seam::DRIVER.set(Some(driver_that_loses_a_rule(2, libc::EIO)));
    let error = ioctl.rules("any0").expect_err("another error").to_string();
    assert!(error.contains("read the rule at place 5 of any0"), "{error}");
}

/// A driver with these counters, whose values are 1000 and up, until it has one more.
fn driver(names: &'static [&'static str], grows_at: usize) -> seam::Driver {
    let mut readings = 0;
    Box::new(move |request| {
        match wire::u32_at(request, wire::COMMAND_AT) {
            command::COUNT_STRINGS => {
                wire::put_u32(request, 16, u32::try_from(names.len()).expect("few"));
            }
            command::GET_STRINGS => {
                for (place, name) in names.iter().enumerate() {
                    request[12 + 32 * place..][..name.len()].copy_from_slice(name.as_bytes());
                }
            }
            command::GET_STATISTICS => {
                readings += 1;
                if readings == grows_at {
                    wire::put_u32(request, 4, 0);
                }
                for (place, value) in (0..names.len()).zip(1000..) {
                    wire::put_u64(request, 8 + 8 * place, value);
                }
            }
            other => panic!("{other:#x} was not to be asked"),
        }
        Ok(())
    })
}

#[test]
fn counters_keep_their_order_and_a_driver_that_has_more_of_them_is_noticed() {
    let ioctl = Ioctl::new().expect("a socket");
    seam::DRIVER.set(Some(driver(&["Rx Queue#", "  pkts rx OOB", "  pkts rx OOB"], 2)));
    let mut statistics = DriverStatistics::new(&ioctl, "any0").expect("counters");
    assert_eq!(statistics.names(), ["Rx Queue#", "pkts rx OOB", "pkts rx OOB"]);
    assert!(statistics.read(&ioctl).expect("values"));
    assert_eq!([0, 1, 2].map(|place| statistics.value(place)), [1000, 1001, 1002]);
    assert!(!statistics.read(&ioctl).expect("an answer"), "it has another number of counters by now");
}

#[test]
fn what_has_no_counters_says_so() {
    let ioctl = Ioctl::new().expect("a socket");
    let error = DriverStatistics::new(&ioctl, "lo").expect_err("loopback has no driver");
    assert!(matches!(error, EthtoolError::NotSupported), "{error}");
}
