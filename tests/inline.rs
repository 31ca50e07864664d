//! Sinks that run on the receiver's own thread: the same counts as with a consumer, in every engine, through a reload
//! and a take-over, and no receiver that waits for one of them.

use std::os::unix::net::UnixDatagram;

use serde_json::Value;

use crate::util::pipeline::Bed;
use crate::util::*;

#[test]
fn inline_sinks_deliver_everything_on_the_receivers_threads_and_the_ledger_closes() {
    for (engine, gro) in engines().into_iter().zip(["off", "on"].into_iter().cycle()) {
        let directory = tempfile::tempdir().expect("a directory");
        let (peer, path) = (socket(), directory.path().join("messages"));
        let messages = UnixDatagram::bind(&path).expect("a socket");
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            let mut taken = 0_u64;
            while messages.recv(&mut buffer).is_ok_and(|length| length > 1) {
                taken += 1;
            }
            taken
        });
        let daemon = Setup::new()
            .keys(format!("{engine}\ngro = '{gro}'\nlanes = 2"))
            .keys("rate_limit = { per_source = 100000, burst = 100000 }")
            .relay("relay", &[address_of(&peer)])
            .keys("inline = true")
            .sink("messages", "unix", format!("path = '{}'\ninline = true", path.display()))
            .null("nothing")
            .keys("inline = true\nconsumers = 'per_lane'")
            .file("archive", "archive")
            .start();
        let names: Vec<String> = threads(daemon.pid()).iter().map(Thread::name).collect();
        assert_eq!(names.iter().filter(|name| name.starts_with("sink")).count(), 1, "the file's alone: {names:?}");
        let sent = Load::new(daemon.address(), Amount::Seconds(1.0)).rate(20_000 / SCALE).send().sent;
        daemon.until_settled(sent);
        daemon.command("stats").succeeds(&["inline"]);
        let ended = daemon.end(sent);
        let [relay, messages, nothing, archive] = sinks(&ended.ledger) else { panic!("four: {:#}", ended.ledger) };
        assert_eq!([relay, nothing].map(|sink| count(sink, "delivered")), [sent, sent], "{:#}", ended.ledger);
        assert_eq!((&relay["inline"], &archive["inline"]), (&Value::Bool(true), &Value::Null));
        assert!(count(&nothing["residence"], "count") > 0, "measured as with a consumer: {nothing:#}");
        UnixDatagram::unbound().expect("a socket").send_to(b".", &path).expect("it waits for that");
        assert_eq!(reader.join().expect("no panic"), count(messages, "delivered"), "{messages:#}");
    }
}

#[test]
fn a_peer_that_does_not_read_costs_an_inline_sink_its_own_datagrams_and_no_receiver_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stopped");
    // It is there, and takes as many as the kernel keeps for it.
    let stopped = UnixDatagram::bind(&path).expect("a socket");
    let setup = Setup::new().sink("stopped", "unix", format!("path = '{}'\ninline = true", path.display()));
    let daemon = setup.null("nothing").keys("inline = true").start();
    for sent in (100..=2_000).step_by(100) {
        send(daemon.address(), b"one of a hundred", 100);
        daemon.stats_when("the other sink has them", |ledger| count(&sinks(ledger)[1], "delivered") == sent);
    }
    let ended = daemon.end(2_000);
    let (sink, held) = (ended.sink(), stopped.count_all());
    assert_eq!((count(sink, "delivered"), dropped(sink, "sink_error")), (held, 2_000 - held), "{sink:#}");
    assert!(held < 2_000, "the kernel keeps fewer than that");
    ended.assert_logged("an inline sink never waits", 1);
}

#[test]
fn a_sink_goes_from_its_channel_to_inline_and_back_while_datagrams_arrive() {
    let address = free_address();
    let setup = |lanes: usize, keys: &str| {
        Setup::at(address).keys(format!("lanes = {lanes}")).null("nothing").keys(keys).null("kept")
    };
    let (channel, inline) = (setup(2, ""), setup(2, "inline = true"));
    let mut bed = Bed::start(&channel);
    let load = bed.load();
    for next in [&inline, &channel, &inline, &setup(1, "inline = true"), &inline] {
        load.wait_for(200);
        bed = bed.reload(next);
    }
    load.wait_for(200);
    let sent = load.end();
    let (ledger, _directory) = bed.stop_after(sent);
    for sink in sinks(&ledger) {
        assert_eq!((count(sink, "delivered"), count(sink, "in_flight")), (sent, 0), "{sink:#}");
    }
}

#[test]
fn a_process_that_takes_over_goes_on_inline_and_what_both_delivered_is_what_was_sent() {
    for engine in two_engines() {
        let peer = socket();
        let setup = Setup::new().keys(engine).keys("receive_buffer = '64MiB'");
        let setup = setup.relay("relay", &[address_of(&peer)]).keys("inline = true");
        let mut site = Site::new();
        let mut running = site.start(&setup);
        let sending = Load::steady(setup.address, 20_000).spawn();
        let mut received = 0;
        for _ in 0..2 {
            let (next, ended) = site.succeed(running, &setup);
            assert_eq!(delivered(&ended.ledger), ended.received(), "{engine}");
            received += ended.received();
            running = next;
        }
        let sent = sending.join().expect("no panic").sent;
        received += site.end_with(running, sent - received);
        assert_eq!(received, sent, "{engine}");
    }
}

#[test]
fn what_may_wait_is_no_inline_sink_and_keys_of_a_queue_mean_nothing_to_one() {
    for (kind, keys) in
        [("file", "path = '/nonexistent/a'"), ("stdout", ""), ("unix", "path = '/nonexistent/a'\nsocket = 'stream'")]
    {
        let setup = Setup::new().sink("s", kind, keys).keys("inline = true");
        setup.check().ends(78, &["sink.s.inline", "this sink may wait"]);
    }
    for key in ["consumers = 2", "queue_bytes = '8MiB'", "when_full = 'block'"] {
        Setup::new().null("s").keys("inline = true").keys(key).check().ends(78, &["or remove inline"]);
    }
}
