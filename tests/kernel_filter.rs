//! `kernel_filter`: what the kernel refuses for a listener is `denied` in its ledger to the datagram, whatever the
//! kernel drops at the same socket for other reasons, and however often the filter changes. Where this process may load
//! no program the tests say so and end, but for those of that very case.

use std::net::{Ipv6Addr, SocketAddr};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::util::*;

fn text(address: SocketAddr, keys: &str) -> Setup {
    Setup::at(address).keys(keys).null("out")
}

/// Whether filters can be had here; says so where they cannot.
fn can_be_had() -> bool {
    let may = mmsg::CoreCounter::new().is_ok();
    if !may {
        not_checked("refusing sources in the kernel: it takes CAP_BPF");
    }
    may
}

fn from(to: SocketAddr, last: u8, count: u64, rate_per_second: u64) -> Load {
    Load::new(to, Amount::Count(count)).from([127, 0, 0, last]).rate(rate_per_second).flows(2)
}

fn denied(ledger: &Value) -> u64 {
    dropped(listener(ledger), "denied")
}

/// What of it the kernel refused, of all lanes.
fn in_kernel(ledger: &Value) -> u64 {
    lanes(ledger).iter().map(|lane| lane["denied_in_kernel"].as_u64().unwrap_or(0)).sum()
}

