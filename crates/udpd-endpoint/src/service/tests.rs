//! A service against clients that say nothing, too much or half of it, that never read, hang up or wait for long;
//! against system calls that fail; and its streams, with followers that are slow, mute or gone.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};
use nix::sys::socket::{self, setsockopt, sockopt};

use super::event_loop::Poll;
use super::*;
use udpd_base::os::threads::ThreadRegistry;

/// More than any connection takes at once.
const BIG_BYTES: usize = 16 << 20;

/// For tests in which no limit is to be reached.
const PATIENT: ServiceLimits = ServiceLimits {
    held_max: 8,
    secondary_max: 5,
    streams_max: 4,
    question_bytes_max: 100,
    asking: Duration::from_secs(600),
    waiting: Duration::from_secs(600),
    taking: Duration::from_secs(600),
    stalling: Duration::from_secs(600),
    leaving: Duration::from_secs(600),
    ending: Duration::from_secs(600),
    pause: Duration::from_millis(1),
    tick: None,
};

/// Answers a line with itself; "who", "big", "later", "follow" and "big secondary" with what they say. With every tick
/// the streams get the next number, on a line with so many zeros in front.
struct TestProtocol {
    limits: ServiceLimits,
    owed_answers: Sender<OwedAnswer>,
    zeros: usize,
    number: u64,
}

impl ServiceProtocol for TestProtocol {
    fn limits(&self) -> ServiceLimits {
        self.limits
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&byte| byte == b'\n')
    }

    fn reply(&mut self, question: ClientQuestion<'_>, asker: &AskingClient<'_>) -> Reply {
        let ClientQuestion::Whole(line) = question else { return Reply::Now(b"too long".into()) };
        match line {
            b"who" => Reply::Now(thread::current().name().unwrap().into()),
            b"big" => Reply::Now(vec![b'x'; BIG_BYTES]),
            b"later" => {
                self.owed_answers.send(asker.owed_answer()).unwrap();
                Reply::Later
            }
            b"follow" if asker.has_stream_place => Reply::Stream(b"first\n".into()),
            b"big secondary" if asker.has_secondary_place => Reply::Secondary(vec![b'x'; BIG_BYTES]),
            b"follow" | b"big secondary" => Reply::Now(b"full".into()),
            line => Reply::Now(line.to_vec()),
        }
    }

    fn tick(&mut self, has_streams: bool) -> Option<Arc<[u8]>> {
        self.number += 1;
        let zeros = "0".repeat(self.zeros);
        has_streams.then(|| format!("{zeros}{}\n", self.number).into_bytes().into())
    }

    fn overdue(&self) -> Vec<u8> {
        b"overdue".into()
    }
}

/// A service on loopback.
struct Served<L: StreamListener> {
    service: Option<Service<L>>,
    address: SocketAddr,
    owed_answers: Receiver<OwedAnswer>,
}

fn serve(limits: ServiceLimits) -> Served<TcpListener> {
    serve_streams(limits, 0)
}

fn serve_streams(limits: ServiceLimits, zeros: usize) -> Served<TcpListener> {
    start(limits, zeros, |listener| listener, Box::new(nix::poll::poll))
}

fn serve_by<L: StreamListener>(limits: ServiceLimits, wrap: impl FnOnce(TcpListener) -> L, poll: Poll) -> Served<L> {
    start(limits, 0, wrap, poll)
}

fn start<L: StreamListener>(
    limits: ServiceLimits,
    zeros: usize,
    wrap: impl FnOnce(TcpListener) -> L,
    poll: Poll,
) -> Served<L> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (to_test, owed_answers) = channel();
    let protocol = TestProtocol { limits, owed_answers: to_test, zeros, number: 0 };
    let service = Service::start_with("udpd-test", wrap(listener), &ThreadRegistry::new().0, protocol, poll).unwrap();
    Served { service: Some(service), address, owed_answers }
}

