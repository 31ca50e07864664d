//! `kernel_filter`: what the kernel refuses for a listener is `denied` in its ledger to the datagram, whatever the
//! kernel drops at the same socket for other reasons, and however often the filter changes. Where this process may load
//! no program the tests say so and end, but for those of that very case.

use std::net::{Ipv6Addr, SocketAddr};
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::delivery::SCALE;
use crate::util::daemon::{Daemon, complete, free_address, udpd};
use crate::util::engines::two_engines;
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load, LoadReport};
use crate::util::manager::Manager;
use crate::util::succession::Succession;

fn text(address: SocketAddr, keys: &str) -> String {
    format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\n{keys}\nsinks = [\"out\"]\n[sink.out]\n\
         type = \"null\"\n"
    )
}

/// Whether filters can be had here; says so where they cannot.
#[allow(clippy::print_stderr)]
fn can_be_had() -> bool {
    let may = mmsg::CoreCounter::new().is_ok();
    if !may {
        eprintln!("NOT CHECKED: refusing sources in the kernel needs CAP_BPF");
    }
    may
}

fn from(to: SocketAddr, last: u8, count: u64, rate_per_second: u64) -> Load {
    let mut load = Load::new(to, Amount::Count(count));
    (load.from, load.rate_per_second, load.flows) = (Some([127, 0, 0, last].into()), rate_per_second, 2);
    load
}

