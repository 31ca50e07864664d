//! A service against clients that say nothing, too much or half of it, that never read, hang up or wait for long.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollTimeout};
use nix::sys::socket;

use super::server::Poll;
use super::*;
use udpd_base::os::threads::ThreadRegistry;

/// More than any connection takes at once.
pub(super) const BIG_BYTES: usize = 16 << 20;

/// For tests in which no limit is to be reached.
pub(super) const PATIENT: Limits = Limits {
    held_max: 8,
    guests_max: 5,
    streams_max: 4,
    question_bytes_max: 100,
    asking: Duration::from_secs(600),
    waiting: Duration::from_secs(600),
    taking: Duration::from_secs(600),
    stalling: Duration::from_secs(600),
    leaving: Duration::from_secs(600),
    ending: Duration::from_secs(600),
    pause: Duration::from_millis(1),
    beat: None,
};

/// Answers a line with itself; "who", "big" and "later" with what they say.
struct Echo {
    limits: Limits,
    tickets: Sender<Ticket>,
}

impl Protocol for Echo {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&byte| byte == b'\n')
    }

    fn reply(&mut self, question: Question<'_>, asker: &Asker<'_>) -> Reply {
        match question {
            Question::Whole(b"who") => Reply::Now(thread::current().name().unwrap().into()),
            Question::Whole(b"big") => Reply::Now(vec![b'x'; BIG_BYTES]),
            Question::Whole(b"later") => {
                self.tickets.send(asker.ticket()).unwrap();
                Reply::Later
            }
            Question::Whole(line) => Reply::Now(line.to_vec()),
            Question::TooLong => Reply::Now(b"too long".into()),
        }
    }

    fn overdue(&self) -> Vec<u8> {
        b"overdue".into()
    }
}

/// A service on loopback.
pub(super) struct Served<L: Listener> {
    pub(super) service: Service<L>,
    address: SocketAddr,
    pub(super) tickets: Receiver<Ticket>,
}

pub(super) fn serve(limits: Limits) -> Served<TcpListener> {
    serve_by(limits, |listener| listener, Box::new(nix::poll::poll))
}

pub(super) fn serve_by<L: Listener>(limits: Limits, wrap: impl FnOnce(TcpListener) -> L, poll: Poll) -> Served<L> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tickets, inbox) = channel();
    let registry = ThreadRegistry::new().0;
    let service = Service::start_with("udpd-test", wrap(listener), &registry, Echo { limits, tickets }, poll).unwrap();
    Served { service, address, tickets: inbox }
}

impl<L: Listener> Served<L> {
    pub(super) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// A client that has asked and not read yet.
    pub(super) fn asked(&self, question: &str) -> TcpStream {
        let mut client = self.connect();
        client.write_all(question.as_bytes()).unwrap();
        client
    }

    pub(super) fn ask(&self, question: &str) -> String {
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
    served.service.stop();
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
    served.service.stop();
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
    served.service.stop();
}

#[test]
fn nor_do_a_thousand_keep_it_out_that_drip_shut_their_side_or_never_read() {
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
    served.service.stop();
}

#[test]
fn who_is_owed_an_answer_is_never_the_one_to_go() {
    let served = serve(PATIENT);
    let owed: Vec<TcpStream> = (0..PATIENT.held_max - 1).map(|_| served.asked("later\n")).collect();
    let tickets: Vec<Ticket> = owed.iter().map(|_| served.tickets.recv().unwrap()).collect();
    let mut idle: Vec<TcpStream> = (0..100).map(|_| served.connect()).collect();
    assert_eq!(served.ask("between\n"), "between");
    assert!(held(&mut idle) <= 1);
    for ticket in tickets {
        ticket.answer(b"at last".into());
    }
    for client in owed {
        assert_eq!(io::read_to_string(client).unwrap(), "at last");
    }
    served.service.stop();
}

#[test]
fn a_client_too_many_waits_until_the_first_is_done_where_all_are_owed_an_answer() {
    let served = serve(Limits { held_max: 1, ..PATIENT });
    let owed = served.asked("later\n");
    let ticket = served.tickets.recv().unwrap();
    let next = served.asked("next\n");
    ticket.answer(b"at last".into());
    assert_eq!(io::read_to_string(owed).unwrap(), "at last");
    assert_eq!(io::read_to_string(next).unwrap(), "next");
    served.service.stop();
}

#[test]
fn who_asks_in_the_last_moment_before_it_would_have_to_go_is_heard() {
    let (hand_over, mut asker) = channel::<TcpStream>().into_pair();
    let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
        let outcome = nix::poll::poll(sockets, timeout);
        // Its question comes after the look at all of them, and before there is room for one more.
        if let Some(mut client) = asker() {
            client.write_all(b"heard\n").unwrap();
        }
        outcome
    };
    let served = serve_by(Limits { held_max: 1, ..PATIENT }, |listener| listener, Box::new(poll));
    let late = served.connect();
    hand_over(late.try_clone().unwrap());
    assert_eq!(served.ask("another\n"), "another");
    assert_eq!(io::read_to_string(late).unwrap(), "heard");
    served.service.stop();
}