impl<L: StreamListener> Drop for Served<L> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<L: StreamListener> Served<L> {
    fn stop(&mut self) {
        self.service.take().into_iter().for_each(Service::stop);
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// A client that has asked and not read yet.
    fn asked(&self, question: &str) -> TcpStream {
        let mut client = self.connect();
        client.write_all(question.as_bytes()).unwrap();
        client
    }

    fn ask(&self, question: &str) -> String {
        io::read_to_string(self.asked(question)).unwrap()
    }
}

/// How many of these connections the service still holds.
fn held(clients: &mut [TcpStream]) -> usize {
    let is_held = |client: &mut &mut TcpStream| {
        client.set_nonblocking(true).unwrap();
        let mut bytes = [0; 100];
        loop {
            match client.read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    };
    clients.iter_mut().filter_map(|mut client| is_held(&mut client).then_some(())).count()
}

#[test]
fn every_client_is_served_on_the_named_thread() {
    let served = serve(PATIENT);
    for _ in 0..3 {
        assert_eq!(served.ask("who\nand more"), "udpd-test");
    }
}

#[test]
fn a_question_may_come_in_pieces_and_one_without_end_is_refused() {
    let served = serve(PATIENT);
    let mut client = served.asked("in ");
    for piece in ["pie", "ces\nand more"] {
        client.write_all(piece.as_bytes()).unwrap();
    }
    assert_eq!(io::read_to_string(client).unwrap(), "in pieces");
    assert_eq!(served.ask(&"x".repeat(1 << 20)), "too long");
}

#[test]
fn beside_a_thousand_idle_connections_a_question_is_answered_and_few_of_them_are_held() {
    raise_descriptor_limit();
    let served = serve(PATIENT);
    let mut idle: Vec<TcpStream> = (0..1_000).map(|_| served.connect()).collect();
    assert_eq!(served.ask("hello\n"), "hello");
    let held = held(&mut idle);
    assert!(held <= PATIENT.held_max, "{held} idle connections are held");
    assert!(held >= PATIENT.held_max - 1, "{held} are held where there is room for more");
}

#[test]
fn beside_a_thousand_that_drip_shut_their_side_or_never_read_a_question_is_answered() {
    raise_descriptor_limit();
    let served = serve(PATIENT);
    let mut clients = Vec::new();
    for number in 0..1_000 {
        clients.push(match number % 5 {
            0 => served.connect(),
            1 => served.asked("half a quest"),
            2 => served.asked("never read\n"),
            3 => served.asked(&"x".repeat(5_000)),
            _ => {
                let client = served.asked("half");
                client.shutdown(Shutdown::Write).unwrap();
                client
            }
        });
    }
    assert_eq!(served.ask("hello\n"), "hello");
    assert!(held(&mut clients) <= PATIENT.held_max);
}

#[test]
fn a_client_that_is_owed_an_answer_is_never_closed_for_another() {
    let served = serve(PATIENT);
    let owed: Vec<TcpStream> = (0..PATIENT.held_max - 1).map(|_| served.asked("later\n")).collect();
    let owed_answers: Vec<OwedAnswer> = owed.iter().map(|_| served.owed_answers.recv().unwrap()).collect();
    let mut idle: Vec<TcpStream> = (0..100).map(|_| served.connect()).collect();
    assert_eq!(served.ask("between\n"), "between");
    assert!(held(&mut idle) <= 1);
    for owed_answer in owed_answers {
        owed_answer.send(b"at last".into());
    }
    for client in owed {
        assert_eq!(io::read_to_string(client).unwrap(), "at last");
    }
}

#[test]
fn a_client_too_many_waits_where_all_are_owed_an_answer() {
    let served = serve(ServiceLimits { held_max: 1, ..PATIENT });
    let owed = served.asked("later\n");
    let owed_answer = served.owed_answers.recv().unwrap();
    let next = served.asked("next\n");
    owed_answer.send(b"at last".into());
    assert_eq!(io::read_to_string(owed).unwrap(), "at last");
    assert_eq!(io::read_to_string(next).unwrap(), "next");
}

#[test]
fn a_client_that_asks_right_before_it_would_be_closed_is_answered() {
    let (hand_over, mut asker) = channel::<TcpStream>().into_pair();
    let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
        let outcome = nix::poll::poll(sockets, timeout);
        // Its question comes after the look at all of them, and before there is room for one more.
        if let Some(mut client) = asker() {
            client.write_all(b"heard\n").unwrap();
        }
        outcome
    };
    let served = serve_by(ServiceLimits { held_max: 1, ..PATIENT }, |listener| listener, Box::new(poll));
    let late = served.connect();
    hand_over(late.try_clone().unwrap());
    assert_eq!(served.ask("another\n"), "another");
    assert_eq!(io::read_to_string(late).unwrap(), "heard");
}

#[test]
fn each_stage_has_its_deadline() {
    let short = Duration::from_millis(20);
    let served = serve(ServiceLimits { held_max: 1, asking: short, ..PATIENT });
    let mut dripping = served.connect();
    // Drips until the server hangs up, which it does only if dripping buys no time.
    while dripping.write_all(b"x").is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    let served = serve(ServiceLimits { held_max: 1, waiting: short, ..PATIENT });
    assert_eq!(served.ask("later\n"), "overdue");
    let served = serve(ServiceLimits { held_max: 1, taking: short, ..PATIENT });
    let never_reads = served.asked("big\n");
    assert_eq!(served.ask("next\n"), "next");
    let read = io::copy(&mut &never_reads, &mut io::sink()).unwrap_or(0);
    assert!(read < BIG_BYTES as u64);
    let served = serve(ServiceLimits { held_max: 2, leaving: short, ..PATIENT });
    let mut stays = served.asked("answer\n");
    assert_eq!(io::read_to_string(&stays).unwrap(), "answer");
    // It may write into a connection that the service has left, until that says so.
    while stays.write_all(b"x").is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_answer_that_never_comes_ends_the_connection_and_one_that_comes_too_late_is_forgotten() {
    let served = serve(ServiceLimits { held_max: 1, ..PATIENT });
    let client = served.asked("later\n");
    drop(served.owed_answers.recv().unwrap());
    assert_eq!(io::read_to_string(client).unwrap(), "");
    let gone = served.asked("later\n");
    let owed_answer = served.owed_answers.recv().unwrap();
    socket::setsockopt(&gone, socket::sockopt::Linger, &RESET).unwrap();
    drop(gone);
    assert_eq!(served.ask("next\n"), "next");
    owed_answer.send(b"too late".into());
    assert_eq!(served.ask("next\n"), "next");
}

#[test]
fn an_idle_service_waits_without_a_limit_stops_and_then_refuses_clients() {
    let (said, heard) = channel();
    let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
        let _ = said.send((sockets.len(), timeout.is_none()));
        nix::poll::poll(sockets, timeout)
    };
    let mut served = serve_by(PATIENT, |listener| listener, Box::new(poll));
    assert_eq!(heard.recv().unwrap(), (2, true));
    assert_eq!(served.ask("hello\n"), "hello");
    // The client has left, so the last wait is again without a limit.
    while heard.recv().unwrap() != (2, true) {}
    assert!(heard.try_recv().is_err());
    let address = served.address;
    served.stop();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn stopping_lets_the_present_answers_finish() {
    let served = serve(PATIENT);
    let (mut taking, waiting, idle) = (served.asked("big\n"), served.asked("later\n"), served.connect());
    let owed_answer = served.owed_answers.recv().unwrap();
    let address = served.address;
    let stopping = thread::spawn(move || drop(served));
    assert_eq!(io::read_to_string(idle).unwrap_or_default(), "", "who has not asked is let go at once");
    while TcpStream::connect(address).is_ok() {}
    owed_answer.send(b"done".into());
    assert_eq!(io::read_to_string(waiting).unwrap(), "done");
    assert_eq!(io::copy(&mut taking, &mut io::sink()).unwrap(), BIG_BYTES as u64);
    stopping.join().unwrap();
}

#[test]
fn stopping_does_not_wait_for_a_client_that_never_reads_or_never_gets_an_answer() {
    let served = serve(ServiceLimits { ending: Duration::from_millis(20), ..PATIENT });
    let (_never_reads, waiting) = (served.asked("big\n"), served.asked("later\n"));
    let _owed_answer = served.owed_answers.recv().unwrap();
    drop(served);
    assert_eq!(io::read_to_string(waiting).unwrap_or_default(), "");
}

#[test]
fn clients_that_break_off_at_any_point_change_nothing_for_the_next() {
    let served = serve(PATIENT);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let questions = ["who\n", "hello\n", "half a", "", "later\n", "big\n", &"x".repeat(300)];
    let mut kept = VecDeque::new();
    for round in 0..3_000 {
        let question = questions[random(questions.len() as u64) as usize].as_bytes();
        let mut client = served.connect();
        // A service that is done with a client may have hung up already, which is what some of these ask for.
        let _ = client.write_all(&question[..random(question.len() as u64 + 1) as usize]);
        match random(6) {
            0 => drop(client.shutdown(Shutdown::Write)),
            1 => drop(client.shutdown(Shutdown::Both)),
            2 => socket::setsockopt(&client, socket::sockopt::Linger, &RESET).unwrap(),
            3 => drop(client.set_nonblocking(true).and_then(|()| client.read(&mut [0; 7]))),
            _ => {}
        }
        if random(3) == 0 {
            kept.push_back(client);
        }
        if kept.len() > 5 {
            kept.remove(random(5) as usize);
        }
        // Dropping an owed answer, or sending one for which no client may be waiting.
        if let Ok(owed_answer) = served.owed_answers.try_recv()
            && random(2) == 0
        {
            owed_answer.send(b"late".into());
        }
        if round % 10 == 0 {
            kept.clear();
            served.owed_answers.try_iter().for_each(drop);
            assert_eq!(served.ask("hello\n"), "hello", "in round {round}");
        }
    }
}

/// Closing resets the connection.
const RESET: nix::libc::linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };

/// A thousand clients are a thousand descriptors of this process.
pub(crate) fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= 2_000, "this test takes 2,000 descriptors; the hard limit is {hard}: raise it (ulimit -Hn 4096)");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard).unwrap();
}