fn reload(daemon: &Daemon, text: &str) -> Output {
    std::fs::write(daemon.directory().join("udpd.toml"), complete(text, daemon.directory())).expect("the file");
    udpd(&["reload", "--socket", daemon.control_socket().to_str().expect("UTF-8")])
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn listener(ledger: &Value) -> &Value {
    &ledger["listeners"][0]
}

fn denied(ledger: &Value) -> u64 {
    count(&listener(ledger)["dropped"], "denied")
}

/// What of it the kernel refused, of all lanes.
fn in_kernel(ledger: &Value) -> u64 {
    list(listener(ledger), "lanes").iter().map(|lane| lane["denied_in_kernel"].as_u64().unwrap_or(0)).sum()
}

fn delivered(ledger: &Value) -> u64 {
    count(&listener(ledger)["sinks"][0], "delivered")
}

/// Waits until all has arrived, ends the daemon, and checks that its books close over `sent`.
fn end_after(daemon: Daemon, sent: u64) -> Value {
    daemon.stats_when("all has arrived and is delivered", |ledger| {
        count(listener(ledger), "arrived") == sent && count(&listener(ledger)["sinks"][0], "in_flight") == 0
    });
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    ended.ledger
}

#[test]
fn what_the_kernel_denies_is_denied_to_the_datagram_and_the_others_are_delivered() {
    if !can_be_had() {
        return;
    }
    for engine in two_engines() {
        for keys in ["deny = [\"127.0.0.2/31\"]", "allow = [\"127.0.0.1/32\", \"127.0.0.4/32\"]"] {
            let address = free_address();
            let keys = format!("{engine}\n{keys}\nlanes = 2\nreceive_buffer = \"64MiB\"\nkernel_filter = \"require\"");
            let daemon = Daemon::with_config(&text(address, &keys));
            let sent: Vec<LoadReport> = [1, 2, 3, 4]
                .map(|last| from(address, last, 40_000 / SCALE, 40_000).spawn())
                .into_iter()
                .map(|load| load.join().expect("it ends"))
                .collect();
            let ledger = end_after(daemon, sent.iter().map(|report| report.sent).sum());
            assert_eq!(denied(&ledger), sent[1].sent + sent[2].sent, "{keys}");
            assert_eq!((in_kernel(&ledger), delivered(&ledger)), (denied(&ledger), sent[0].sent + sent[3].sent));
            assert_eq!(count(listener(&ledger), "kernel_dropped"), 0, "denied ones are no drops: {ledger:#}");
        }
    }
}

#[test]
fn on_a_socket_of_both_families_ipv4_and_ipv6_have_their_own_answers() {
    if !can_be_had() {
        return;
    }
    let port = free_address().port();
    let keys = "deny = [\"127.0.0.0/30\", \"::1/128\"]\nallow = [\"127.0.0.0/8\"]\nkernel_filter = \"require\"";
    let daemon = Daemon::with_config(&text((Ipv6Addr::UNSPECIFIED, port).into(), keys));
    let v4 = SocketAddr::from(([127, 0, 0, 1], port));
    let sent = from(v4, 2, 100, 0).send().sent + from(v4, 9, 30, 0).send().sent;
    let sent = sent + Load::new((Ipv6Addr::LOCALHOST, port).into(), Amount::Count(50)).send().sent;
    let ledger = end_after(daemon, sent);
    assert_eq!((delivered(&ledger), denied(&ledger), in_kernel(&ledger)), (30, 150, 150));
}

#[test]
fn denied_at_once_with_a_full_buffer_each_is_counted_for_what_it_was_and_no_count_ever_falls() {
    if !can_be_had() {
        return;
    }
    let address = free_address();
    let keys = "deny = [\"127.0.0.2/32\"]\nreceive_buffer = \"4KiB\"\ngather = \"5ms\"\nkernel_filter = \"require\"";
    let daemon = Daemon::with_config(&text(address, keys));
    let flood = |last| {
        let mut load = from(address, last, 400_000 / SCALE, 0);
        load.overruns = true;
        load.spawn()
    };
    let floods = [flood(1), flood(2)];
    let (mut dropped, mut refused) = (0, 0);
    while floods.iter().any(|flood| !flood.is_finished()) {
        let ledger = daemon.stats();
        assert_eq!(listener(&ledger)["residual"], 0, "{ledger:#}");
        let now = (count(listener(&ledger), "kernel_dropped"), denied(&ledger));
        assert!(now.0 >= dropped && now.1 >= refused, "from {dropped}, {refused} to {now:?}");
        (dropped, refused) = now;
    }
    let [allowed, refused] = floods.map(|flood| flood.join().expect("it ends").sent);
    let ledger = end_after(daemon, allowed + refused);
    assert_eq!((denied(&ledger), in_kernel(&ledger)), (refused, refused));
    let dropped = count(listener(&ledger), "kernel_dropped");
    assert_eq!(delivered(&ledger) + dropped, allowed);
    assert!(dropped > 0, "a buffer of 4 KiB took everything");
}

#[test]
fn lists_that_change_under_load_lose_count_of_nothing_inside_of_the_sandbox() {
    if !can_be_had() {
        return;
    }
    let address = free_address();
    let with = |deny: &str, more: &str, lanes: usize| {
        text(address, &format!("deny = [{deny}]\n{more}\nlanes = {lanes}\nreceive_buffer = \"64MiB\""))
    };
    let (on, off) = ("kernel_filter = \"require\"", "kernel_filter = \"off\"");
    let daemon = Daemon::with_config(&with("\"127.0.0.2/32\"", on, 2));
    let loads = [1, 2, 3].map(|last| from(address, last, 60_000, 20_000).spawn());
    for (deny, filter, lanes) in [
        ("\"127.0.0.3/32\"", on, 2),
        ("\"127.0.0.3/32\"", on, 4),
        ("", off, 3),
        ("\"127.0.0.2/31\"", on, 1),
        ("\"127.0.0.2/32\"", off, 2),
        ("\"127.0.0.2/32\"", on, 2),
    ] {
        let done = reload(&daemon, &with(deny, filter, lanes));
        assert!(done.status.success(), "{}", said(&done));
    }
    let [one, two, three] = loads.map(|load| load.join().expect("it ends").sent);
    let all = one + two + three;
    daemon.stats_when("all has arrived", |ledger| count(listener(ledger), "arrived") == all);
    let before = in_kernel(&daemon.stats());
    let more = from(address, 2, 500, 0).send().sent;
    daemon.stats_when("the kernel denies", |ledger| in_kernel(ledger) == before + more);
    let ledger = end_after(daemon, all + more);
    assert_eq!(count(listener(&ledger), "kernel_dropped"), 0, "{ledger:#}");
    assert_eq!(delivered(&ledger) + denied(&ledger), all + more);
    assert!(delivered(&ledger) >= one, "nobody ever denied the first");
}

#[test]
fn over_take_overs_under_load_each_refusal_is_in_one_ledger() {
    if !can_be_had() {
        return;
    }
    let (mut succession, address) = (Succession::new(), free_address());
    let with = |keys: &str| text(address, &format!("deny = [\"127.0.0.2/32\"]\nreceive_buffer = \"64MiB\"\n{keys}"));
    let mut running = succession.start(&with("kernel_filter = \"require\""));
    let loads = [1, 2].map(|last| from(address, last, 60_000, 20_000).spawn());
    let mut ended = Vec::new();
    for keys in ["kernel_filter = \"require\"", "kernel_filter = \"off\"", "kernel_filter = \"auto\""] {
        let (next, before) = succession.succeed(running, &with(keys));
        ended.push(before);
        running = next;
    }
    let [allowed, refused] = loads.map(|load| load.join().expect("it ends").sent);
    let before: u64 = ended.iter().map(|one| count(listener(&one.ledger), "arrived")).sum();
    let rest = allowed + refused - before;
    succession.stats_when("the rest has come", |ledger| count(listener(ledger), "arrived") >= rest);
    ended.push(running.end_by(Signal::SIGTERM));
    let mut sums = [0; 4];
    for one in &ended {
        assert!(one.status.success(), "{}", one.stderr);
        assert_closed(&one.ledger, count(listener(&one.ledger), "arrived"));
        let between = listener(&one.ledger)["kernel_dropped_between"].as_u64().unwrap_or(0);
        let own = [delivered(&one.ledger), denied(&one.ledger), in_kernel(&one.ledger), between];
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        assert_eq!(count(listener(&one.ledger), "kernel_dropped"), 0, "{:#}", one.ledger);
    }
    assert_eq!((sums[0], sums[1], sums[3]), (allowed, refused, 0), "delivered, denied and dropped between");
    assert!(sums[2] > 0, "the kernel had its part");
}

#[test]
fn without_the_right_there_is_one_warning_and_udpd_denies() {
    let address = free_address();
    let keys = |filter| format!("deny = [\"127.0.0.2/32\"]\nlanes = 2\nkernel_filter = \"{filter}\"");
    let daemon = Daemon::with_config_and_without_bpf(&text(address, &keys("auto")));
    let sent = from(address, 1, 100, 0).send().sent + from(address, 2, 50, 0).send().sent;
    daemon.stats_when("all has arrived", |ledger| count(listener(ledger), "arrived") == sent);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    assert_eq!((denied(&ended.ledger), in_kernel(&ended.ledger)), (50, 0));
    let warned: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("cannot refuse sources")).collect();
    assert_eq!(warned.len(), 1, "{}", ended.stderr);
    assert!(warned[0].contains("listener in:") && warned[0].contains("CAP_BPF"), "{warned:?}");
}