#[test]
fn what_the_kernel_denies_is_denied_to_the_datagram_and_the_others_are_delivered() {
    if !can_be_had() {
        return;
    }
    for engine in two_engines() {
        for keys in ["deny = ['127.0.0.2/31']", "allow = ['127.0.0.1/32', '127.0.0.4/32']"] {
            let address = free_address();
            let keys = format!("{engine}\n{keys}\nlanes = 2\nreceive_buffer = '64MiB'\nkernel_filter = 'require'");
            let daemon = text(address, &keys).start();
            let sent: Vec<LoadReport> = [1, 2, 3, 4]
                .map(|last| from(address, last, 40_000 / SCALE, 40_000).spawn())
                .into_iter()
                .map(|load| load.join().expect("it ends"))
                .collect();
            let ledger = daemon.end_after(sent.iter().map(|report| report.sent).sum()).ledger;
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
    let keys = "deny = ['127.0.0.0/30', '::1/128']\nallow = ['127.0.0.0/8']\nkernel_filter = 'require'";
    let daemon = text((Ipv6Addr::UNSPECIFIED, port).into(), keys).start();
    let v4 = SocketAddr::from(([127, 0, 0, 1], port));
    let sent = from(v4, 2, 100, 0).send().sent + from(v4, 9, 30, 0).send().sent;
    let sent = sent + Load::new((Ipv6Addr::LOCALHOST, port).into(), Amount::Count(50)).send().sent;
    let ledger = daemon.end_after(sent).ledger;
    assert_eq!((delivered(&ledger), denied(&ledger), in_kernel(&ledger)), (30, 150, 150));
}

#[test]
fn denied_at_once_with_a_full_buffer_each_is_counted_for_what_it_was_and_no_count_ever_falls() {
    if !can_be_had() {
        return;
    }
    let address = free_address();
    let keys = "deny = ['127.0.0.2/32']\nreceive_buffer = '4KiB'\ngather = '5ms'\nkernel_filter = 'require'";
    let daemon = text(address, keys).start();
    let floods = [1, 2].map(|last| from(address, last, 400_000 / SCALE, 0).overrunning().spawn());
    let (mut dropped, mut refused) = (0, 0);
    while floods.iter().any(|flood| !flood.is_finished()) {
        let ledger = daemon.stats();
        assert_eq!(listener(&ledger)["residual"], 0, "{ledger:#}");
        let now = (count(listener(&ledger), "kernel_dropped"), denied(&ledger));
        assert!(now.0 >= dropped && now.1 >= refused, "from {dropped}, {refused} to {now:?}");
        (dropped, refused) = now;
    }
    let [allowed, refused] = floods.map(|flood| flood.join().expect("it ends").sent);
    let ledger = daemon.end_after(allowed + refused).ledger;
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
        text(address, &format!("deny = [{deny}]\n{more}\nlanes = {lanes}\nreceive_buffer = '64MiB'"))
    };
    let (on, off) = ("kernel_filter = 'require'", "kernel_filter = 'off'");
    let daemon = with("'127.0.0.2/32'", on, 2).start();
    let loads = [1, 2, 3].map(|last| from(address, last, 60_000, 20_000).spawn());
    for (deny, filter, lanes) in [
        ("'127.0.0.3/32'", on, 2),
        ("'127.0.0.3/32'", on, 4),
        ("", off, 3),
        ("'127.0.0.2/31'", on, 1),
        ("'127.0.0.2/32'", off, 2),
        ("'127.0.0.2/32'", on, 2),
    ] {
        daemon.reload(&with(deny, filter, lanes)).succeeds(&[]);
    }
    let [one, two, three] = loads.map(|load| load.join().expect("it ends").sent);
    let all = one + two + three;
    daemon.until_settled(all);
    let before = in_kernel(&daemon.stats());
    let more = from(address, 2, 500, 0).send().sent;
    daemon.stats_when("the kernel denies", |ledger| in_kernel(ledger) == before + more);
    let ledger = daemon.end_after(all + more).ledger;
    assert_eq!(count(listener(&ledger), "kernel_dropped"), 0, "{ledger:#}");
    assert_eq!(delivered(&ledger) + denied(&ledger), all + more);
    assert!(delivered(&ledger) >= one, "the first was never denied");
}

#[test]
fn over_take_overs_under_load_each_refusal_is_in_one_ledger() {
    if !can_be_had() {
        return;
    }
    let (mut site, address) = (Site::new(), free_address());
    let with = |keys: &str| text(address, &format!("deny = ['127.0.0.2/32']\nreceive_buffer = '64MiB'\n{keys}"));
    let mut running = site.start(&with("kernel_filter = 'require'"));
    let loads = [1, 2].map(|last| from(address, last, 60_000, 20_000).spawn());
    let mut ended = Vec::new();
    for keys in ["kernel_filter = 'require'", "kernel_filter = 'off'", "kernel_filter = 'auto'"] {
        let (next, before) = site.succeed(running, &with(keys));
        ended.push(before);
        running = next;
    }
    let [allowed, refused] = loads.map(|load| load.join().expect("it ends").sent);
    let before: u64 = ended.iter().map(|one| arrived(&one.ledger)).sum();
    let rest = allowed + refused - before;
    site.stats_when("the rest has come", |ledger| arrived(ledger) >= rest);
    let last = running.terminate();
    assert!(last.status.success(), "{}", last.stderr);
    ended.push(last);
    let mut sums = [0; 4];
    for one in &ended {
        assert_closed(&one.ledger, arrived(&one.ledger));
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
    let keys = |filter| format!("deny = ['127.0.0.2/32']\nlanes = 2\nkernel_filter = '{filter}'");
    let daemon = text(address, &keys("auto")).start_without_bpf();
    let sent = from(address, 1, 100, 0).send().sent + from(address, 2, 50, 0).send().sent;
    let ended = daemon.end_after(sent);
    assert_eq!((denied(&ended.ledger), in_kernel(&ended.ledger)), (50, 0));
    let [warned] = ended.lines("cannot refuse sources")[..] else { panic!("{}", ended.stderr) };
    assert!(warned.contains("listener in:") && warned.contains("CAP_BPF"), "{warned}");
}

#[test]
fn what_a_filter_could_not_see_or_has_nothing_to_do_with_is_refused_with_the_configuration() {
    let address = free_address();
    for (keys, words) in [
        ("", "there is nothing to refuse"),
        ("deny = ['10.0.0.0/8']\nproxy_protocol = 'v2'\nproxy_from = ['127.0.0.1/32']", "the proxies as senders"),
        ("deny = ['10.0.0.0/8']\nengine = 'af_xdp'\ninterface = 'lo'", "does not come to a socket"),
    ] {
        text(address, &format!("{keys}\nkernel_filter = 'auto'")).check().ends(78, &[words, "kernel_filter"]);
    }
}

#[test]
fn without_its_warden_a_reload_goes_on_with_what_udpd_denies_itself_or_is_refused() {
    if !can_be_had() {
        return;
    }
    let address = free_address();
    let with = |deny: u8, filter: &str| {
        text(address, &format!("deny = ['127.0.0.{deny}/32']\nlanes = 2\nkernel_filter = '{filter}'"))
    };
    let daemon = with(2, "require").start();
    // Without a sandbox there is none, and then nothing is missing.
    let Some(warden) = crate::sandbox::warden_of(daemon.pid()) else { return };
    kill(Pid::from_raw(warden.cast_signed()), Signal::SIGKILL).expect("a child of this user");
    daemon.reload(&with(3, "require")).ends(77, &["cannot refuse sources"]);
    let before = from(address, 2, 100, 0).send().sent;
    daemon.stats_when("the filter of before is there", |ledger| in_kernel(ledger) == before);
    daemon.reload(&with(3, "auto")).succeeds(&[]);
    let sent = from(address, 2, 70, 0).send().sent + from(address, 3, 30, 0).send().sent;
    let ended = daemon.end_after(before + sent);
    let counts = (delivered(&ended.ledger), denied(&ended.ledger), in_kernel(&ended.ledger));
    assert_eq!(counts, (70, 130, 100), "the lists of now hold, and no filter of before");
    ended.logged(&["udpd refuses them after they were received"]);
}

#[test]
fn a_daemon_that_began_without_filters_has_given_up_the_right_to_them() {
    let address = free_address();
    let with = |filter: &str| text(address, &format!("deny = ['127.0.0.2/32']\nkernel_filter = '{filter}'"));
    let daemon = with("off").start();
    daemon.reload(&with("require")).ends(77, &[]);
    daemon.reload(&with("auto")).succeeds(&[]);
    let sent = from(address, 2, 70, 0).send().sent;
    let ledger = daemon.end_after(sent).ledger;
    assert_eq!((denied(&ledger), in_kernel(&ledger)), (70, 0));
}

#[test]
fn a_socket_that_is_kept_has_no_filter_while_no_daemon_runs_and_the_next_daemon_removes_that_of_a_killed_one() {
    if !can_be_had() {
        return;
    }
    let (mut manager, address) = (Manager::new(), free_address());
    let on = text(address, "deny = ['127.0.0.2/32']\nkernel_filter = 'require'");
    let end = |manager: &mut Manager, arrived_all: u64| {
        manager.stats_when("all has come", |ledger| arrived(ledger) >= arrived_all);
        manager.end(arrived_all).ledger
    };
    manager.start(&on);
    from(address, 2, 40, 0).send();
    assert_eq!(in_kernel(&end(&mut manager, 40)), 40);
    // No daemon runs, and what waits is denied by the next one.
    from(address, 2, 30, 0).send();
    manager.start(&on);
    let ledger = manager.stats_when("it has read what waited", |ledger| denied(ledger) == 30);
    assert_eq!((in_kernel(&ledger), &listener(&ledger)["kernel_dropped_between"]), (0, &Value::from(0)));
    drop(manager.end_by(Signal::SIGKILL));
    // Its filter is still there, and the next one lets all in.
    from(address, 2, 20, 0).send();
    manager.start(&text(address, ""));
    from(address, 2, 10, 0).send();
    let ledger = end(&mut manager, 10);
    assert_eq!((delivered(&ledger), count(listener(&ledger), "kernel_dropped_between")), (10, 20));
}

#[test]
fn without_the_right_that_is_required_there_is_no_start() {
    if !is_root() {
        return;
    }
    let setup = text(free_address(), "deny = ['127.0.0.2/32']\nkernel_filter = 'require'");
    let by = [setup::WITHOUT_BPF[0], setup::WITHOUT_BPF[1], UDPD];
    let words = ["listener in: the kernel cannot refuse sources", "grant CAP_BPF", "kernel_filter = \"auto\""];
    setup.udpd_by(&by, "run", &[]).ends(77, &words);
}
