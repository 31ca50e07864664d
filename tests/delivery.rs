//! What was sent arrives, byte for byte and number for number, in every sink, and the ledger says so.

use udpd_base::format::lines::unescape;

use crate::util::*;

#[test]
fn two_lanes_feed_a_file_and_a_null_sink_without_losing_one() {
    for engine in two_engines() {
        let address = free_address();
        // A disk that others keep busy may take nothing for a tenth of a second and more, and the load waits.
        let daemon = Setup::at(address)
            .keys(format!("{engine}\nlanes = 2"))
            .file("archive", "{listener}-{consumer}.log")
            .keys("when_full = 'block'")
            .null("nothing")
            .start();
        let report = Load::new(address, Amount::Seconds(10.0 / SCALE as f64)).rate(200_000 / SCALE).send();
        daemon.until_delivered(report.sent);
        let ended = daemon.end(report.sent);
        for lane in lanes(&ended.ledger) {
            assert!(count(lane, "received") > 0 && lane["engine"] == name_in(engine), "both lanes take part: {lane:#}");
        }
        report.assert_each_once(&contents(&ended.directory, "in-0.log"));
    }
}

#[test]
fn datagrams_of_every_size_arrive_byte_for_byte() {
    for engine in engines() {
        let daemon = Setup::new()
            .keys(format!("{engine}\nmax_length = 65535\nbatch_size = 8"))
            .file("archive", "in.log")
            .start();
        let socket = socket();
        let payloads: Vec<Vec<u8>> = [0, 1, 2, 63, 64, 65, 512, 1472, 1473, 9000, 65_507]
            .map(|size: usize| (0..size).map(|index| (index * 7 + size) as u8).collect())
            .into();
        for payload in &payloads {
            socket.send_to(payload, daemon.address()).expect("sent");
        }
        daemon.until_delivered(payloads.len() as u64);
        let ended = daemon.end(payloads.len() as u64);
        let text = ended.read("in.log");
        let lines: Vec<&[u8]> = text.strip_suffix(b"\n").expect("whole lines").split(|&byte| byte == b'\n').collect();
        assert_eq!(lines.len(), payloads.len());
        for (line, payload) in lines.iter().zip(&payloads) {
            let expected = payload.strip_suffix(b"\n").unwrap_or(payload);
            assert_eq!(unescape(line).as_deref(), Some(expected), "{} bytes", payload.len());
        }
    }
}

#[test]
fn what_is_longer_than_max_length_is_counted_and_kept_or_dropped_as_told() {
    let policies = [("keep", 3, 0), ("drop", 2, 1)];
    let ways = ["gro = 'off'", "gro = 'on'"].map(|gro| policies.map(|policy| (gro, policy)));
    for (engine, (gro, (policy, delivered, dropped))) in
        engines().into_iter().flat_map(|engine| ways.concat().into_iter().map(move |way| (engine, way)))
    {
        let address = free_address();
        let daemon = Setup::at(address)
            .keys(format!("{engine}\n{gro}\nmax_length = 100\non_truncate = '{policy}'"))
            .file("archive", "in.log")
            .start();
        let socket = socket();
        for size in [99, 101, 100] {
            socket.send_to(&vec![b'x'; size], address).expect("sent");
        }
        daemon.until_received(3);
        let ended = daemon.end(3);
        let listener = ended.listener();
        assert_eq!(count(listener, "truncated"), 1, "{policy}");
        assert_eq!(sum(&listener["dropped"]), dropped, "{policy}");
        assert_eq!(count(&listener["dropped"], "truncated"), dropped, "{policy}");
        assert_eq!(count(&listener["sinks"][0], "delivered"), delivered, "{policy}");
        let text = ended.read("in.log");
        let marked = [b"x".repeat(100), b"\\~101".to_vec()].concat();
        let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
        assert_eq!(lines.iter().filter(|line| **line == marked).count(), delivered as usize - 2, "{policy}");
        assert!(lines.iter().all(|line| line.len() <= 100 || **line == marked), "{policy}");
    }
}

#[test]
fn several_listeners_share_a_sink_and_each_has_its_own_counts() {
    let (first, second) = (free_address(), free_address());
    let setup = Setup::at(first).named("one").file("archive", "{listener}.log");
    let daemon = setup.also("two", second, &["archive"]).start();
    let socket = socket();
    for (address, text) in [(first, "to one"), (second, "to two"), (second, "to two again")] {
        socket.send_to(text.as_bytes(), address).expect("sent");
    }
    daemon.stats_when("all are delivered", |ledger| {
        list(ledger, "listeners").iter().map(|listener| count(&listener["sinks"][0], "delivered")).sum::<u64>() == 3
    });
    let ended = daemon.end(3);
    assert_eq!(count(&ended.ledger["listeners"][1]["sinks"][0], "delivered"), 2);
    assert_eq!(ended.read("one.log"), b"to one\n");
    assert_eq!(ended.read("two.log"), b"to two\nto two again\n");
}