#[test]
fn what_a_filter_could_not_see_or_has_nothing_to_do_with_is_refused_with_the_configuration() {
    let address = free_address();
    for (keys, words) in [
        ("", "there is nothing to refuse"),
        ("deny = [\"10.0.0.0/8\"]\nproxy_protocol = \"v2\"\nproxy_from = [\"127.0.0.1/32\"]", "the proxies as senders"),
        ("deny = [\"10.0.0.0/8\"]\nengine = \"af_xdp\"\ninterface = \"lo\"", "does not come to a socket"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("udpd.toml");
        std::fs::write(&file, text(address, &format!("{keys}\nkernel_filter = \"auto\""))).expect("written");
        let refused = udpd(&["check", "-c", file.to_str().expect("UTF-8")]);
        assert_eq!(refused.status.code(), Some(78), "{}", said(&refused));
        assert!(said(&refused).contains(words) && said(&refused).contains("kernel_filter"), "{}", said(&refused));
    }
}

/// The child of a daemon that keeps its rights.
fn warden_of(daemon: &Daemon) -> Option<Pid> {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let children = std::fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
}

#[test]
fn without_its_warden_a_reload_goes_on_with_what_udpd_denies_itself_or_is_refused() {
    if !can_be_had() {
        return;
    }
    let address = free_address();
    let with = |deny: u8, filter: &str| {
        text(address, &format!("deny = [\"127.0.0.{deny}/32\"]\nlanes = 2\nkernel_filter = \"{filter}\""))
    };
    let daemon = Daemon::with_config(&with(2, "require"));
    // Without a sandbox there is none, and then nothing is missing.
    let Some(warden) = warden_of(&daemon) else { return };
    kill(warden, Signal::SIGKILL).expect("a child of this user");
    let refused = reload(&daemon, &with(3, "require"));
    assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
    assert!(said(&refused).contains("cannot refuse sources"), "{}", said(&refused));
    let before = from(address, 2, 100, 0).send().sent;
    daemon.stats_when("the filter of before is there", |ledger| in_kernel(ledger) == before);
    let done = reload(&daemon, &with(3, "auto"));
    assert!(done.status.success(), "{}", said(&done));
    let sent = from(address, 2, 70, 0).send().sent + from(address, 3, 30, 0).send().sent;
    daemon.stats_when("all has arrived", |ledger| count(listener(ledger), "arrived") == before + sent);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, before + sent);
    let counts = (delivered(&ended.ledger), denied(&ended.ledger), in_kernel(&ended.ledger));
    assert_eq!(counts, (70, 130, 100), "the lists of now hold, and no filter of before");
    assert!(ended.stderr.contains("udpd refuses them after they were received"), "{}", ended.stderr);
}

