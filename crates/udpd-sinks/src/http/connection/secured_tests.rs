//! Connections by TLS, with tokens and passwords, through a proxy, and to servers whose address changes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::{HttpSettings, Pair, parse_url};
use super::connector::RequestWatch;
use super::credentials::Credentials;
use super::exchange::{Exchange, ExchangeTrouble};
use super::testing::{Reply, TestServer, batch, connections, finished, to};
use crate::target::DestinationTarget;
use crate::tcp::tls_tests::{file, server};
use udpd_base::os::host_names::FollowedName;

fn by_tls(address: SocketAddr, authority: &str) -> HttpSettings {
    HttpSettings { ca_file: Some(file(authority)), ..to(&format!("https://{address}/in")) }
}

fn exchange_with(settings: &HttpSettings, target: DestinationTarget) -> Exchange {
    let client = settings.tls().client().expect("it can be had");
    Exchange::new(settings, client, Arc::new(target), Arc::new(RequestWatch::default())).expect("it can be had")
}

/// Sends one request, and returns the status of its answer.
fn ask(exchange: &Exchange, settings: &HttpSettings) -> Result<u16, ExchangeTrouble> {
    exchange.send(&settings.url.text, "text/plain", None, b"one\n", &mut Vec::new()).map(|head| head.status)
}

/// The trouble of the only request.
fn trouble(settings: &HttpSettings) -> ExchangeTrouble {
    let Some(peer) = settings.peer() else { panic!("it names a host") };
    let udpd_base::text::address::PeerAddress::Address(address) = peer else { panic!("{peer} is no address") };
    let target = DestinationTarget::At(*address);
    ask(&exchange_with(settings, target), settings).expect_err("it is refused")
}

#[test]
fn by_tls_one_connection_carries_many_batches_also_where_the_server_asks_for_a_certificate() {
    for asks in [false, true] {
        let replies = (0..10).map(|_| Reply::taken()).collect();
        let own = asks.then(|| file("client"));
        let server = TestServer::listen("127.0.0.1:0", replies, Some(server("server", asks)));
        let settings = HttpSettings { certificate_file: own.clone(), key_file: own, ..by_tls(server.address, "ca") };
        let mut connections = connections(&settings);
        let long = "x".repeat(300_000);
        for ticket in 0..10 {
            connections.send(ticket, batch(&[&long, "short"]));
            assert_eq!(finished(&mut connections).repeated, 0);
        }
        drop(connections);
        let (seen, count) = server.end();
        assert_eq!((seen.len(), count), (10, 1));
        assert!(seen.iter().all(|request| request.body.len() == 300_007));
    }
}

#[test]
fn a_server_that_is_not_trusted_gets_no_request_and_the_cure_is_named() {
    let cases =
        [("expired", "ca", "a new certificate"), ("misnamed", "ca", "into url"), ("server", "other_ca", "tls_ca_file")];
    for (name, authority, cure) in cases {
        let server = TestServer::listen("127.0.0.1:0", Vec::new(), Some(server(name, false)));
        let found = trouble(&by_tls(server.address, authority));
        assert!(found.cure.contains(cure) && !found.is_doubtful, "{name}: {found:?}");
        assert!(server.end().0.is_empty(), "{name}");
    }
}

#[test]
fn a_server_that_asks_for_a_certificate_gets_no_request_without_one() {
    let server = TestServer::listen("127.0.0.1:0", Vec::new(), Some(server("server", true)));
    let found = trouble(&by_tls(server.address, "ca"));
    assert!(found.cure.contains("tls_certificate_file") && !found.is_doubtful, "{found:?}");
    assert!(server.end().0.is_empty());
}

/// A server that answers the first bytes of a client with these, and nothing else.
fn says(answer: &'static [u8]) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serve = move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_exact(&mut [0; 1]).expect("it says hello");
        stream.write_all(answer).expect("written");
        // With unread bytes the kernel would reset the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    (address, std::thread::spawn(serve))
}

