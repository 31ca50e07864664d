//! RELP against servers that answer late, in part, out of turn, in pieces or not at all. No ledger is believed: servers
//! say what they got and what they have answered for.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use rustls::{ServerConnection, StreamOwned};

use super::relp::{NUMBER_DIGITS, RelpSession, append_record, write_number};
use super::tests::{listener, numbered};
use super::tls_tests::{server, trusting};
use super::window::SendWindow;
use super::*;
use udpd_base::ledger::{ConnectionSnapshot, ConnectionState, PeerLedger, PeersSnapshot};
use udpd_base::ledger::{CounterTable as _, SinkTally, Tallies};
use udpd_base::sink::Sink;
use udpd_base::sink::testing::{Received, opened, opened_with_ledgers};

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

fn answer(number: u32, data: &str) -> Vec<u8> {
    format!("{number} rsp {} {data}\n", data.len()).into_bytes()
}

/// A session, from the side of the server.
struct Session {
    stream: Box<dyn Stream>,
    last: u32,
    records: Vec<Vec<u8>>,
    answered: usize,
}

impl Session {
    fn open(stream: Box<dyn Stream>) -> Self {
        let mut session = Self { stream, last: 0, records: Vec::new(), answered: 0 };
        if let Some((1, "open", offers)) = session.frame().as_ref().map(|(n, c, d)| (*n, c.as_str(), d)) {
            let offers = String::from_utf8_lossy(offers);
            assert!(offers.starts_with("relp_version=0\nrelp_software=udpd,") && offers.ends_with("\ncommands=syslog"));
        }
        session
    }

    fn opened(stream: Box<dyn Stream>) -> Self {
        let mut session = Self::open(stream);
        session.say(&answer(1, "200 OK\nrelp_version=0\ncommands=eventlog,syslog"));
        session
    }

    fn frame(&mut self) -> Option<(u32, String, Vec<u8>)> {
        let word = |stream: &mut dyn Stream| {
            let (mut word, mut byte) = (String::new(), [0]);
            loop {
                stream.read_exact(&mut byte).ok()?;
                match byte[0] {
                    end @ (b' ' | b'\n') => return Some((word, end)),
                    byte => word.push(byte.into()),
                }
            }
        };
        let number: u32 = word(&mut *self.stream)?.0.parse().expect("a number");
        let (command, _) = word(&mut *self.stream)?;
        let (length, end) = word(&mut *self.stream)?;
        let mut data = vec![0; length.parse().expect("a length")];
        assert_eq!(data.is_empty(), end == b'\n', "data only where there is some");
        if !data.is_empty() {
            self.stream.read_exact(&mut data).ok()?;
            let mut end = [0];
            self.stream.read_exact(&mut end).ok()?;
            assert_eq!(end, *b"\n", "the length is that of the data");
        }
        assert_eq!(number, self.last + 1, "numbers have no gaps");
        self.last = number;
        Some((number, command, data))
    }

    /// The next record; `None` at the end of the session.
    fn record(&mut self) -> Option<u32> {
        match self.frame()? {
            (number, command, data) if command == "syslog" => {
                self.records.push(data);
                Some(number)
            }
            (_, command, data) => {
                assert_eq!((command.as_str(), data.len()), ("close", 0));
                None
            }
        }
    }

    fn read(&mut self, count: usize) {
        (0..count).for_each(|_| assert!(self.record().is_some(), "{} records", self.records.len()));
    }

    fn say(&mut self, bytes: &[u8]) {
        // The client may be gone.
        let _ = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
    }

    /// Answers for so many more records.
    fn answer(&mut self, count: usize) {
        for _ in 0..count {
            self.answered += 1;
            self.say(format!("{} rsp 6 200 OK\n", self.answered + 1).as_bytes());
        }
    }

    fn serve(&mut self) {
        while self.record().is_some() {
            self.answer(1);
        }
    }
}

type Deed = Box<dyn FnOnce(&mut Session) + Send>;

fn deed(deed: impl FnOnce(&mut Session) + Send + 'static) -> Deed {
    Box::new(deed)
}

/// What a server got in each session, and how many of those records it has answered for.
type Served = Vec<(Vec<Vec<u8>>, usize)>;

