//! Streams: pieces with every beat, places that they cannot take, and followers that are slow, mute or gone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use super::tests::{BIG_BYTES, PATIENT};
use super::*;
use udpd_base::os::threads::ThreadRegistry;

/// Streams to who says "follow", and answers others with what they say. With every beat comes the next number, on a
/// line of this length.
struct Ticker {
    limits: Limits,
    line_bytes: usize,
    number: u64,
}

impl Protocol for Ticker {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&byte| byte == b'\n')
    }

    fn reply(&mut self, question: Question<'_>, asker: &Asker<'_>) -> Reply {
        match question {
            Question::Whole(b"follow") if asker.has_place_for_stream() => Reply::Stream(b"first\n".into()),
            Question::Whole(b"big guest") if asker.has_place_for_guest() => Reply::Guest(vec![b'x'; BIG_BYTES]),
            Question::Whole(b"follow" | b"big guest") => Reply::Now(b"full".into()),
            Question::Whole(b"big") => Reply::Now(vec![b'x'; BIG_BYTES]),
            Question::Whole(line) => Reply::Now(line.to_vec()),
            Question::TooLong => Reply::Now(b"too long".into()),
        }
    }

    fn beat(&mut self, has_streams: bool) -> Option<Arc<[u8]>> {
        self.number += 1;
        let zeros = "0".repeat(self.line_bytes);
        has_streams.then(|| format!("{zeros}{}\n", self.number).into_bytes().into())
    }
}

const BEATING: Limits = Limits { beat: Some(Duration::from_millis(1)), ..PATIENT };

fn serve(limits: Limits, line_bytes: usize) -> (SocketAddr, Service<TcpListener>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ticker = Ticker { limits, line_bytes, number: 0 };
    (address, Service::start("udpd-test", listener, &ThreadRegistry::new().0, ticker).unwrap())
}

fn asked(address: SocketAddr, question: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(question.as_bytes()).unwrap();
    client
}

fn ask(address: SocketAddr, question: &str) -> String {
    io::read_to_string(asked(address, question)).unwrap()
}

/// A follower whose first piece is there.
fn follower(address: SocketAddr) -> BufReader<TcpStream> {
    let mut follower = BufReader::new(asked(address, "follow\n"));
    assert_eq!(next_line(&mut follower), "first");
    follower
}

fn next_line(follower: &mut impl BufRead) -> String {
    let mut line = String::new();
    follower.read_line(&mut line).unwrap();
    assert_eq!(line.pop(), Some('\n'), "the stream has ended");
    line
}

fn next_number(follower: &mut impl BufRead) -> u64 {
    next_line(follower).parse().expect("a whole piece")
}

#[test]
fn every_follower_gets_the_same_pieces_in_their_order() {
    let (address, service) = serve(BEATING, 10);
    let mut followers = [follower(address), follower(address)];
    for follower in &mut followers {
        let numbers: Vec<u64> = (0..50).map(|_| next_number(follower)).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }
    service.stop();
}

#[test]
fn streams_and_guests_have_their_places_and_questions_find_the_others() {
    let (address, service) = serve(BEATING, 10);
    let mut followers: Vec<_> = (0..BEATING.streams_max).map(|_| follower(address)).collect();
    assert_eq!(ask(address, "follow\n"), "full");
    let mut guest = asked(address, "big guest\n");
    // It has its place once something of its answer has come.
    guest.read_exact(&mut [0]).unwrap();
    assert_eq!(ask(address, "big guest\n"), "full");
    for _ in 0..100 {
        assert_eq!(ask(address, "hello\n"), "hello");
    }
    // Who goes leaves its place to another.
    drop(followers.pop());
    while ask_first(address) != "first" {}
    // Stopping waits for who is owed an answer.
    drop(guest);
    service.stop();
}

/// The first line that a new follower gets.
fn ask_first(address: SocketAddr) -> String {
    let mut line = String::new();
    BufReader::new(asked(address, "follow\n")).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_slow_follower_misses_pieces_and_never_gets_half_of_one() {
    let (address, service) = serve(BEATING, 1 << 20);
    let mut slow = follower(address);
    let first = next_number(&mut slow);
    // Meanwhile another one sees many beats.
    let mut beats = follower(address);
    while next_number(&mut beats) < first + 20 {}
    let later: Vec<u64> = (0..5).map(|_| next_number(&mut slow)).collect();
    assert!(later.is_sorted_by(|one, next| one < next), "{later:?}");
    assert!(*later.last().unwrap() > first + 5, "it has missed none: {first}, {later:?}");
    service.stop();
}

#[test]
fn a_follower_that_reads_nothing_is_let_go_and_the_others_go_on() {
    // Longer pieces than the kernel keeps for it; who reads has one long before the time is over.
    const PIECE_BYTES: usize = 1 << 20;
    let limits = Limits { taking: Duration::from_secs(10), ..BEATING };
    let (address, service) = serve(limits, PIECE_BYTES);
    let mute = TcpStream::connect(address).unwrap();
    setsockopt(&mute, sockopt::RcvBuf, &4096).unwrap();
    (&mute).write_all(b"follow\n").unwrap();
    let mut reader = follower(address);
    let mut taken = 0;
    // The place of the mute one is free again when four others have one.
    let mut others = Vec::new();
    while others.len() < 3 {
        let mut other = BufReader::new(asked(address, "follow\n"));
        let mut line = String::new();
        other.read_line(&mut line).unwrap();
        if line == "first\n" {
            others.push(asked_again(other));
        }
        taken += u64::from(next_number(&mut reader) > 0);
    }
    assert!(taken > 0);
    let read = io::copy(&mut &mute, &mut io::sink()).unwrap_or(0);
    assert!(read < PIECE_BYTES as u64, "it got a whole piece");
    service.stop();
}

#[test]
fn a_follower_that_never_stops_sending_is_let_go() {
    let (address, service) = serve(BEATING, 10);
    let talker = follower(address);
    let mut sending = talker.get_ref().try_clone().unwrap();
    let reading = asked_again(talker);
    // Ends with an error as soon as the service has closed.
    while sending.write_all(&[b'x'; 4096]).is_ok() {}
    reading.join().unwrap();
    service.stop();
}

/// Keeps reading in the background, so that it is nobody whom the service lets go.
fn asked_again(mut follower: BufReader<TcpStream>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || drop(io::copy(&mut follower, &mut io::sink())))
}

#[test]
fn a_reader_that_takes_nothing_goes_for_somebody_who_waits() {
    let (address, service) = serve(Limits { held_max: 1, stalling: Duration::from_millis(20), ..PATIENT }, 10);
    let never_reads = asked(address, "big\n");
    assert_eq!(ask(address, "next\n"), "next");
    let read = io::copy(&mut &never_reads, &mut io::sink()).unwrap_or(0);
    assert!(read < BIG_BYTES as u64);
    service.stop();
}

#[test]
fn stopping_ends_every_stream_at_once_and_in_good_order() {
    let (address, service) = serve(BEATING, 10);
    let followers: Vec<_> = (0..BEATING.streams_max).map(|_| follower(address)).collect();
    service.stop();
    for mut follower in followers {
        let mut rest = String::new();
        follower.read_to_string(&mut rest).expect("the connection ends without an error");
        assert!(rest.is_empty() || rest.ends_with('\n'), "half a piece");
    }
}
