//! What each role may call, and what none may.

use std::collections::BTreeSet;

use super::*;

/// What a role may call whatever the arguments.
fn always(role: ThreadRole) -> Vec<&'static str> {
    granted(role).calls.into_iter().flatten().map(|call| call.name).collect()
}

/// What a role may call with some arguments, and which.
fn judged(role: ThreadRole) -> Vec<(&'static str, &'static str)> {
    granted(role).cases.into_iter().flatten().map(|case| (case.call.name, case.says)).collect()
}

fn numbers(roles: &[ThreadRole]) -> BTreeSet<i64> {
    rules(roles).expect("rules").into_keys().collect()
}

/// The roles of which this holds.
fn those(holds: impl Fn(ThreadRole) -> bool) -> Vec<ThreadRole> {
    ThreadRole::CONFINED.into_iter().filter(|role| holds(*role)).collect()
}

#[test]
fn what_leads_out_is_on_no_list_and_what_depends_on_its_arguments_is_judged() {
    let never = "execve execveat fork vfork clone3 unshare setns ptrace process_vm_readv process_vm_writev kill tkill \
                 pidfd_send_signal pidfd_getfd rt_sigqueueinfo rt_tgsigqueueinfo mount chroot pivot_root memfd_create \
                 userfaultfd perf_event_open personality pkey_mprotect shmat remap_file_pages io_submit keyctl \
                 init_module finit_module setuid setresuid setrlimit fchmod fchown mknodat symlinkat";
    let by_arguments = "socket bpf fcntl clone prctl ioctl mmap mprotect prlimit64 tgkill seccomp io_uring_register";
    let is_one = |of: &str, call: &str| of.split(' ').any(|name| call.strip_prefix("SYS_") == Some(name));
    for role in ThreadRole::CONFINED {
        assert!(!always(role).iter().any(|call| is_one(never, call) || is_one(by_arguments, call)), "{role}");
        // Compressing does these two to itself, and the main thread moves others.
        let judged = judged(role).into_iter().map(|(call, _)| call);
        let mut judged = judged.filter(|call| !is_one("setpriority sched_setaffinity", call));
        assert!(judged.all(|call| is_one(by_arguments, call)), "{role}");
        filters(&[role]).expect("filters that the kernel takes");
    }
}

#[test]
fn a_receiver_has_25_calls_and_all_roles_together_110() {
    for role in [ThreadRole::Receiver, ThreadRole::RingReceiver] {
        assert!(numbers(&[role]).len() <= 25, "{role}: {}", numbers(&[role]).len());
    }
    assert!(numbers(&ThreadRole::CONFINED).len() <= 110, "{}", numbers(&ThreadRole::CONFINED).len());
}

/// What is listed, each once: calls with the cases in which they may be made behind them.
#[cfg(all(target_arch = "x86_64", not(target_env = "musl")))]
fn listed(granted: &Granted, but: Option<&Granted>) -> String {
    let bare = |call: &SystemCall| call.name.trim_start_matches("SYS_");
    let is_new =
        |call: &SystemCall| but.is_none_or(|but| !but.calls.iter().copied().flatten().any(|other| other == call));
    let is_new_case =
        |case: &AllowedCase| but.is_none_or(|but| !but.cases.iter().copied().flatten().any(|one| one == case));
    let calls: BTreeSet<&str> = granted.calls.iter().copied().flatten().filter(|call| is_new(call)).map(bare).collect();
    let mut cases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for case in granted.cases.iter().copied().flatten().filter(|case| is_new_case(case)) {
        let of_call = cases.entry(bare(&case.call)).or_default();
        if !of_call.contains(&case.says) && !calls.contains(bare(&case.call)) {
            of_call.push(case.says);
        }
    }
    let cases = cases.into_iter().filter(|(_, says)| !says.is_empty());
    let judged = cases.map(|(call, says)| format!("`{call}` ({})", says.join(", ")));
    calls.into_iter().map(|call| format!("`{call}`")).chain(judged).collect::<Vec<_>>().join(", ")
}

/// `UDPD_WRITE_DOCS=1 cargo test -p udpd-sandbox sandbox` writes the table anew.
#[cfg(all(target_arch = "x86_64", not(target_env = "musl")))]
#[test]
fn the_table_of_calls_is_that_of_the_lists() {
    const BEGIN: &str = "<!-- the calls, from crates/udpd-sandbox/src/system_calls.rs -->\n";
    const END: &str = "<!-- the end of the calls -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sandbox.md");
    let text = std::fs::read_to_string(path).expect("docs/sandbox.md");
    let (head, rest) = text.split_once(BEGIN).expect("a beginning");
    let (_, tail) = rest.split_once(END).expect("an end");
    let every = Granted { calls: vec![EVERY, of_libc::SLEEP], cases: vec![call_arguments::EVERY] };
    let mut table = "| thread | calls | which |\n|---|---|---|\n".to_owned();
    let count = |roles: &[ThreadRole]| numbers(roles).len();
    let each = every.calls.iter().copied().flatten().map(|call| call.number);
    let each: BTreeSet<i64> = each.chain(every.cases.iter().copied().flatten().map(|case| case.call.number)).collect();
    table += &format!("| every thread | {} | {} |\n", each.len(), listed(&every, None));
    for role in ThreadRole::CONFINED {
        let which = match listed(&own(role), Some(&every)) {
            none if none.is_empty() => "no other".to_owned(),
            some => some,
        };
        let started =
            if is_started_by(role, ThreadRole::Receiver) { "what the threads that it starts call, and " } else { "" };
        table += &format!("| {role} | {} | {started}{which} |\n", count(&[role]));
    }
    table += &format!("| all together | {} | |\n", count(&ThreadRole::CONFINED));
    let expected = format!("{head}{BEGIN}{table}{END}{tail}");
    if std::env::var_os("UDPD_WRITE_DOCS").is_some() {
        std::fs::write(path, &expected).expect("docs/sandbox.md is written");
    } else {
        assert!(
            text == expected,
            "docs/sandbox.md is out of date: UDPD_WRITE_DOCS=1 cargo test -p udpd-sandbox sandbox"
        );
    }
}

