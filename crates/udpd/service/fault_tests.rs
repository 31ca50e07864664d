//! A service against system calls that fail.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};

use super::tests::{PATIENT, Served, serve_by};
use super::*;

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
        served.tickets.recv().unwrap().answer(b"done".into());
        assert_eq!(io::read_to_string(waiting).unwrap(), "done");
        served.service.stop();
    }
}

/// A listener whose next calls of `accept` fail.
struct Failing {
    listener: TcpListener,
    errors: Mutex<VecDeque<Errno>>,
    /// As in a process that has no descriptor left, where nobody waiting looks like everybody else.
    on_nobody: Option<Sender<()>>,
}

impl AsFd for Failing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Listener for Failing {
    type Client = TcpStream;

    fn set_nonblocking(&self) -> io::Result<()> {
        self.listener.set_nonblocking(true)
    }

    fn accept(&self) -> io::Result<TcpStream> {
        if let Some(error) = self.errors.lock().unwrap().pop_front() {
            return Err(error.into());
        }
        Listener::accept(&self.listener).map_err(|error| match &self.on_nobody {
            Some(said) if error.kind() == io::ErrorKind::WouldBlock => {
                said.send(()).unwrap();
                Errno::EMFILE.into()
            }
            _ => error,
        })
    }
}

fn serve_failing(errors: &[Errno], on_nobody: Option<Sender<()>>) -> Served<Failing> {
    let errors = Mutex::new(errors.iter().copied().collect());
    let poll: Poll = Box::new(nix::poll::poll);
    serve_by(PATIENT, |listener| Failing { listener, errors, on_nobody }, poll)
}

#[test]
fn where_descriptors_are_short_nobody_has_to_go_for_one_who_is_not_there() {
    let (said, heard) = channel();
    let served = serve_failing(&[], Some(said));
    let mut client = served.connect();
    heard.recv().unwrap();
    client.write_all(b"hello\n").unwrap();
    assert_eq!(io::read_to_string(client).unwrap(), "hello");
    served.service.stop();
}

#[test]
fn accepting_that_fails_for_whatever_reason_is_tried_again() {
    let cases: [&[Errno]; 4] = [&[Errno::EMFILE; 5], &[Errno::ENFILE], &[Errno::ECONNABORTED; 3], &[Errno::ENOMEM; 40]];
    for errors in cases {
        let served = serve_failing(errors, None);
        assert_eq!(served.ask("hello\n"), "hello", "{errors:?}");
        assert!(served.service.listener().errors.lock().unwrap().is_empty());
        served.service.stop();
    }
}

#[test]
fn where_descriptors_are_short_an_idle_connection_makes_room_and_one_that_is_owed_an_answer_does_not() {
    let served = serve_failing(&[], None);
    let (idle, owed) = (served.connect(), served.asked("later\n"));
    let ticket = served.tickets.recv().unwrap();
    served.service.listener().errors.lock().unwrap().push_back(Errno::EMFILE);
    assert_eq!(served.ask("hello\n"), "hello");
    assert_eq!(io::read_to_string(idle).unwrap(), "");
    ticket.answer(b"done".into());
    assert_eq!(io::read_to_string(owed).unwrap(), "done");
    served.service.stop();
}
