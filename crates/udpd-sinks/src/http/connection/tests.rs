//! Connections against servers on loopback that are slow, rude, or gone. Servers say what they got.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::super::request::{BatchOutcome, RefusedRecord};
use super::super::{HttpProfile, HttpSettings};
use super::testing::{Ended, Reply, TestServer, batch, connections, finished, to, token, until};
use udpd_base::codec::{Method, unpacked};

/// What a decided batch has: the places that were refused, and how many were sent again that may have arrived before.
fn decided(finished: &Ended) -> (Vec<usize>, u64) {
    match &finished.outcome {
        BatchOutcome::Decided { refused } => {
            (refused.iter().map(|RefusedRecord { place, .. }| *place).collect(), finished.repeated)
        }
        BatchOutcome::Undecided => panic!("it is undecided: {finished:?}"),
    }
}

fn is_undecided(finished: &Ended) -> bool {
    matches!(finished.outcome, BatchOutcome::Undecided)
}

#[test]
fn one_connection_carries_many_batches_and_each_comes_back_with_its_ticket() {
    const COUNT: u64 = 50;
    let server = TestServer::start((0..COUNT).map(|_| Reply::taken()).collect());
    let mut connections = connections(&to(&server.url()));
    for ticket in 0..COUNT {
        connections.send(ticket, batch(&[&format!("record {ticket}"), "another"]));
        let finished = finished(&mut connections);
        assert_eq!((finished.ticket, decided(&finished)), (ticket, (vec![], 0)));
        assert_eq!(finished.batch.records(), 2, "the batch comes back");
    }
    drop(connections);
    let (seen, count) = server.end();
    assert_eq!(count, 1);
    let bodies: Vec<&str> = seen.iter().map(|request| request.text()).collect();
    let expected: Vec<String> = (0..COUNT).map(|ticket| format!("record {ticket}\nanother\n")).collect();
    assert_eq!(bodies, expected);
    let first = &seen[0];
    assert!(first.head.starts_with("POST /in HTTP/1.1\n"), "{}", first.head);
    assert_eq!(first.header("user-agent"), Some(concat!("udpd/", env!("CARGO_PKG_VERSION"))));
    assert_eq!((first.header("accept-encoding"), first.header("transfer-encoding")), (None, None));
}

#[test]
fn several_connections_have_a_batch_each_on_the_way() {
    let (first, released_first) = channel();
    let (second, released_second) = channel();
    let replies = vec![
        Reply::After(released_first, Box::new(Reply::taken())),
        Reply::After(released_second, Box::new(Reply::taken())),
    ];
    let server = TestServer::start(replies);
    let mut connections = connections(&HttpSettings { connections: 2, ..to(&server.url()) });
    connections.send(1, batch(&["one"]));
    server.until_seen(1);
    connections.send(2, batch(&["two"]));
    server.until_seen(2);
    assert!(connections.take_report().is_none(), "neither has an answer");
    second.send(()).expect("it waits");
    assert_eq!(finished(&mut connections).ticket, 2);
    first.send(()).expect("it waits");
    assert_eq!(finished(&mut connections).ticket, 1);
    drop(connections);
    assert_eq!(server.end().1, 2);
}

