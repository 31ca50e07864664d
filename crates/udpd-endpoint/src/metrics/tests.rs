//! The metrics address as its clients see it: scrapers, browsers, foreign sites and clients that send any bytes.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::*;
use udpd_base::exit::ExitCode;
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::testing::example;
use udpd_base::os::threads::ThreadRegistry;

fn serve() -> (SocketAddr, MetricsHandle) {
    serve_with(None, Ipv4Addr::LOCALHOST)
}

fn serve_with(token: Option<&Path>, ip: Ipv4Addr) -> (SocketAddr, MetricsHandle) {
    let server = MetricsServer::bind((ip, 0).into()).unwrap();
    let address = (Ipv4Addr::LOCALHOST, server.address().port()).into();
    let token = token.map(|path| TokenFile::read(path).unwrap());
    (address, server.serve(&ThreadRegistry::new().0, token, None, example, Vec::new).unwrap())
}

fn asked(address: SocketAddr, request: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request).unwrap();
    client
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    io::read_to_string(asked(address, request)).unwrap()
}

fn get(address: SocketAddr, path: &str, fields: &str) -> String {
    let host = if fields.contains("Host:") { "" } else { "Host: localhost\r\n" };
    ask(address, format!("GET {path} HTTP/1.1\r\n{host}{fields}\r\n").as_bytes())
}

#[track_caller]
fn assert_status(answer: &str, status: &str) {
    let reason = match status {
        "200" => "OK",
        "400" => "Bad Request",
        "401" => "Unauthorized",
        "403" => "Forbidden",
        "404" => "Not Found",
        "405" => "Method Not Allowed",
        "421" => "Misdirected Request",
        "431" => "Request Header Fields Too Large",
        "503" => "Service Unavailable",
        _ => panic!("{status} is no answer of udpd"),
    };
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} {reason}\r\n")), "{status} was expected: {answer:.400}");
}