#[test]
fn each_stage_has_its_deadline() {
    let short = Duration::from_millis(20);
    let served = serve(Limits { held_max: 1, asking: short, ..PATIENT });
    let mut dripping = served.connect();
    // Drips until the server hangs up, which it does only if dripping buys no time.
    while dripping.write_all(b"x").is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    served.service.stop();
    let served = serve(Limits { held_max: 1, waiting: short, ..PATIENT });
    assert_eq!(served.ask("later\n"), "overdue");
    served.service.stop();
    let served = serve(Limits { held_max: 1, taking: short, ..PATIENT });
    let never_reads = served.asked("big\n");
    assert_eq!(served.ask("next\n"), "next");
    let read = io::copy(&mut &never_reads, &mut io::sink()).unwrap_or(0);
    assert!(read < BIG_BYTES as u64);
    served.service.stop();
    let served = serve(Limits { held_max: 2, leaving: short, ..PATIENT });
    let mut stays = served.asked("answer\n");
    assert_eq!(io::read_to_string(&stays).unwrap(), "answer");
    // It may write into a connection that the service has left, until that says so.
    while stays.write_all(b"x").is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    served.service.stop();
}

#[test]
fn an_answer_that_nobody_will_give_ends_the_connection_and_one_that_nobody_waits_for_is_forgotten() {
    let served = serve(Limits { held_max: 1, ..PATIENT });
    let client = served.asked("later\n");
    drop(served.tickets.recv().unwrap());
    assert_eq!(io::read_to_string(client).unwrap(), "");
    let gone = served.asked("later\n");
    let ticket = served.tickets.recv().unwrap();
    socket::setsockopt(&gone, socket::sockopt::Linger, &RESET).unwrap();
    drop(gone);
    assert_eq!(served.ask("next\n"), "next");
    ticket.answer(b"too late".into());
    assert_eq!(served.ask("next\n"), "next");
    served.service.stop();
}

#[test]
fn an_idle_service_waits_without_a_limit_stops_and_then_refuses_clients() {
    let (said, heard) = channel();
    let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
        let _ = said.send((sockets.len(), timeout.is_none()));
        nix::poll::poll(sockets, timeout)
    };
    let served = serve_by(PATIENT, |listener| listener, Box::new(poll));
    assert_eq!(heard.recv().unwrap(), (2, true));
    assert_eq!(served.ask("hello\n"), "hello");
    // The client has left, so the last wait is again one for everybody and nothing else.
    while heard.recv().unwrap() != (2, true) {}
    assert!(heard.try_recv().is_err());
    let address = served.address;
    served.service.stop();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn stopping_lets_the_present_answers_finish() {
    let served = serve(PATIENT);
    let (mut taking, waiting, idle) = (served.asked("big\n"), served.asked("later\n"), served.connect());
    let ticket = served.tickets.recv().unwrap();
    let address = served.address;
    let stopping = thread::spawn(move || served.service.stop());
    assert_eq!(io::read_to_string(idle).unwrap_or_default(), "", "who has not asked is let go at once");
    while TcpStream::connect(address).is_ok() {}
    ticket.answer(b"done".into());
    assert_eq!(io::read_to_string(waiting).unwrap(), "done");
    assert_eq!(io::copy(&mut taking, &mut io::sink()).unwrap(), BIG_BYTES as u64);
    stopping.join().unwrap();
}

#[test]
fn stopping_does_not_wait_for_who_never_reads_or_never_gets_an_answer() {
    let served = serve(Limits { ending: Duration::from_millis(20), ..PATIENT });
    let (_never_reads, waiting) = (served.asked("big\n"), served.asked("later\n"));
    let _ticket = served.tickets.recv().unwrap();
    served.service.stop();
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
        // Dropping a ticket, or giving an answer that nobody may be waiting for.
        if let Ok(ticket) = served.tickets.try_recv()
            && random(2) == 0
        {
            ticket.answer(b"late".into());
        }
        if round % 10 == 0 {
            kept.clear();
            served.tickets.try_iter().for_each(drop);
            assert_eq!(served.ask("hello\n"), "hello", "in round {round}");
        }
    }
    served.service.stop();
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