/// A channel as two functions: one gives, the other takes what is there.
trait IntoPair<T> {
    fn into_pair(self) -> (impl Fn(T), impl FnMut() -> Option<T> + Send);
}

impl<T: Send> IntoPair<T> for (Sender<T>, Receiver<T>) {
    fn into_pair(self) -> (impl Fn(T), impl FnMut() -> Option<T> + Send) {
        let (sender, receiver) = self;
        (move |value| sender.send(value).unwrap(), move || receiver.try_recv().ok())
    }
}

#[test]
fn a_wait_that_fails_is_tried_again_and_clients_are_served_all_the_same() {
    for fails in [3, usize::MAX] {
        let mut calls = 0;
        let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
            calls += 1;
            if calls <= fails { Err(Errno::ENOMEM) } else { nix::poll::poll(sockets, timeout) }
        };
        let served = serve_by(PATIENT, |listener| listener, Box::new(poll));
        assert_eq!(served.ask("hello\n"), "hello");
        let waiting = served.asked("later\n");
        served.owed_answers.recv().unwrap().send(b"done".into());
        assert_eq!(io::read_to_string(waiting).unwrap(), "done");
    }
}

/// A listener whose next calls of `accept` fail.
struct Failing {
    listener: TcpListener,
    errors: Mutex<VecDeque<Errno>>,
    /// As in a process without a free descriptor, where `accept` fails alike with a client and without.
    fails_without_client: Option<Arc<AtomicBool>>,
}