#[test]
fn a_scrape_gets_the_whole_exposition_and_its_length() {
    let (address, handle) = serve();
    let answer = get(address, "/metrics", "Host: localhost\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_status(head, "200");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert_eq!(body, exposition(&example()));
    handle.stop();
}

#[test]
fn any_other_request_gets_the_status_that_says_why() {
    let (address, handle) = serve();
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
        ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
        ("GET /metrics/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
        ("GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
        ("GET /metrics?name=x HTTP/1.0\nHost: localhost\n\n", "200"),
        ("GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "200"),
        ("GET /metrics\r\nHost: localhost\r\n\r\n", "400"),
        ("GET /metrics HTTP/2\r\nHost: localhost\r\n\r\n", "400"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "400"),
        ("GET /metrics HTTP/1.0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost : evil.example\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "400"),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"),
        ("\r\n\r\n", "400"),
        ("\u{16}\u{3}\u{1} hello TLS \r\n\r\n", "400"),
    ] {
        assert_status(&ask(address, request.as_bytes()), status);
    }
    assert!(ask(address, b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n").contains("Allow: GET, HEAD\r\n"));
    let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(200_000));
    assert_status(&ask(address, huge.as_bytes()), "431");
    handle.stop();
}

#[test]
fn head_gets_what_get_would_without_the_body() {
    let (address, handle) = serve();
    for path in ["/", "/metrics", "/nothing"] {
        let answer = get(address, path, "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(
            ask(address, format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()),
            format!("{head}\r\n\r\n")
        );
        assert!(!body.is_empty());
    }
    handle.stop();
}

#[test]
fn every_answer_forbids_what_it_does_not_need() {
    let (address, handle) = serve();
    for path in ["/", "/metrics", "/history", "/alive", "/nothing"] {
        let answer = get(address, path, "");
        let ancestors = if path == "/alive" { "frame-ancestors 'self'" } else { "frame-ancestors 'none'" };
        for field in [
            "Content-Security-Policy: default-src 'none'; ",
            ancestors,
            "X-Content-Type-Options: nosniff\r\n",
            "Referrer-Policy: no-referrer\r\n",
            "Cache-Control: no-store\r\n",
            "Connection: close\r\n",
        ] {
            assert!(answer.contains(field), "{path} has no {field}: {answer:.900}");
        }
    }
    handle.stop();
}

#[test]
fn the_stream_is_the_ledger_as_a_line_of_json_with_every_second() {
    let (address, handle) = serve();
    let mut stream = BufReader::new(asked(address, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let mut lines = stream.by_ref().lines().map(Result::unwrap);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert_eq!(head[0], "HTTP/1.1 200 OK");
    assert!(head.iter().all(|field| !field.starts_with("Content-Length")), "{head:?}");
    for line in lines.take(2) {
        assert_eq!(serde_json::from_str::<Snapshot>(&line).unwrap(), example());
    }
    handle.stop();
}

#[test]
fn pages_too_many_are_told_so_and_a_scrape_is_answered_beside_them() {
    let (address, handle) = serve();
    let mut streams: Vec<_> =
        (0..4).map(|_| BufReader::new(asked(address, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"))).collect();
    for stream in &mut streams {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_status(&line, "200");
    }
    let refused = get(address, "/stream", "");
    assert_status(&refused, "503");
    assert!(refused.contains("Retry-After: "), "{refused}");
    assert_status(&get(address, "/", ""), "200");
    assert_status(&get(address, "/metrics", ""), "200");
    handle.stop();
}

#[test]
fn the_history_comes_in_the_steps_that_are_asked_for() {
    let (address, handle) = serve();
    for (path, step) in [("/history", 10), ("/history?step=1", 1), ("/history?step=0", 1), ("/history?step=x", 10)] {
        let answer = get(address, path, "");
        let json: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(json["step_seconds"], step, "{path}");
    }
    handle.stop();
}

#[test]
fn with_a_token_nothing_is_to_be_had_without_it_not_even_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    fs::write(&path, "0123456789abcdef\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let (address, handle) = serve_with(Some(&path), Ipv4Addr::LOCALHOST);
    for path in ["/", "/metrics", "/ledger", "/stream", "/history", "/alive", "/nothing"] {
        let answer = get(address, path, "Host: localhost\r\nAuthorization: Bearer wrong-wrong-wrong\r\n");
        assert_status(&answer, "401");
        assert!(answer.contains("WWW-Authenticate: Basic realm=\"udpd\""), "{answer}");
    }
    let bearer = "Authorization: Bearer 0123456789abcdef\r\n";
    let basic = "Authorization: Basic YW55OjAxMjM0NTY3ODlhYmNkZWY=\r\n";
    for fields in [bearer, basic] {
        assert_status(&get(address, "/metrics", fields), "200");
        // No foreign site has the token, so any name will do.
        assert_status(&get(address, "/", &format!("Host: udpd.example.net\r\n{fields}")), "200");
    }
    assert_status(&get(address, "/nothing", bearer), "404");
    handle.stop();
}

#[test]
fn by_a_foreign_name_a_browser_gets_nothing_and_a_scraper_on_another_host_its_metrics() {
    let foreign = "Host: rebound.example:9817\r\n";
    let (local, handle) = serve();
    for path in ["/", "/metrics", "/ledger", "/stream", "/history"] {
        assert_status(&get(local, path, foreign), "421");
    }
    assert_status(&get(local, "/metrics", "Host: 127.0.0.1:9817\r\n"), "200");
    handle.stop();
    let (public, handle) = serve_with(None, Ipv4Addr::UNSPECIFIED);
    assert_status(&get(public, "/metrics", foreign), "200");
    assert_status(&get(public, "/", foreign), "421");
    handle.stop();
}

#[test]
fn scripts_of_other_sites_get_no_numbers_and_take_no_place() {
    let (address, handle) = serve();
    for site in ["cross-site", "same-site"] {
        for path in ["/ledger", "/stream", "/history", "/alive"] {
            assert_status(&get(address, path, &format!("Sec-Fetch-Site: {site}\r\n")), "403");
        }
        // A link on another site may lead to the page.
        assert_status(&get(address, "/", &format!("Sec-Fetch-Site: {site}\r\n")), "200");
    }
    assert_status(&get(address, "/history", "Sec-Fetch-Site: same-origin\r\n"), "200");
    handle.stop();
}

#[test]
fn neither_a_silent_nor_a_dripping_client_keeps_the_next_one_out() {
    let (address, handle) = serve();
    let _silent = TcpStream::connect(address).unwrap();
    let mut dripping = TcpStream::connect(address).unwrap();
    // Drips until the server hangs up, which it does only if dripping buys no time.
    let drips = thread::spawn(move || {
        while dripping.write_all(b"G").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert_status(&get(address, "/metrics", ""), "200");
    handle.stop();
    drips.join().unwrap();
}

#[test]
fn an_address_in_use_names_the_key_and_the_cure() {
    let server = MetricsServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let failure = MetricsServer::bind(server.address()).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    for part in ["metrics_address", &server.address().to_string(), "ss -ltnp", "another port"] {
        assert!(failure.message.contains(part), "{failure} says nothing of {part}");
    }
}

#[test]
fn an_address_of_another_host_is_unavailable() {
    let failure = MetricsServer::bind("192.0.2.1:9817".parse().unwrap()).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("192.0.2.1:9817"), "{failure}");
}