/// A server that does this in one session after the other.
fn serving(listener: TcpListener, deeds: Vec<Deed>) -> JoinHandle<Served> {
    let serve = move |deed: Deed| {
        let (stream, _) = listener.accept().expect("a connection");
        let mut session = Session::opened(Box::new(stream));
        deed(&mut session);
        (session.records, session.answered)
    };
    std::thread::spawn(move || deeds.into_iter().map(serve).collect())
}

fn to(address: SocketAddr) -> TcpSettings {
    TcpSettings { framing: TcpFraming::Relp, ..super::tests::to(&[address]) }
}

fn give(sink: &mut dyn Sink, payloads: &[Vec<u8>], tallies: &mut Tallies) {
    for part in payloads.chunks(200) {
        let batch = Received::over_loopback(&part.iter().map(Vec::as_slice).collect::<Vec<_>>()).batch;
        tallies[0].taken += part.len() as u64;
        tallies[0].pending += part.len() as u64;
        sink.accept(&batch, tallies);
    }
}

fn until(sink: &mut dyn Sink, tallies: &mut Tallies, what: &str, mut holds: impl FnMut(&SinkTally) -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while !holds(&tallies[0]) {
        assert!(std::time::Instant::now() < limit, "{what}: {:?}", tallies[0]);
        sink.when_due(tallies);
        std::thread::yield_now();
    }
}

fn is_decided(tally: &SinkTally) -> bool {
    tally.pending + tally.spilled == 0
}

/// Gives these to servers that do this, and says what became of them.
fn run(settings: &TcpSettings, listener: TcpListener, payloads: &[Vec<u8>], deeds: Vec<Deed>) -> (SinkTally, Served) {
    let (tally, served, _) = run_seen(settings, listener, payloads, deeds);
    (tally, served)
}

/// The same, and what others see of the connection before the end.
fn run_seen(
    settings: &TcpSettings,
    listener: TcpListener,
    payloads: &[Vec<u8>],
    deeds: Vec<Deed>,
) -> (SinkTally, Served, PeersSnapshot) {
    let server = serving(listener, deeds);
    let OpenedSink { mut sink, peers, .. } = opened_with_ledgers(settings);
    let mut tallies = Tallies::new(0..1);
    give(&mut *sink, payloads, &mut tallies);
    until(&mut *sink, &mut tallies, "all are decided", is_decided);
    let seen = PeerLedger::sum(peers.iter().map(AsRef::as_ref));
    sink.finish(&mut tallies, &mut |_| ());
    drop(sink);
    (tallies[0], server.join().expect("no panic"), seen)
}

#[test]
fn by_relp_every_byte_arrives_and_counts_when_the_server_has_answered() {
    let all: Vec<u8> = (0..=255).collect();
    let payloads = [&b""[..], b"\n", b"1 rsp 6 200 OK\n", &all, &[b'x'; 60_000]].map(<[u8]>::to_vec);
    let tls = TcpSettings { tls: trusting("ca"), ..to(listener().1) };
    for is_secured in [false, true] {
        let (listener, address) = listener();
        let settings =
            TcpSettings { destinations: vec![address.into()], ..if is_secured { tls.clone() } else { to(address) } };
        let (may_answer, waits) = std::sync::mpsc::channel();
        let peer = std::thread::spawn(move || {
            let plain = listener.accept().expect("a connection").0;
            let mut session = Session::opened(match is_secured {
                false => Box::new(plain),
                true => {
                    let connection = ServerConnection::new(server("server", false)).expect("a connection");
                    Box::new(StreamOwned::new(connection, plain))
                }
            });
            session.read(5);
            waits.recv().expect("it is told");
            session.answer(5);
            session.serve();
            session.records
        });
        let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
        give(&mut *sink, &payloads, &mut tallies);
        for _ in 0..100 {
            sink.when_due(&mut tallies);
            std::thread::yield_now();
        }
        assert_eq!((tallies[0].delivered, tallies[0].pending), (0, 5), "nothing is answered");
        may_answer.send(()).expect("it waits");
        until(&mut *sink, &mut tallies, "all are answered", |tally| tally.delivered == 5);
        sink.finish(&mut tallies, &mut |_| ());
        assert_eq!((tallies[0].dropped.total(), tallies[0].stream_repeats_at_most), (0, 0));
        assert_eq!(peer.join().expect("no panic"), payloads);
    }
}

