//! Sinks that run on the receiver's own thread: the same books as with a consumer, in every engine, through a reload
//! and a take-over, and no receiver that waits for one of them.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use serde_json::Value;

use crate::delivery::SCALE;
use crate::take_over::{self, end_with, received_by};
use crate::util::bed::{self, Bed, listener, sink};
use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::engines::{engines, two_engines};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load};
use crate::util::succession::Succession;

fn sinks(ledger: &Value) -> &[Value] {
    list(&ledger["listeners"][0], "sinks")
}

/// The names of all threads.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn inline_sinks_deliver_everything_on_the_receivers_threads_and_the_ledger_closes() {
    for (engine, gro) in engines().into_iter().zip(["off", "on"].into_iter().cycle()) {
        let directory = tempfile::tempdir().expect("a directory");
        let (peer, path) = (UdpSocket::bind("127.0.0.1:0").expect("a socket"), directory.path().join("messages"));
        let messages = UnixDatagram::bind(&path).expect("a socket");
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            let mut taken = 0_u64;
            while messages.recv(&mut buffer).is_ok_and(|length| length > 1) {
                taken += 1;
            }
            taken
        });
        let (address, to) = (free_address(), peer.local_addr().expect("bound"));
        let daemon = Daemon::with_config(&format!(
            "[[listener]]\nname = \"in\"\naddress = \"{address}\"\n{engine}\ngro = \"{gro}\"\nlanes = 2\n\
             rate_limit = {{ per_source = 100000, burst = 100000 }}\n\
             sinks = [\"relay\", \"messages\", \"nothing\", \"archive\"]\n\
             [sink.relay]\ntype = \"udp\"\ndestinations = [\"{to}\"]\ninline = true\n\
             [sink.messages]\ntype = \"unix\"\npath = \"{}\"\ninline = true\n\
             [sink.nothing]\ntype = \"null\"\ninline = true\nconsumers = \"per_lane\"\n\
             [sink.archive]\ntype = \"file\"\npath = \"@DIR@/archive\"\nrotate.every = \"0s\"\n",
            path.display()
        ));
        let names = threads(daemon.pid());
        assert_eq!(names.iter().filter(|name| name.starts_with("sink")).count(), 1, "the file's alone: {names:?}");
        let mut load = Load::new(address, Amount::Seconds(1.0));
        load.rate_per_second = 20_000 / SCALE;
        let sent = load.send().sent;
        daemon.stats_when("all are decided", |ledger| {
            sinks(ledger).iter().all(|sink| count(sink, "delivered") + count(&sink["dropped"], "sink_error") == sent)
        });
        let shown = udpd(&["stats", "--socket", &daemon.control_socket().display().to_string()]);
        assert!(String::from_utf8_lossy(&shown.stdout).contains("inline"), "{shown:?}");
        let ended = daemon.terminate();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert_closed(&ended.ledger, sent);
        let [relay, messages, nothing, archive] = sinks(&ended.ledger) else { panic!("four: {:#}", ended.ledger) };
        assert_eq!((count(relay, "delivered"), count(nothing, "delivered")), (sent, sent), "{:#}", ended.ledger);
        assert_eq!((&relay["inline"], &archive["inline"]), (&Value::Bool(true), &Value::Null));
        assert!(count(&nothing["residence"], "count") > 0, "measured as with a consumer: {nothing:#}");
        let end = UnixDatagram::unbound().expect("a socket");
        end.send_to(b".", &path).expect("it waits for that");
        assert_eq!(reader.join().expect("no panic"), count(messages, "delivered"), "{messages:#}");
    }
}