impl AsFd for Failing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl StreamListener for Failing {
    type Client = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        if let Some(error) = self.errors.lock().unwrap().pop_front() {
            return Err(error.into());
        }
        StreamListener::accept(&self.listener).map_err(|error| match &self.fails_without_client {
            Some(has_failed) if error.kind() == io::ErrorKind::WouldBlock => {
                has_failed.store(true, Ordering::SeqCst);
                Errno::EMFILE.into()
            }
            _ => error,
        })
    }
}

fn serve_failing(errors: &[Errno]) -> Served<Failing> {
    let errors = Mutex::new(errors.iter().copied().collect());
    serve_by(PATIENT, |listener| Failing { listener, errors, fails_without_client: None }, Box::new(nix::poll::poll))
}

#[test]
fn without_descriptors_no_client_is_closed_for_one_that_is_not_there() {
    let (said, heard) = channel();
    let has_failed = Arc::new(AtomicBool::new(false));
    let fails_without_client = Some(Arc::clone(&has_failed));
    let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
        if has_failed.swap(false, Ordering::SeqCst) {
            said.send(()).unwrap();
        }
        nix::poll::poll(sockets, timeout)
    };
    let wrap = |listener| Failing { listener, errors: Mutex::default(), fails_without_client };
    let served = serve_by(PATIENT, wrap, Box::new(poll));
    let mut client = served.connect();
    // It is in, another was looked for, and the service waits again.
    heard.recv().unwrap();
    client.write_all(b"hello\n").unwrap();
    assert_eq!(io::read_to_string(client).unwrap(), "hello");
}