#[test]
fn what_a_server_has_not_answered_when_it_goes_is_sent_again_and_no_more_than_is_told_comes_twice() {
    const COUNT: usize = 500;
    let payloads = numbered(0..COUNT, 30);
    // A connection that ends with unread bytes would lose answers.
    let cut_off = |session: &mut Session| {
        session.read(COUNT);
        session.answer(100);
        session.say(b"102 rsp 6 20");
    };
    let says_goodbye = |session: &mut Session| {
        session.read(COUNT - 100);
        session.answer(200);
        session.say(b"0 serverclose 0\n");
    };
    let directory = tempfile::tempdir().expect("a directory");
    for spill in [Spill::default(), Spill::at(directory.path().to_owned(), 4 << 20)] {
        let (listener, address) = listener();
        let settings = TcpSettings { spill, ..to(address) };
        let deeds = vec![deed(cut_off), deed(says_goodbye), deed(Session::serve)];
        let (tally, served) = run(&settings, listener, &payloads, deeds);
        assert_eq!((tally.delivered, tally.dropped.total()), (COUNT as u64, 0));
        let begins: Vec<_> = served.iter().map(|(records, _)| COUNT - records.len()).collect();
        assert_eq!(begins, [0, 100, 300], "from the first without an answer");
        served.iter().zip(begins).for_each(|((records, _), begin)| assert_eq!(records, &payloads[begin..]));
        assert_eq!(tally.stream_repeats_at_most, 400 + 200);
    }
}

#[test]
fn a_refusal_counts_by_itself_and_is_not_sent_again() {
    let refuses = |session: &mut Session| {
        session.read(4);
        session.say(b"2 rsp 6 200 OK\n3 rsp 21 500 it is not syslog\x07\n4 rsp 6 200 OK\n5 rsp 3 404\n");
        assert!(session.record().is_none());
    };
    let directory = tempfile::tempdir().expect("a directory");
    for spill in [Spill::default(), Spill::at(directory.path().to_owned(), 4 << 20)] {
        let (listener, address) = listener();
        let settings = TcpSettings { spill, ..to(address) };
        let (tally, served, seen) = run_seen(&settings, listener, &numbered(0..4, 9), vec![deed(refuses)]);
        assert_eq!((tally.delivered, tally.dropped.refused, tally.dropped.total()), (2, 2, 2));
        let refusals: Vec<_> = seen.refusals.iter().map(|own| (own.reason.as_str(), own.datagrams)).collect();
        assert_eq!(refusals, [("404", 1), ("500", 1)]);
        assert_eq!((served.len(), tally.stream_repeats_at_most), (1, 0));
    }
}

#[test]
fn a_server_that_breaks_the_rules_is_left_and_nothing_counts_that_it_has_not_answered_in_turn() {
    const COUNT: usize = 20;
    for said in [
        &b"3 rsp 6 200 OK\n2 rsp 6 200 OK\n"[..],
        b"2 rsp 6 200 OK\n2 rsp 6 200 OK\n",
        b"220 mail.example.com ESMTP\r\n",
        b"2 rsp 5 200 OK\n",
        b"2 rsp 6 2xx OK\n",
        b"2 rsp 1000000000 200 OK\n",
        b"1234567890 rsp 6 200 OK\n",
        b"2 open 6 200 OK\n",
        b"\0\xff\n",
        b"2 rsp 0\n",
    ] {
        let (listener, address) = listener();
        let answered = usize::from(said.starts_with(b"2 rsp 6 200 OK\n"));
        let breaks = move |session: &mut Session| {
            session.read(COUNT);
            session.answered = answered;
            session.say(said);
            while session.frame().is_some() {}
        };
        let deeds = vec![deed(breaks), deed(Session::serve)];
        let (tally, served) = run(&to(address), listener, &numbered(0..COUNT, 9), deeds);
        let name = String::from_utf8_lossy(said);
        assert_eq!((tally.delivered, tally.dropped.total()), (COUNT as u64, 0), "{name}");
        assert_eq!(tally.stream_repeats_at_most as usize, COUNT - answered, "{name}");
        assert_eq!(served[1].0, numbered(answered..COUNT, 9), "{name}");
    }
    // It answers for what it was not sent.
    let (listener, address) = listener();
    let foresees = |session: &mut Session| {
        session.read(2);
        session.answer(3);
        while session.frame().is_some() {}
    };
    let (tally, served) = run(&to(address), listener, &numbered(0..2, 9), vec![deed(foresees)]);
    assert_eq!((tally.delivered, tally.stream_repeats_at_most, served.len()), (2, 0, 1));
}

