//! A service against system calls that fail.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

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
    fails_on_nobody: Option<Arc<AtomicBool>>,
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
        Listener::accept(&self.listener).map_err(|error| match &self.fails_on_nobody {
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
    serve_by(PATIENT, |listener| Failing { listener, errors, fails_on_nobody: None }, Box::new(nix::poll::poll))
}

#[test]
fn where_descriptors_are_short_nobody_has_to_go_for_one_who_is_not_there() {
    let (said, heard) = channel();
    let has_failed = Arc::new(AtomicBool::new(false));
    let fails_on_nobody = Some(Arc::clone(&has_failed));
    let poll = move |sockets: &mut [PollFd<'_>], timeout: PollTimeout| {
        if has_failed.swap(false, Ordering::SeqCst) {
            said.send(()).unwrap();
        }
        nix::poll::poll(sockets, timeout)
    };
    let wrap = |listener| Failing { listener, errors: Mutex::default(), fails_on_nobody };
    let served = serve_by(PATIENT, wrap, Box::new(poll));
    let mut client = served.connect();
    // It is in, another was looked for, and the service waits again.
    heard.recv().unwrap();
    client.write_all(b"hello\n").unwrap();
    assert_eq!(io::read_to_string(client).unwrap(), "hello");
    served.service.stop();
}

#[test]
fn accepting_that_fails_for_whatever_reason_is_tried_again() {
    let cases: [&[Errno]; 4] = [&[Errno::EMFILE; 5], &[Errno::ENFILE], &[Errno::ECONNABORTED; 3], &[Errno::ENOMEM; 40]];
    for errors in cases {
        let served = serve_failing(errors);
        assert_eq!(served.ask("hello\n"), "hello", "{errors:?}");
        assert!(served.service.listener().errors.lock().unwrap().is_empty());
        served.service.stop();
    }
}

#[test]
fn where_descriptors_are_short_an_idle_connection_makes_room_and_one_that_is_owed_an_answer_does_not() {
    let served = serve_failing(&[]);
    let (idle, owed) = (served.connect(), served.asked("later\n"));
    let ticket = served.tickets.recv().unwrap();
    served.service.listener().errors.lock().unwrap().push_back(Errno::EMFILE);
    assert_eq!(served.ask("hello\n"), "hello");
    assert_eq!(io::read_to_string(idle).unwrap(), "");
    ticket.answer(b"done".into());
    assert_eq!(io::read_to_string(owed).unwrap(), "done");
    served.service.stop();
}