#[test]
fn only_a_reload_makes_rings_and_only_what_looks_up_names_has_executable_memory() {
    assert_eq!(those(|role| always(role).contains(&"SYS_io_uring_setup")), [ThreadRole::RingReloader]);
    let of_names = [ThreadRole::BrokerClient, ThreadRole::Resolver, ThreadRole::BrokerReloader];
    assert_eq!(those(|role| judged(role).contains(&("SYS_mmap", "executable and not writable"))), of_names);
}

#[test]
fn only_roles_that_begin_files_open_any() {
    let makers = [ThreadRole::Reloader, ThreadRole::BrokerReloader];
    let of_files = [ThreadRole::Resolver, ThreadRole::FileKeeper, ThreadRole::Compressor, ThreadRole::Uploader];
    let others = [ThreadRole::Endpoint, ThreadRole::Watchdog];
    let clients = [ThreadRole::HttpClient, ThreadRole::BrokerClient];
    let expected = [&[ThreadRole::Main][..], &clients, &[ThreadRole::Spill], &of_files, &others, &makers];
    assert_eq!(those(|role| always(role).contains(&"SYS_openat")), expected.concat());
}

#[test]
fn only_roles_with_brokers_and_names_make_streams_to_other_hosts() {
    use ThreadRole::{BrokerClient, BrokerReloader, HttpClient, Resolver, TcpClient, Uploader};
    let clients = [TcpClient, HttpClient, BrokerClient, Resolver, Uploader, BrokerReloader];
    assert_eq!(those(|role| judged(role).contains(&("SYS_socket", "TCP"))), clients);
}

#[test]
fn a_thread_signals_its_own_process_and_no_other() {
    use nix::sys::signal::{Signal, raise};
    use rustix::process::{Pid, Signal as Number, kill_process};
    let attempt =
        || restrict(&[ThreadRole::Main]).map(|()| (raise(Signal::SIGCONT), kill_process(Pid::INIT, Number::CONT)));
    match std::thread::spawn(attempt).join().expect("no panic") {
        Ok(told) => assert_eq!(told, (Ok(()), Err(rustix::io::Errno::NOSYS))),
        // A kernel, or a container, without seccomp.
        Err(why) => assert!(why.starts_with("seccomp"), "{why}"),
    }
}

#[test]
fn a_consumer_of_a_file_takes_a_part_of_a_record_back_out_of_it() {
    let shorten = || {
        let file = tempfile::tempfile().expect("a file");
        restrict(&[ThreadRole::Writer]).map(|()| {
            std::io::Write::write_all(&mut &file, b"a record\nhalf a").expect("written");
            let length = file.metadata().map(|of| of.len()).map_err(|error| error.to_string())?;
            file.set_len(length - 6).map_err(|error| error.to_string())?;
            file.metadata().map(|of| of.len()).map_err(|error| error.to_string())
        })
    };
    match std::thread::spawn(shorten).join().expect("no panic") {
        Ok(length) => assert_eq!(length, Ok(9)),
        // A kernel, or a container, without seccomp.
        Err(why) => assert!(why.starts_with("seccomp"), "{why}"),
    }
}

#[test]
fn a_receiver_with_inline_sinks_may_make_their_sockets_and_no_others() {
    use rustix::net::{AddressFamily, SocketType, socket};
    let make = || {
        let roles = [ThreadRole::RingReceiver, ThreadRole::UnixClient, ThreadRole::Relay];
        restrict(&roles).map(|()| {
            let kinds = [
                (AddressFamily::UNIX, SocketType::DGRAM),
                (AddressFamily::UNIX, SocketType::SEQPACKET),
                (AddressFamily::INET, SocketType::DGRAM),
                (AddressFamily::INET6, SocketType::DGRAM),
                (AddressFamily::INET, SocketType::STREAM),
                (AddressFamily::NETLINK, SocketType::DGRAM),
            ];
            kinds.map(|(family, kind)| socket(family, kind, None).err() == Some(rustix::io::Errno::PERM))
        })
    };
    match std::thread::spawn(make).join().expect("no panic") {
        Ok(refused) => assert_eq!(refused, [false, true, false, false, true, true]),
        // A kernel, or a container, without seccomp.
        Err(why) => assert!(why.starts_with("seccomp"), "{why}"),
    }
}