#[test]
fn a_request_that_may_have_arrived_without_an_answer_is_sent_again_and_counts_as_repeated() {
    let replies = [
        ("closed before the answer", Reply::Raw("")),
        ("closed within its head", Reply::Raw("HTTP/1.1 200 O")),
        ("closed within its body", Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nagain")),
        ("garbage", Reply::Raw("220 mail.example ESMTP\r\n")),
        ("no HTTP at all", Reply::Raw("\0\u{1}\u{2}\r\n\r\n")),
        ("a head without end", Reply::Drip("HTTP/1.1 200 OK\r\nX-Long: ")),
        ("a body without end", Reply::Drip("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")),
    ];
    for (what, reply) in replies {
        let server = TestServer::start(vec![reply, Reply::taken()]);
        let timeout = Duration::from_millis(300);
        let mut connections = connections(&HttpSettings { timeout, ..to(&server.url()) });
        connections.send(0, batch(&["one", "two", "three"]));
        assert_eq!(decided(&finished(&mut connections)), (vec![], 3), "{what}");
        drop(connections);
        let (seen, count) = server.end();
        assert_eq!((seen.len(), count), (2, 2), "{what}");
        assert_eq!(seen[0].text(), seen[1].text(), "{what}");
    }
}

#[test]
fn an_answer_of_not_now_is_obeyed_and_nothing_counts_as_repeated() {
    let answers = [
        Reply::status(503),
        Reply::Answer(429, "Retry-After: 1\r\n", String::new()),
        Reply::Answer(307, "Location: http://127.0.0.1:1/elsewhere\r\n", String::new()),
    ];
    let server = TestServer::start(answers.into_iter().chain([Reply::taken()]).collect());
    let mut connections = connections(&to(&server.url()));
    connections.send(0, batch(&["one", "two"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    let (seen, count) = server.end();
    assert_eq!((seen.len(), count), (4, 1), "also a redirect is an answer, and is not followed");
}

#[test]
fn a_batch_that_is_refused_for_good_is_not_sent_again() {
    let server = TestServer::start(vec![Reply::Answer(400, "", "no such table".to_owned()), Reply::taken()]);
    let mut connections = connections(&to(&server.url()));
    connections.send(0, batch(&["one", "two"]));
    let refused = finished(&mut connections);
    assert_eq!(decided(&refused), (vec![0, 1], 0));
    let BatchOutcome::Decided { refused } = refused.outcome else { panic!("it is decided") };
    assert_eq!(refused[1], RefusedRecord { place: 1, reason: "no such table".to_owned() });
    connections.send(1, batch(&["three"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    let (seen, count) = server.end();
    assert_eq!((seen.len(), count), (2, 1));
}

#[test]
fn only_the_records_that_the_server_has_not_taken_are_sent_again_and_keep_their_places() {
    let replies = vec![
        Reply::Answer(200, "", "refused 1\nagain 0\nagain 3\nagain 4\n".to_owned()),
        Reply::Raw(""),
        // Of the three that were sent again.
        Reply::Answer(200, "", "refused 0\nagain 2\n".to_owned()),
        Reply::Answer(200, "", "refused 0\n".to_owned()),
    ];
    let server = TestServer::start(replies);
    let mut connections = connections(&to(&server.url()));
    connections.send(0, batch(&["r0", "r1", "r2", "r3", "r4"]));
    // Three may have arrived twice.
    assert_eq!(decided(&finished(&mut connections)), (vec![1, 0, 4], 3));
    drop(connections);
    let (seen, _) = server.end();
    let bodies: Vec<&str> = seen.iter().map(|request| request.text()).collect();
    assert_eq!(bodies, ["r0\nr1\nr2\nr3\nr4\n", "r0\nr3\nr4\n", "r0\nr3\nr4\n", "r4\n"]);
}

#[test]
fn a_batch_that_is_too_large_goes_in_halves_under_names_of_their_own_and_a_record_that_is_too_large_alone_is_refused() {
    let too_large = || Reply::status(413);
    // All five, the first two, each of those, and the other three, the first answer to which is lost.
    let replies = vec![
        too_large(),
        too_large(),
        Reply::taken(),
        too_large(),
        Reply::Raw(""),
        Reply::status(503),
        Reply::Answer(200, "", "refused 1\n".to_owned()),
        Reply::taken(),
    ];
    let server = TestServer::start(replies);
    let settings = HttpSettings { profile: HttpProfile::Clickhouse, ..to(&server.url()) };
    let mut connections = connections(&settings);
    connections.send(0, batch(&["r0", "r1", "r2", "r3", "r4"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![1, 3], 3));
    connections.send(1, batch(&["next"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    let (seen, _) = server.end();
    let sent: Vec<_> = seen.iter().map(|request| (token(request), request.text().replace('\n', " "))).collect();
    let expected = [
        ("0-5", "r0 r1 r2 r3 r4 "),
        ("0-2", "r0 r1 "),
        ("0-1", "r0 "),
        ("1-1", "r1 "),
        ("2-3", "r2 r3 r4 "),
        ("2-3", "r2 r3 r4 "),
        ("2-3", "r2 r3 r4 "),
        ("0-1", "next "),
    ];
    assert_eq!(sent, expected.map(|(name, body)| (format!("0000000000000000-{name}"), body.to_owned())));
}

#[test]
fn a_server_that_is_not_there_yet_gets_each_batch_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let mut connections = connections(&to(&format!("http://{address}/in")));
    connections.send(0, batch(&["one"]));
    // A connection that is refused is not seen by any server.
    assert!(connections.take_report().is_none());
    let server = TestServer::listen(&address.to_string(), vec![Reply::taken()], None);
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    assert_eq!(server.end().0.len(), 1);
}

#[test]
fn a_connection_that_the_server_has_closed_meanwhile_is_made_anew_at_once() {
    let replies = vec![Reply::Closing(Box::new(Reply::taken())), Reply::taken(), Reply::Raw(""), Reply::taken()];
    let server = TestServer::start(replies);
    let mut connections = connections(&to(&server.url()));
    connections.send(0, batch(&["one"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    connections.send(1, batch(&["two"]));
    let (_, repeats) = decided(&finished(&mut connections));
    assert!(repeats <= 1, "the end of a connection may come just then");
    // This one is closed when the server has the request, so it may have taken it.
    connections.send(2, batch(&["three", "four"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 2));
    drop(connections);
    let (seen, _) = server.end();
    let of_connections: Vec<usize> = seen.iter().map(|request| request.connection).collect();
    assert_eq!(of_connections, [0, 1, 1, 2]);
}

#[test]
fn a_compressed_body_is_the_same_when_it_is_unpacked_also_when_it_is_sent_again() {
    let replies =
        vec![Reply::status(503), Reply::Answer(200, "", "again 1\n".to_owned()), Reply::taken(), Reply::taken()];
    let server = TestServer::start(replies);
    let mut connections = connections(&HttpSettings { compress: Some(Method::Gzip), ..to(&server.url()) });
    let long = "a long record ".repeat(1000);
    connections.send(0, batch(&[&long, "two"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    connections.send(1, batch(&["three"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    let (seen, _) = server.end();
    let unpack = |body: &[u8]| {
        let mut text = String::new();
        unpacked(body).expect("gzip").read_to_string(&mut text).expect("whole");
        text
    };
    let bodies: Vec<String> = seen.iter().map(|request| unpack(&request.body)).collect();
    let all = format!("{long}\ntwo\n");
    assert_eq!(bodies, [&all, &all, "two\n", "three\n"]);
    assert!(seen.iter().all(|request| request.header("content-encoding") == Some("gzip")));
    assert!(seen[0].body.len() < long.len() / 10);
}

#[test]
fn after_the_stop_an_answer_still_decides_and_nothing_is_sent_again() {
    let (release, released) = channel();
    let server = TestServer::start(vec![Reply::After(released, Box::new(Reply::taken()))]);
    let mut own = connections(&to(&server.url()));
    own.send(0, batch(&["one"]));
    server.until_seen(1);
    own.stop();
    release.send(()).expect("it waits");
    assert_eq!(decided(&finished(&mut own)), (vec![], 0));
    drop(own);
    server.end();
    // What was handed over before has its one request.
    for reply in [Reply::Raw(""), Reply::status(503), Reply::Answer(200, "", "again 0".to_owned())] {
        let server = TestServer::start(vec![reply]);
        let mut own = connections(&to(&server.url()));
        own.send(0, batch(&["one"]));
        own.stop();
        assert!(is_undecided(&finished(&mut own)));
        drop(own);
        assert_eq!(server.end().0.len(), 1);
    }
}

#[test]
fn the_stop_ends_a_pause_and_an_interruption_ends_a_wait_for_an_answer() {
    let server = TestServer::start(vec![Reply::Answer(503, "Retry-After: 300\r\n", String::new())]);
    let mut own = connections(&to(&server.url()));
    own.send(0, batch(&["one"]));
    server.until_seen(1);
    own.stop();
    assert!(is_undecided(&finished(&mut own)));
    drop(own);
    server.end();
    let (_never, released) = channel();
    let server = TestServer::start(vec![Reply::After(released, Box::new(Reply::taken()))]);
    let mut own = connections(&to(&server.url()));
    own.send(0, batch(&["one", "two"]));
    server.until_seen(1);
    own.interrupt();
    let finished = finished(&mut own);
    assert!(is_undecided(&finished));
    assert_eq!((finished.batch.records(), finished.repeated), (2, 0), "it was sent once");
}

#[test]
fn a_sink_that_is_dropped_leaves_a_server_that_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut own = connections(&to(&format!("http://{}/in", listener.local_addr().expect("bound"))));
    own.send(0, batch(&["one"]));
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut first = [0; 4];
    stream.read_exact(&mut first).expect("a request");
    drop(own);
    stream.read_to_end(&mut Vec::new()).expect("its end");
    assert_eq!(&first, b"POST");
}

#[test]
fn a_long_answer_is_read_in_part_and_its_connection_is_left() {
    let answer = format!("refused 1\n{}", " ".repeat(3 << 20));
    let server = TestServer::start(vec![Reply::Answer(200, "", answer), Reply::taken()]);
    let mut connections = connections(&to(&server.url()));
    connections.send(0, batch(&["one", "two"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![1], 0));
    connections.send(1, batch(&["three"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    assert_eq!(server.end().1, 2);
}

#[test]
fn an_answer_that_comes_before_the_whole_body_was_read_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut connections = connections(&to(&format!("http://{}/in", listener.local_addr().expect("bound"))));
    // Longer than what both kernels hold.
    let long = "x".repeat(16 << 20);
    connections.send(0, batch(&[&long, "two"]));
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.read_exact(&mut [0; 1000]).expect("a beginning");
    stream.write_all(b"HTTP/1.1 400 Bad\r\nContent-Length: 8\r\n\r\ntoo long").expect("written");
    // With unread bytes the kernel resets the connection.
    drop(stream);
    assert_eq!(decided(&finished(&mut connections)), (vec![0, 1], 0));
    // It is not used again.
    connections.send(1, batch(&["three"]));
    let (mut stream, _) = listener.accept().expect("another connection");
    stream.read_exact(&mut [0; 4]).expect("a request");
}

#[test]
fn an_address_of_ipv6_is_reached() {
    let server = TestServer::listen("[::1]:0", vec![Reply::taken()], None);
    let mut connections = connections(&to(&server.url()));
    connections.send(0, batch(&["one"]));
    assert_eq!(decided(&finished(&mut connections)), (vec![], 0));
    drop(connections);
    let (seen, _) = server.end();
    assert!(seen[0].header("host").is_some_and(|host| host.starts_with("[::1]:")), "{}", seen[0].head);
}

#[test]
fn a_thread_that_has_nothing_to_do_ends_with_its_sink() {
    let (registry, _events) = udpd_base::os::threads::ThreadRegistry::new();
    let lookup = crate::target::Lookup { registry: &registry, every: Duration::from_secs(60), sink: "s", bound: &[] };
    let settings = HttpSettings { connections: 3, ..to("http://127.0.0.1:1/") };
    let own = super::HttpConnections::start(&settings, lookup, 7, Default::default()).expect("it starts");
    let mut names: Vec<String> = registry.statuses().iter().map(|status| status.name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["http7.0-s", "http7.1-s", "http7.2-s"]);
    drop(own);
    until("the threads have ended", || registry.statuses().is_empty());
}