#[test]
fn accepting_that_fails_for_whatever_reason_is_tried_again() {
    let cases: [&[Errno]; 4] = [&[Errno::EMFILE; 5], &[Errno::ENFILE], &[Errno::ECONNABORTED; 3], &[Errno::ENOMEM; 40]];
    for errors in cases {
        let served = serve_failing(errors);
        assert_eq!(served.ask("hello\n"), "hello", "{errors:?}");
        assert!(served.service.as_ref().unwrap().listener().errors.lock().unwrap().is_empty());
    }
}

#[test]
fn without_descriptors_an_idle_connection_makes_room_and_one_that_is_owed_an_answer_does_not() {
    let served = serve_failing(&[]);
    let (idle, owed) = (served.connect(), served.asked("later\n"));
    let owed_answer = served.owed_answers.recv().unwrap();
    served.service.as_ref().unwrap().listener().errors.lock().unwrap().push_back(Errno::EMFILE);
    assert_eq!(served.ask("hello\n"), "hello");
    assert_eq!(io::read_to_string(idle).unwrap(), "");
    owed_answer.send(b"done".into());
    assert_eq!(io::read_to_string(owed).unwrap(), "done");
}

const TICKING: ServiceLimits = ServiceLimits { tick: Some(Duration::from_millis(1)), ..PATIENT };

/// A follower whose first piece is there.
fn follower(served: &Served<TcpListener>) -> BufReader<TcpStream> {
    let mut follower = BufReader::new(served.asked("follow\n"));
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
    let served = serve_streams(TICKING, 10);
    let mut followers = [follower(&served), follower(&served)];
    for follower in &mut followers {
        let numbers: Vec<u64> = (0..50).map(|_| next_number(follower)).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }
}

#[test]
fn streams_and_secondary_clients_have_their_places_and_questions_find_the_others() {
    let served = serve_streams(TICKING, 10);
    let mut followers: Vec<_> = (0..TICKING.streams_max).map(|_| follower(&served)).collect();
    assert_eq!(served.ask("follow\n"), "full");
    let mut secondary = served.asked("big secondary\n");
    // It has its place once something of its answer has come.
    secondary.read_exact(&mut [0]).unwrap();
    assert_eq!(served.ask("big secondary\n"), "full");
    for _ in 0..100 {
        assert_eq!(served.ask("hello\n"), "hello");
    }
    // Who goes leaves its place to another.
    drop(followers.pop());
    while ask_first(&served) != "first" {}
}

