//! What each duty may call, and what none may.

use super::*;

#[test]
fn the_calls_of_each_duty_are_few_and_those_that_start_programs_or_load_code_are_in_none() {
    let never = [libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_setns];
    for duty in Duty::CONFINED {
        let calls: Vec<i64> = allowed(duty).into_iter().flatten().copied().collect();
        assert!(never.iter().all(|call| !calls.contains(call)), "{duty}");
        assert!(!calls.contains(&libc::SYS_socket) && !calls.contains(&libc::SYS_bpf), "{duty}: judged only");
        filter(&[duty]).expect("a filter that the kernel takes");
    }
}

#[test]
fn only_duties_that_begin_files_open_any() {
    let opens = |duty: &Duty| allowed(*duty).into_iter().flatten().any(|&call| call == libc::SYS_openat);
    let opening: Vec<Duty> = Duty::CONFINED.into_iter().filter(opens).collect();
    let makers = [Duty::Maker, Duty::BrokerMaker];
    let spilling =
        [Duty::SpillingUnixClient, Duty::SpillingRelay, Duty::SpillingSourceKeepingRelay, Duty::SpillingBrokerClient];
    let of_files = [Duty::Resolver, Duty::Keeper, Duty::Compressor];
    let others = [Duty::Window, Duty::Watchdog];
    let expected = [&[Duty::Main, Duty::BrokerClient][..], &spilling, &of_files, &others, &makers];
    assert_eq!(opening, expected.concat());
}

#[test]
fn only_duties_with_brokers_and_names_make_streams_to_other_hosts() {
    let streams = format!("{:?}", streams().expect("rules"));
    let makes_streams = |duty: &Duty| {
        let sockets = judged(*duty).expect("rules").into_iter().find(|(call, _)| *call == libc::SYS_socket);
        sockets.is_some_and(|(_, rules)| format!("{rules:?}").contains(streams.trim_matches(['[', ']'])))
    };
    let making: Vec<Duty> = Duty::CONFINED.into_iter().filter(makes_streams).collect();
    assert_eq!(making, [Duty::BrokerClient, Duty::SpillingBrokerClient, Duty::Resolver, Duty::BrokerMaker]);
}

#[test]
fn a_confined_thread_signals_itself() {
    let raise = || hold_to(&[Duty::Receiver]).map(|()| nix::sys::signal::raise(nix::sys::signal::Signal::SIGCONT));
    match std::thread::spawn(raise).join().expect("no panic") {
        Ok(raised) => raised.expect("its own process"),
        // A kernel, or a container, without seccomp.
        Err(why) => assert!(why.starts_with("seccomp"), "{why}"),
    }
}

#[test]
fn a_receiver_with_inline_sinks_may_make_their_sockets_and_no_others() {
    use rustix::net::{AddressFamily, SocketType, socket};
    let make = || {
        let duties = [Duty::RingReceiver, Duty::UnixClient, Duty::Relay];
        hold_to(&duties).map(|()| {
            let kinds = [
                (AddressFamily::UNIX, SocketType::DGRAM),
                (AddressFamily::INET, SocketType::DGRAM),
                (AddressFamily::INET6, SocketType::DGRAM),
                (AddressFamily::INET, SocketType::STREAM),
                (AddressFamily::NETLINK, SocketType::DGRAM),
            ];
            kinds.map(|(family, kind)| socket(family, kind, None).err() == Some(rustix::io::Errno::PERM))
        })
    };
    match std::thread::spawn(make).join().expect("no panic") {
        Ok(refused) => assert_eq!(refused, [false, false, false, true, true]),
        // A kernel, or a container, without seccomp.
        Err(why) => assert!(why.starts_with("seccomp"), "{why}"),
    }
}