#[test]
fn answers_may_come_a_byte_at_a_time_or_all_at_once() {
    const COUNT: usize = 3000;
    let drips = |session: &mut Session| {
        session.read(COUNT);
        for number in 2..12 {
            format!("{number} rsp 6 200 OK\n").bytes().for_each(|byte| session.say(&[byte]));
        }
        let rest: String = (12..COUNT + 2).map(|number| format!("{number} rsp 4 200 \n")).collect();
        session.say(b"0 hint 5 hello\n");
        session.say(rest.as_bytes());
        assert!(session.record().is_none());
    };
    let (listener, address) = listener();
    let (tally, _) = run(&to(address), listener, &numbered(0..COUNT, 20), vec![deed(drips)]);
    assert_eq!((tally.delivered, tally.stream_repeats_at_most), (COUNT as u64, 0));
}

#[test]
fn a_server_that_never_answers_is_given_up_after_the_timeout() {
    let silent = |session: &mut Session| while session.frame().is_some() {};
    let (listener, address) = listener();
    let settings = TcpSettings { timeout: Duration::from_millis(100), ..to(address) };
    let deeds = vec![deed(silent), deed(Session::serve)];
    let (tally, served, seen) = run_seen(&settings, listener, &numbered(0..50, 9), deeds);
    assert_eq!((tally.delivered, tally.stream_repeats_at_most, served[1].0.len()), (50, 50, 50));
    let ConnectionSnapshot { peer, state, on_the_way, error, .. } = &seen.connections[0];
    assert_eq!((peer, *state, *on_the_way), (&address.to_string(), ConnectionState::Up, 0));
    let error = error.as_deref().expect("it was given up");
    assert!(error.ends_with("is given up: it has answered no transaction for 100ms"), "{error}");
}