#[test]
fn a_daemon_that_began_without_filters_has_given_up_the_right_to_them() {
    let address = free_address();
    let with = |filter: &str| text(address, &format!("deny = [\"127.0.0.2/32\"]\nkernel_filter = \"{filter}\""));
    let daemon = Daemon::with_config(&with("off"));
    let refused = reload(&daemon, &with("require"));
    assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
    let done = reload(&daemon, &with("auto"));
    assert!(done.status.success(), "{}", said(&done));
    let sent = from(address, 2, 70, 0).send().sent;
    let ledger = end_after(daemon, sent);
    assert_eq!((denied(&ledger), in_kernel(&ledger)), (70, 0));
}

#[test]
fn a_socket_that_is_kept_has_no_filter_while_nobody_runs_and_none_of_a_process_that_was_killed_for_longer() {
    if !can_be_had() {
        return;
    }
    let (mut manager, address) = (Manager::new(), free_address());
    let on = text(address, "deny = [\"127.0.0.2/32\"]\nkernel_filter = \"require\"");
    let end = |manager: &mut Manager, arrived: u64| {
        manager.stats_when("all has come", |ledger| count(listener(ledger), "arrived") >= arrived);
        let ended = manager.end_by(Signal::SIGTERM);
        assert_closed(&ended.ledger, arrived);
        ended.ledger
    };
    manager.start(&on);
    from(address, 2, 40, 0).send();
    assert_eq!(in_kernel(&end(&mut manager, 40)), 40);
    // Nobody runs, and what waits is denied by the next one.
    from(address, 2, 30, 0).send();
    manager.start(&on);
    let ledger = manager.stats_when("it has read what waited", |ledger| denied(ledger) == 30);
    assert_eq!((in_kernel(&ledger), &listener(&ledger)["kernel_dropped_between"]), (0, &Value::from(0)));
    drop(manager.end_by(Signal::SIGKILL));
    // Its filter is still there, and the next one lets everybody in.
    from(address, 2, 20, 0).send();
    manager.start(&text(address, ""));
    from(address, 2, 10, 0).send();
    let ledger = end(&mut manager, 10);
    assert_eq!((delivered(&ledger), count(listener(&ledger), "kernel_dropped_between")), (10, 20));
}

#[test]
fn without_the_right_that_is_required_there_is_no_start() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("udpd.toml");
    let keys = "deny = [\"127.0.0.2/32\"]\nkernel_filter = \"require\"";
    std::fs::write(&file, complete(&text(free_address(), keys), folder.path())).expect("written");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-bpf,-sys_admin", env!("CARGO_BIN_EXE_udpd"), "run", "-c"]).arg(&file);
    let refused = command.output().expect("util-linux has it");
    assert_eq!(refused.status.code(), Some(77), "{}", said(&refused));
    let words = ["listener in: the kernel cannot refuse sources", "grant CAP_BPF", "kernel_filter = \"auto\""];
    words.iter().for_each(|words| assert!(said(&refused).contains(words), "{words}: {}", said(&refused)));
}
