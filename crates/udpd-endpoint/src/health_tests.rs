//! The health address as balancers see it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;

use super::*;

fn readiness(ready: bool) -> ReadinessSnapshot {
    let (reason, text) = if ready { ("ready", "udpd is ready") } else { ("draining", "udpd was told to leave") };
    ReadinessSnapshot { ready, reason: reason.into(), text: text.into(), since: 0.0 }
}

fn serve(by_readiness: bool) -> (SocketAddr, HealthBoard, HealthHandle) {
    // A port that the kernel has chosen goes back to it when the socket is shut down; no configuration has port 0.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|own| own.local_addr()).unwrap();
    let server = HealthServer::bind("health_address", free, by_readiness).unwrap();
    let (address, board) = (server.listener.local_addr().unwrap(), HealthBoard::new(&readiness(true)));
    let handle = server.serve(&ThreadRegistry::new().0, &board).unwrap();
    (address, board, handle)
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    io::read_to_string(client).unwrap()
}

#[test]
fn it_says_in_a_word_and_a_sentence_whether_to_send_here_to_requests_as_balancers_write_them() {
    let (address, board, handle) = serve(false);
    for request in [
        "GET /ready HTTP/1.1\r\nHost: anything\r\n\r\n",
        "OPTIONS /ready HTTP/1.0\r\n\r\n",
        "GET /ready?x HTTP/1.0\n\n",
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nready\n"), "{answer}");
    }
    board.publish(&readiness(false));
    let answer = ask(address, "GET /ready HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    let body = "draining\nudpd was told to leave\n";
    assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
    let head = ask(address, "HEAD /ready HTTP/1.1\r\n\r\n");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())) && head.ends_with("\r\n\r\n"), "{head}");
    assert!(ask(address, "GET /live HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"), "it lives while it drains");
    for (request, status) in
        [("GET / HTTP/1.1", 404), ("POST /ready HTTP/1.1", 405), ("ready", 400), ("GET /ready", 400)]
    {
        let answer = ask(address, &format!("{request}\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    handle.stop();
}

#[test]
fn what_only_connects_is_refused_while_udpd_is_not_ready_on_the_same_port_again_and_again() {
    let (address, _board, handle) = serve(true);
    let follow = handle.follower();
    let connects = || TcpStream::connect(address).map(drop).map_err(|error| error.kind());
    assert_eq!(connects(), Err(ErrorKind::ConnectionRefused), "udpd starts");
    for _ in 0..20 {
        follow(true);
        assert_eq!(connects(), Ok(()));
        assert!(ask(address, "GET /ready HTTP/1.1\r\n\r\n").contains("ready\n"));
        follow(false);
        assert_eq!(connects(), Err(ErrorKind::ConnectionRefused));
    }
    handle.stop();
}

#[test]
fn slow_clients_in_any_number_keep_no_check_out() {
    let (address, _board, handle) = serve(false);
    let mut slow = Vec::new();
    for round in 0..2 * LIMITS.held_max {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET /ready HTTP/1.1\r\nX: ").unwrap();
        slow.push(client);
        if round % 16 == 0 {
            assert!(ask(address, "GET /ready HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"), "{round}");
        }
    }
    let mut oldest = slow.swap_remove(0);
    assert!(matches!(oldest.read(&mut [0]), Ok(0) | Err(_)), "it gave way");
    handle.stop();
}

#[test]
fn a_process_that_takes_over_binds_the_address_beside_the_one_that_runs_and_no_check_is_refused() {
    let (address, board, old) = serve(false);
    let failure = HealthServer::bind("health_address", address, false).expect_err("another daemon shares no address");
    assert!(failure.message.contains(&format!("health_address = \"{address}\"")), "{failure}");
    let new = HealthServer::bind_beside("health_address", address, false).expect("beside it");
    assert!(ask(address, "GET /ready HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"), "the old one answers");
    let new = new.serve(&ThreadRegistry::new().0, &board).unwrap();
    old.stop();
    assert!(ask(address, "GET /ready HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"), "the new one answers");
    new.stop();
}