#[test]
fn a_server_that_speaks_no_tls_or_only_an_old_one_or_nothing_else_is_told_apart() {
    // An alert by which a server refuses the versions that it was offered.
    let alert = b"\x15\x03\x01\x00\x02\x02\x46";
    for (answer, cure) in
        [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "does not speak TLS"), (alert, "neither TLS 1.2 nor 1.3")]
    {
        let (address, server) = says(answer);
        let found = trouble(&by_tls(address, "ca"));
        assert!(found.cure.contains(cure) && !found.is_doubtful, "{found:?}");
        server.join().expect("no panic");
    }
    let server = TestServer::listen("127.0.0.1:0", Vec::new(), Some(server("server", false)));
    let found = trouble(&to(&server.url()));
    assert!(found.what.contains("HTTP") || found.what.contains("closed"), "{found:?}");
    assert!(server.end().0.is_empty());
}

#[test]
fn what_cannot_be_reached_is_named_with_its_cure_and_is_not_in_doubt() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let found = trouble(&to(&format!("http://{address}/")));
    assert!(found.what.starts_with("cannot be reached: Connection refused"), "{found:?}");
    assert_eq!((found.cure, found.is_doubtful, found.is_stale), ("; start what listens there", false, false));
}

#[test]
fn of_several_addresses_the_first_that_accepts_is_used_and_one_that_a_name_gets_later_too() {
    let gone = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let first = TestServer::start(vec![Reply::Closing(Box::new(Reply::taken()))]);
    let second = TestServer::start(vec![Reply::taken()]);
    let name = FollowedName::known(vec![gone, first.address]);
    let settings = to("http://collector.example/in");
    let exchange = exchange_with(&settings, DestinationTarget::Named(name.clone()));
    assert_eq!(ask(&exchange, &settings).expect("an answer"), 200);
    name.set(vec![second.address]);
    // The end of the first connection may be noticed late.
    let answer = ask(&exchange, &settings).or_else(|trouble| {
        assert!(trouble.is_stale, "{trouble:?}");
        ask(&exchange, &settings)
    });
    assert_eq!(answer.expect("an answer"), 200);
    drop(exchange);
    let [first, second] = [first, second].map(|server| server.end().0);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(second[0].header("host"), Some("collector.example"));
    let unknown = exchange_with(&settings, DestinationTarget::Named(FollowedName::known(Vec::new())));
    let found = ask(&unknown, &settings).expect_err("no address");
    assert!(found.what.contains("no resolver has given its address yet") && !found.is_stale, "{found:?}");
}

/// A proxy that makes one connection, and returns what it was asked for.
fn proxy(to: SocketAddr) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serve = move || {
        let mut client = BufReader::new(listener.accept().expect("a connection").0);
        let mut asked = String::new();
        while !asked.ends_with("\r\n\r\n") {
            client.read_line(&mut asked).expect("a line");
        }
        let mut client = client.into_inner();
        client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").expect("written");
        let server = TcpStream::connect(to).expect("a connection");
        let (mut from_server, mut to_client) = (server.try_clone().expect("it"), client.try_clone().expect("it"));
        let back = std::thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
        let _ = std::io::copy(&mut client, &mut &server);
        let _ = server.shutdown(std::net::Shutdown::Both);
        let _ = back.join().expect("no panic");
        asked.lines().next().unwrap_or_default().to_owned()
    };
    (address, std::thread::spawn(serve))
}

#[test]
fn a_proxy_makes_the_connection_and_sees_nothing_of_what_tls_carries() {
    for is_tls in [false, true] {
        let tls = is_tls.then(|| server("server", false));
        let server = TestServer::listen("127.0.0.1:0", vec![Reply::taken(), Reply::taken()], tls);
        let (address, asked) = proxy(server.address);
        let settings = if is_tls { by_tls(server.address, "ca") } else { to(&server.url()) };
        let proxy = Some(parse_url(&format!("http://{address}")).expect("a URL"));
        let mut connections = connections(&HttpSettings { proxy, ..settings });
        for ticket in 0..2 {
            connections.send(ticket, batch(&["one"]));
            assert_eq!(finished(&mut connections).repeated, 0);
        }
        drop(connections);
        assert_eq!(asked.join().expect("no panic"), format!("CONNECT {} HTTP/1.1", server.address));
        let (seen, count) = server.end();
        assert_eq!((seen.len(), count), (2, 1));
    }
}

