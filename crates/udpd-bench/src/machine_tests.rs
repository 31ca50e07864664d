//! Facts from a made-up machine, and arithmetic on made-up counters; of the real one only what must hold on any.

use super::*;

#[test]
fn facts_are_read_where_the_kernel_keeps_them_and_what_is_missing_is_unknown() {
    let root = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    };
    write("proc/sys/kernel/osrelease", "6.18.44\n");
    write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu hypervisor sse\n");
    write("sys/devices/system/cpu/online", "0-3,6\n");
    write("sys/devices/system/cpu/vulnerabilities/retbleed", "Vulnerable\n");
    write("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n");
    let machine = MachineFacts::read_from(root.path());
    assert_eq!(machine.kernel.as_deref(), Some("6.18.44"));
    assert_eq!(machine.cpu.as_deref(), Some("A CPU"));
    assert_eq!((machine.core_count, machine.virtualised), (5, true));
    assert_eq!(machine.mitigations, BTreeMap::from([("retbleed".to_owned(), "Vulnerable".to_owned())]));
    assert_eq!((machine.governor.clone(), machine.receive_buffer_max), (None, None));
}

#[test]
fn a_busy_machine_and_a_debug_build_are_warned_of() {
    let machine = |release_build| MachineFacts { core_count: 2, release_build, ..MachineFacts::read() };
    let warned = |machine: MachineFacts, share, load| {
        machine.warnings_of(share, load).iter().map(|text| text.split(':').next().unwrap_or("").to_owned()).collect()
    };
    let nothing: Vec<String> = Vec::new();
    assert_eq!(warned(machine(true), Some(0.05), Some(9.0)), nothing, "a look beats the load of the last minute");
    assert_eq!(warned(machine(true), Some(0.5), None), ["the machine is busy with something else"]);
    assert_eq!(warned(machine(true), None, Some(1.5)), ["the machine was busy"]);
    let debug: Vec<String> = warned(machine(false), None, None);
    assert!(debug[0].contains("debug build"), "{debug:?}");
}

#[test]
fn the_ticks_of_a_machine_are_those_of_its_first_line() {
    let ticks = ticks("cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 1 1 1 1 1 1 1 1 1 1\n").expect("eight numbers");
    assert_eq!(ticks, Ticks { busy: 1 + 2 + 4 + 32 + 64, all: 255 });
    assert_eq!(super::ticks("cpu 1 2 3\n"), None);
}

#[test]
fn the_time_of_a_thread_is_found_under_its_name() {
    let (started, begin) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let before = Usage::read();
    let body = move || {
        let worked = (0..2_000_000_u64).fold(1_u64, |sum, number| sum.wrapping_mul(3).wrapping_add(number));
        started.send(worked).expect("the test waits");
        let _ = ended.recv();
    };
    let thread = std::thread::Builder::new().name("probe7".to_owned()).spawn(body).expect("a thread");
    begin.recv().expect("it works and then says so");
    let used = Usage::read().since(&before);
    assert!(used.threads_ns("probe") > 0, "{used:?}");
    assert!(used.process_ns > 0);
    assert_eq!(used.threads_ns("no such thread"), 0);
    drop(end);
    thread.join().expect("it ends");
}
