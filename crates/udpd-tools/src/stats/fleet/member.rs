//! A member of a fleet: where its ledger is, and how it is had, from a file or over HTTP.
//!
//! Whatever goes wrong is said of that member, in one line, and never taken for an empty ledger.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::clock;

/// For a member with all its streams. A member that hangs does not hold up the others.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Longer than the ledger with all streams of many listeners.
const ANSWER_MAX: u64 = 256 << 20;

/// Where `metrics_address` is by default.
const PORT: u16 = 9817;

/// A member and its ledger, or why it has none.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) ledger: Result<Value, String>,
}

/// Asks all of them at once.
pub(super) fn ask_all(members: &[String], limit: Duration) -> Vec<Member> {
    let (registry, _events) = ThreadRegistry::new();
    let begin = |member: &String| {
        let member = member.clone();
        registry.spawn("udpd-fleet", ThreadRole::Unconfined, move || ask(&member, limit))
    };
    let asked: Vec<_> = members.iter().map(begin).collect();
    let ended = |asked: io::Result<JoinHandle<_>>| {
        let asked = asked.map_err(|error| format!("cannot start a thread that asks it: {error}"))?;
        asked.join().unwrap_or_else(|_| Err("the thread that asked it has died, which is a bug of udpd".to_owned()))
    };
    let named = members.iter().zip(asked);
    // The file of a token is no part of the name.
    named.map(|(name, asked)| Member { name: without_token(name).0.to_owned(), ledger: ended(asked) }).collect()
}

fn ask(member: &str, limit: Duration) -> Result<Value, String> {
    let text = match member.strip_prefix("http://") {
        Some(place) => get(place, limit)?,
        None if member.contains("://") => return Err("only http:// is known; forward its port with ssh -L".to_owned()),
        None => fs::read(member).map_err(|error| format!("cannot read the file: {error}"))?,
    };
    let ledger: Value = serde_json::from_slice(&text).map_err(|error| format!("this is no ledger: {error}"))?;
    match (&ledger["version"], &ledger["listeners"]) {
        (Value::String(_), Value::Array(_)) => Ok(ledger),
        _ => Err("this is no ledger: it has no version, or no listeners".to_owned()),
    }
}

/// What stands before and behind the #.
fn without_token(member: &str) -> (&str, Option<&str>) {
    member.split_once('#').map_or((member, None), |(place, file)| (place, Some(file)))
}

/// Has what is at `HOST[:PORT][/PATH][#TOKEN_FILE]`.
fn get(place: &str, limit: Duration) -> Result<Vec<u8>, String> {
    let deadline = clock::now() + limit;
    let (place, token_file) = without_token(place);
    let (host, path) = place.find('/').map_or((place, ""), |slash| place.split_at(slash));
    let path = if matches!(path, "" | "/") { "/ledger" } else { path };
    let token = match token_file {
        Some(file) => {
            let token =
                fs::read_to_string(file).map_err(|error| format!("cannot read the token in {file}: {error}"))?;
            format!("Authorization: Bearer {}\r\n", token.trim())
        }
        None => String::new(),
    };
    let (address, mut stream) = connect(host, deadline)?;
    // By its address it answers whatever it is called in this network.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{token}Connection: close\r\n\r\n");
    let answer = exchange(&mut stream, request.as_bytes(), deadline)
        .map_err(|error| format!("no answer from {address} within {} s: {error}", limit.as_secs()))?;
    body_of(&answer)
}

fn connect(host: &str, deadline: Instant) -> Result<(SocketAddr, TcpStream), String> {
    let addresses = host.to_socket_addrs().or_else(|_| (host.trim_matches(['[', ']']), PORT).to_socket_addrs());
    let addresses = addresses.map_err(|error| format!("cannot look up {host}: {error}"))?;
    let mut why = format!("{host} has no address");
    for address in addresses {
        match left(deadline).and_then(|left| TcpStream::connect_timeout(&address, left)) {
            Ok(stream) => return Ok((address, stream)),
            Err(error) => why = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(why)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(clock::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Writes the request and reads all of the answer: the time that is left shrinks with each call.
fn exchange(stream: &mut TcpStream, request: &[u8], deadline: Instant) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(request)?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(answer),
            count if answer.len() as u64 + count as u64 > ANSWER_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
}

fn body_of(answer: &[u8]) -> Result<Vec<u8>, String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("its answer is no HTTP")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let body = &answer[end + 4..];
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1.")?.get(2..)).unwrap_or("no status");
    match status.get(..3) {
        Some("200") => {}
        Some("401") => return Err("it asks for a token: write its URL as http://HOST:PORT#TOKEN_FILE".to_owned()),
        Some("404") => return Err("it has no /ledger: it is an older udpd, or another program".to_owned()),
        _ => return Err(format!("it answers {status}")),
    }
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    };
    match head.lines().find_map(field) {
        Some(length) if length != body.len() => Err(format!("its answer ends after {} of {length} bytes", body.len())),
        _ => Ok(body.to_vec()),
    }
}