#[test]
fn a_token_that_was_renewed_is_read_again_when_the_server_refuses_the_one_before() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    fs::write(&path, "first token \n").expect("written");
    let renewed = path.clone();
    let renew = move || fs::write(&renewed, "second token\n").expect("written");
    let (release, released) = channel();
    let replies = vec![
        Reply::taken(),
        Reply::Doing(Box::new(renew), Box::new(Reply::status(401))),
        Reply::taken(),
        // Now the file holds no other.
        Reply::status(403),
        Reply::After(released, Box::new(Reply::taken())),
    ];
    let server = TestServer::start(replies);
    let mut connections = connections(&HttpSettings { token_file: Some(path), ..to(&server.url()) });
    for ticket in 0..2 {
        connections.send(ticket, batch(&["one"]));
        assert_eq!(finished(&mut connections).repeated, 0);
    }
    connections.send(2, batch(&["two"]));
    server.until_seen(5);
    assert!(connections.take_report().is_none(), "nothing is dropped that a server will have with the right token");
    release.send(()).expect("it waits");
    assert_eq!(finished(&mut connections).repeated, 0);
    drop(connections);
    let (seen, _) = server.end();
    let said: Vec<&str> = seen.iter().map(|request| request.header("authorization").expect("a header")).collect();
    let [first, second] = ["Bearer first token", "Bearer second token"];
    assert_eq!(said, [first, first, second, second, second]);
}

#[test]
fn a_name_and_a_password_go_in_base64_and_no_secret_is_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("password");
    fs::write(&path, "open sesame\n").expect("written");
    let server = TestServer::start(vec![Reply::taken()]);
    let header = Pair { name: "X-Api-Key".to_owned(), value: "0123456789".to_owned() };
    let (username, password_file) = ("Aladdin".to_owned(), Some(path.clone()));
    let settings = HttpSettings { username, password_file, headers: vec![header], ..to(&server.url()) };
    let mut own = connections(&settings);
    own.send(0, batch(&["one"]));
    finished(&mut own);
    assert!(!format!("{own:?}").contains("0123456789"));
    drop(own);
    let (seen, _) = server.end();
    assert_eq!(seen[0].header("authorization"), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), "as in RFC 7617");
    assert_eq!(seen[0].header("x-api-key"), Some("0123456789"));
    let credentials = Credentials::read(&settings).expect("read");
    let line = credentials.clean("no such user: open sesame, QWxhZGRpbjpvcGVuIHNlc2FtZQ==, 0123456789");
    assert_eq!(line, "no such user: (not shown), (not shown), (not shown)");
    let shown = format!("{credentials:?} {:?} {:?}", credentials.header(), exchange_of(&settings));
    assert!(!["sesame", "QWxh", "0123456789"].iter().any(|secret| shown.contains(secret)), "{shown}");
    fs::write(&path, "").expect("written");
    let why = Credentials::read(&settings).expect_err("no password");
    assert!(why.starts_with("password_file = \"/") && why.ends_with("write the secret into it"), "{why}");
}

fn exchange_of(settings: &HttpSettings) -> Exchange {
    exchange_with(settings, DestinationTarget::At("127.0.0.1:1".parse().expect("an address")))
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_after_the_time_that_is_set() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    for (url, authority) in [(format!("http://{address}/"), None), (format!("https://{address}/"), Some(file("ca")))] {
        let timeout = Duration::from_millis(200);
        let found = trouble(&HttpSettings { timeout, ca_file: authority.clone(), ..to(&url) });
        assert!(found.what.ends_with("within 200ms"), "{found:?}");
        assert_eq!(found.is_doubtful, authority.is_none(), "before the handshake is over nothing is sent");
    }
}

#[test]
fn a_server_behind_a_proxy_that_is_not_trusted_or_not_let_through_gets_no_request() {
    let server = TestServer::listen("127.0.0.1:0", Vec::new(), Some(server("server", false)));
    let (address, carried) = proxy(server.address);
    let through = |address| Some(parse_url(&format!("http://{address}")).expect("a URL"));
    let found = trouble(&HttpSettings { proxy: through(address), ..by_tls(server.address, "other_ca") });
    assert!(found.cure.contains("tls_ca_file") && !found.is_doubtful, "{found:?}");
    carried.join().expect("no panic");
    let (refusing, refused) = says(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    let found = trouble(&HttpSettings { proxy: through(refusing), ..by_tls(server.address, "ca") });
    assert!(!found.is_doubtful, "{found:?}");
    refused.join().expect("no panic");
    assert!(server.end().0.is_empty());
}