#[test]
fn a_destination_that_opens_no_session_makes_way_for_the_next() {
    for said in [
        b"".to_vec(),
        answer(1, "500 no session for you"),
        answer(1, "200 OK\nrelp_version=0\ncommands=eventlog"),
        answer(1, "200 OK\ncommands=syslog"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    ] {
        let name = String::from_utf8_lossy(&said).into_owned();
        let ((odd, odd_address), (good, good_address)) = (listener(), listener());
        let odd = std::thread::spawn(move || {
            let (stream, _) = odd.accept().expect("a connection");
            let mut session = Session::open(Box::new(stream));
            session.say(&said);
            assert!(session.frame().is_none(), "no record goes to it");
        });
        let destinations = vec![odd_address.into(), good_address.into()];
        let timeout = Duration::from_millis(200);
        let settings = TcpSettings { destinations, distribute: Distribute::Failover, timeout, ..to(odd_address) };
        let (tally, served) = run(&settings, good, &numbered(0..10, 9), vec![deed(Session::serve)]);
        assert_eq!((tally.delivered, served[0].0.len()), (10, 10), "{name}");
        odd.join().expect("no panic");
    }
}

#[test]
fn going_over_to_another_server_and_back_begins_a_session_and_nothing_comes_twice() {
    let ((first, first_address), (second, second_address)) = (listener(), listener());
    drop(first);
    let (destinations, probe_every) = (vec![first_address.into(), second_address.into()], Duration::from_millis(20));
    let settings = TcpSettings { destinations, distribute: Distribute::Failover, probe_every, ..to(first_address) };
    let second = serving(second, vec![deed(Session::serve)]);
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    give(&mut *sink, &numbered(0..100, 20), &mut tallies);
    until(&mut *sink, &mut tallies, "the second has it", |tally| tally.delivered == 100);
    let first = serving(TcpListener::bind(first_address).expect("the port is free"), vec![deed(Session::serve)]);
    let mut next = 100;
    while !second.is_finished() {
        give(&mut *sink, &numbered(next..next + 10, 20), &mut tallies);
        next += 10;
        sink.when_due(&mut tallies);
        std::thread::yield_now();
    }
    give(&mut *sink, &numbered(next..next + 10, 20), &mut tallies);
    until(&mut *sink, &mut tallies, "all are answered", is_decided);
    sink.finish(&mut tallies, &mut |_| ());
    let (early, late) = (second.join().expect("no panic"), first.join().expect("no panic"));
    assert_eq!([early[0].0.clone(), late[0].0.clone()].concat(), numbered(0..next + 10, 20));
    assert_eq!((tallies[0].delivered as usize, tallies[0].stream_repeats_at_most), (next + 10, 0));
}

#[test]
fn with_a_spill_what_a_server_has_not_answered_waits_for_the_next_start_and_none_is_lost() {
    const COUNT: usize = 9000;
    let directory = tempfile::tempdir().expect("a directory");
    let (first, address) = listener();
    let settings = TcpSettings { spill: Spill::at(directory.path().to_owned(), 8 << 20), ..to(address) };
    let answers_some = |session: &mut Session| {
        session.read(6000);
        session.answer(5000);
        while session.frame().is_some() {}
    };
    let server = serving(first, vec![deed(answers_some)]);
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    give(&mut *sink, &numbered(0..COUNT, 100), &mut tallies);
    until(&mut *sink, &mut tallies, "a first batch is answered", |tally| tally.delivered > 0);
    sink.finish(&mut tallies, &mut |_| ());
    drop(sink);
    let before = tallies[0];
    assert_eq!((before.delivered + before.spilled, before.dropped.total()), (COUNT as u64, 0));
    let had = server.join().expect("no panic").remove(0);
    assert!(had.1 as u64 >= before.delivered);
    let server = serving(TcpListener::bind(address).expect("the port is free"), vec![deed(Session::serve)]);
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    until(&mut *sink, &mut tallies, "the rest is answered", |tally| tally.delivered == before.spilled);
    sink.finish(&mut tallies, &mut |_| ());
    let rest = server.join().expect("no panic").remove(0).0;
    assert_eq!(rest, numbered(before.delivered as usize..COUNT, 100), "from the first batch that was not decided");
    let all: BTreeSet<_> = had.0.iter().chain(&rest).collect();
    assert_eq!(all.len(), COUNT);
    let twice = had.0.len() + rest.len() - COUNT;
    assert!(twice as u64 <= tallies[0].spill_repeats_at_most, "{twice} twice, {:?}", tallies[0]);
}

#[test]
fn numbers_have_nine_digits_start_again_after_the_last_and_are_those_of_the_session() {
    let mut bytes = Vec::new();
    append_record(&mut bytes, 7, b"ab");
    append_record(&mut bytes, 999_999_999, b"");
    assert_eq!(bytes, b"000000007 syslog 2 ab\n999999999 syslog 0\n");
    assert_eq!((relp::after(999_999_999), relp::before(1)), (1, 999_999_999));
    let mut window = SendWindow::new(Format::Lengths, true);
    let record = |bytes: &mut Vec<u8>, number| append_record(bytes, number, b"x");
    (0..5).for_each(|listener| window.push(listener, record));
    window.note_written(3 * 21 + 5);
    assert_eq!((window.take_answered(), window.take_answered()), (Some(0), Some(1)));
    window.hold(5, record);
    window.begin_anew(|_| ());
    let text = |window: &SendWindow| String::from_utf8(window.unwritten().to_vec()).expect("text");
    assert_eq!(text(&window), "000000002 syslog 1 x\n000000003 syslog 1 x\n000000004 syslog 1 x\n");
    assert_eq!(window.take_back(1), 1, "what is held is not written");
    window.hold(5, record);
    window.release();
    assert!(text(&window).ends_with("000000005 syslog 1 x\n"));
    let mut digits = [0; NUMBER_DIGITS];
    write_number(&mut digits, 120_000_034);
    assert_eq!(&digits, b"120000034");
}

#[test]
fn a_session_understands_its_server_in_pieces_of_any_length() {
    let said = b"1 rsp 37 200 OK\nrelp_version=0\ncommands=syslog\n2 rsp 6 200 OK\n3 rsp 10 500 failed\n4 rsp 3 200\n";
    for piece in 1..said.len() {
        let (mut session, mut told) = (RelpSession::new(), Vec::new());
        for part in said.chunks(piece) {
            let mut answer = |answer: relp::RelpAnswer<'_>| {
                told.push(answer.map(str::to_owned));
                true
            };
            session.hear(part, &mut answer).expect("it keeps the rules");
        }
        assert_eq!(told, [None, Some("it answered 500 failed".to_owned()), None]);
        assert_eq!(session.closing(), "5 close 0\n");
    }
}