#[test]
fn a_peer_that_does_not_read_costs_an_inline_sink_its_own_datagrams_and_nobody_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stopped");
    // It is there, and takes as many as the kernel keeps for it.
    let stopped = UnixDatagram::bind(&path).expect("a socket");
    let address = free_address();
    let daemon = Daemon::with_config(&format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"stopped\", \"nothing\"]\n\
         [sink.stopped]\ntype = \"unix\"\npath = \"{}\"\ninline = true\n\
         [sink.nothing]\ntype = \"null\"\ninline = true\n",
        path.display()
    ));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let sent = 2_000;
    for round in 0..sent / 100 {
        for _ in 0..100 {
            socket.send_to(b"one of a hundred", address).expect("sent");
        }
        daemon
            .stats_when("the other sink has them", |ledger| count(&sinks(ledger)[1], "delivered") == (round + 1) * 100);
    }
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    let sink = &sinks(&ended.ledger)[0];
    let mut held = 0;
    stopped.set_nonblocking(true).expect("an option");
    while stopped.recv(&mut [0; 64]).is_ok() {
        held += 1;
    }
    assert_eq!((count(sink, "delivered"), count(&sink["dropped"], "sink_error")), (held, sent - held), "{sink:#}");
    assert!(held < sent, "the kernel keeps fewer than that");
    assert_eq!(ended.stderr.matches("an inline sink never waits").count(), 1, "said once: {}", ended.stderr);
}

#[test]
fn a_sink_goes_from_its_channel_to_inline_and_back_while_datagrams_arrive() {
    let text = |keys: &str| {
        format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:PORT\"\nlanes = 2\nsinks = [\"nothing\", \"kept\"]\n\
             [sink.nothing]\ntype = \"null\"\n{keys}\n[sink.kept]\ntype = \"null\"\n"
        )
    };
    let (channel, inline) = (text(""), text("inline = true"));
    let mut bed = Bed::start(&channel);
    let load = bed::Load::begin(bed.address(), bed.pipeline.books());
    for next in [&inline, &channel, &inline, &inline.replace("lanes = 2", "lanes = 1"), &inline] {
        load.wait_for(200);
        bed = bed.reload(next);
    }
    load.wait_for(200);
    let sent = load.end();
    let (last, _directory) = bed.stop();
    let own = listener(&last, "in");
    assert_eq!((own.arrived, own.residual), (Some(sent), Some(0)), "{own:#?}");
    for name in ["nothing", "kept"] {
        let sink = sink(&last, "in", name);
        assert_eq!((sink.counts.delivered, sink.in_flight), (sent, 0), "{sink:#?}");
    }
}

#[test]
fn a_process_that_takes_over_goes_on_inline_and_what_both_delivered_is_what_was_sent() {
    for engine in two_engines() {
        let (address, peer) = (free_address(), UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"{address}\"\n{engine}\nreceive_buffer = \"64MiB\"\n\
             sinks = [\"relay\"]\n\
             [sink.relay]\ntype = \"udp\"\ndestinations = [\"{}\"]\ninline = true\n",
            peer.local_addr().expect("bound")
        );
        let mut succession = Succession::new();
        let mut running = succession.start(&text);
        let sending = take_over::load(address, 20_000);
        let sending = std::thread::spawn(move || sending.send().sent);
        let mut received = 0;
        for _ in 0..2 {
            let (next, ended) = succession.succeed(running, &text);
            let delivered = count(&sinks(&ended.ledger)[0], "delivered");
            assert_eq!(delivered, received_by(&ended), "{engine}");
            received += delivered;
            running = next;
        }
        let sent = sending.join().expect("no panic");
        received += end_with(&succession, running, sent - received);
        assert_eq!(received, sent, "{engine}");
    }
}

#[test]
fn what_may_wait_is_no_inline_sink_and_keys_of_a_queue_mean_nothing_to_one() {
    let refused = |sink: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("udpd.toml");
        let text = format!("[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"s\"]\n{sink}");
        std::fs::write(&file, text).expect("written");
        let output = udpd(&["check", "-c", &file.display().to_string()]);
        assert_eq!(output.status.code(), Some(78), "{sink}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for kind in [
        "type = \"file\"\npath = \"/nonexistent/a\"",
        "type = \"stdout\"",
        "type = \"unix\"\npath = \"/nonexistent/a\"\nsocket = \"stream\"",
    ] {
        let said = refused(&format!("[sink.s]\n{kind}\ninline = true\n"));
        assert!(said.contains("sink.s.inline") && said.contains("this sink may wait"), "{said}");
    }
    for key in ["consumers = 2", "queue_bytes = \"8MiB\"", "when_full = \"block\""] {
        let said = refused(&format!("[sink.s]\ntype = \"null\"\ninline = true\n{key}\n"));
        assert!(said.contains("or remove inline"), "{said}");
    }
}