/// The first line that a new follower gets.
fn ask_first(served: &Served<TcpListener>) -> String {
    let mut line = String::new();
    BufReader::new(served.asked("follow\n")).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_slow_follower_misses_pieces_and_never_gets_half_of_one() {
    let served = serve_streams(TICKING, 1 << 20);
    let mut slow = follower(&served);
    let first = next_number(&mut slow);
    // Meanwhile another one sees many ticks.
    let mut ticks = follower(&served);
    while next_number(&mut ticks) < first + 20 {}
    let later: Vec<u64> = (0..5).map(|_| next_number(&mut slow)).collect();
    assert!(later.is_sorted_by(|one, next| one < next), "{later:?}");
    assert!(*later.last().unwrap() > first + 5, "it has missed none: {first}, {later:?}");
}

#[test]
fn a_follower_that_reads_nothing_is_closed_and_the_others_go_on() {
    // Longer pieces than the kernel keeps for it; who reads has one long before the time is over.
    const PIECE_BYTES: usize = 1 << 20;
    let limits = ServiceLimits { taking: Duration::from_secs(10), ..TICKING };
    let served = serve_streams(limits, PIECE_BYTES);
    let mute = served.connect();
    setsockopt(&mute, sockopt::RcvBuf, &4096).unwrap();
    (&mute).write_all(b"follow\n").unwrap();
    let mut reader = follower(&served);
    let mut taken = 0;
    // The place of the mute one is free again when four others have one.
    let mut others = Vec::new();
    while others.len() < 3 {
        let mut other = BufReader::new(served.asked("follow\n"));
        let mut line = String::new();
        other.read_line(&mut line).unwrap();
        if line == "first\n" {
            others.push(read_on(other));
        }
        taken += u64::from(next_number(&mut reader) > 0);
    }
    assert!(taken > 0);
    let read = io::copy(&mut &mute, &mut io::sink()).unwrap_or(0);
    assert!(read < PIECE_BYTES as u64, "it got a whole piece");
}

#[test]
fn a_follower_that_never_stops_sending_is_closed() {
    let served = serve_streams(TICKING, 10);
    let talker = follower(&served);
    let mut sending = talker.get_ref().try_clone().unwrap();
    let reading = read_on(talker);
    // Ends with an error as soon as the service has closed.
    while sending.write_all(&[b'x'; 4096]).is_ok() {}
    reading.join().unwrap();
}

/// Keeps reading in the background, so that the service does not close it.
fn read_on(mut follower: BufReader<TcpStream>) -> thread::JoinHandle<()> {
    thread::spawn(move || drop(io::copy(&mut follower, &mut io::sink())))
}

#[test]
fn a_reader_that_takes_nothing_is_closed_for_a_client_that_waits() {
    let served = serve_streams(ServiceLimits { held_max: 1, stalling: Duration::from_millis(20), ..PATIENT }, 10);
    let never_reads = served.asked("big\n");
    assert_eq!(served.ask("next\n"), "next");
    let read = io::copy(&mut &never_reads, &mut io::sink()).unwrap_or(0);
    assert!(read < BIG_BYTES as u64);
}

#[test]
fn stopping_ends_every_stream_at_once_and_in_good_order() {
    let served = serve_streams(TICKING, 10);
    let followers: Vec<_> = (0..TICKING.streams_max).map(|_| follower(&served)).collect();
    drop(served);
    for mut follower in followers {
        let mut rest = String::new();
        follower.read_to_string(&mut rest).expect("the connection ends without an error");
        assert!(rest.is_empty() || rest.ends_with('\n'), "half a piece");
    }
}
