//! One client of a service: where its exchange stands, and what its connection is watched for meanwhile.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use nix::poll::PollFlags;

use super::protocol::{Limits, Stream};

/// How much is read at once.
const PIECE_BYTES: usize = 4096;

/// How many pieces of what nobody wants are read before the others have their turn.
const FORGOTTEN_PIECES: usize = 16;

/// A follower that sends more than this has to go, or reading it would be all that the thread does.
const UNASKED_BYTES_MAX: usize = 64 << 10;

/// A client and the moment at which its patience, or ours, is over.
#[derive(Debug)]
pub(super) struct Client<S> {
    pub(super) number: u64,
    pub(super) deadline: Instant,
    stream: S,
    stage: Stage,
    is_guest: bool,
    /// When it last took something of its answer.
    took: Instant,
}

#[derive(Debug)]
enum Stage {
    /// This much of its question has come.
    Asking(Vec<u8>),
    Waiting,
    /// This much of its answer is written.
    Taking {
        answer: Vec<u8>,
        written: usize,
    },
    /// It has this much of the latest piece that it was given. It never has more than one to come: what it is too slow
    /// for, it misses.
    Following {
        piece: Arc<[u8]>,
        written: usize,
        /// How many bytes it has sent that nobody asked for.
        unasked: usize,
    },
    /// It has the whole answer. What it still sends is read and forgotten: closing a connection with unread bytes would
    /// take the answer away from it again.
    Leaving,
}

/// What has come of looking at a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing that anybody else has to do.
    Stays,
    Leaves,
    Asks(Vec<u8>),
    /// It has sent more than a question may have.
    AsksTooMuch,
}

impl<S: Stream> Client<S> {
    pub(super) fn new(number: u64, stream: S, limits: &Limits, now: Instant) -> Self {
        let stage = Stage::Asking(Vec::new());
        Self { number, deadline: now + limits.asking, stream, stage, is_guest: false, took: now }
    }

    /// Whether it has asked and does not have the whole answer yet.
    pub(super) fn is_owed(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Taking { .. } | Stage::Following { .. })
    }

    /// Whether it has one of the places that guests may have.
    pub(super) fn is_guest(&self) -> bool {
        self.is_guest && self.is_owed()
    }

    pub(super) fn is_following(&self) -> bool {
        matches!(self.stage, Stage::Following { .. })
    }

    /// From when on it may have to go for somebody else. Never, while it waits for us or follows a stream.
    pub(super) fn may_go_from(&self, limits: &Limits) -> Option<Instant> {
        match self.stage {
            Stage::Asking(_) | Stage::Leaving => Some(self.took),
            Stage::Taking { .. } => Some(self.took + limits.stalling),
            Stage::Waiting | Stage::Following { .. } => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// What to watch for. That the connection breaks is always seen.
    pub(super) fn interest(&self) -> PollFlags {
        match &self.stage {
            Stage::Asking(_) | Stage::Leaving => PollFlags::POLLIN,
            Stage::Waiting => PollFlags::empty(),
            Stage::Taking { .. } => PollFlags::POLLOUT,
            Stage::Following { piece, written, .. } if *written == piece.len() => PollFlags::POLLIN,
            Stage::Following { .. } => PollFlags::POLLIN | PollFlags::POLLOUT,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Does what can be done without waiting.
    pub(super) fn look(&mut self, limits: &Limits, question_length: impl Fn(&[u8]) -> Option<usize>) -> Step {
        match &mut self.stage {
            Stage::Asking(question) => read_question(&mut self.stream, question, limits, question_length),
            // Nothing is expected from it now, so what has happened is its end.
            Stage::Waiting => Step::Leaves,
            Stage::Taking { .. } => self.write(limits),
            Stage::Leaving => forget(&mut self.stream, &mut 0),
            Stage::Following { unasked, .. } => match forget(&mut self.stream, unasked) {
                Step::Stays if *unasked > UNASKED_BYTES_MAX => Step::Leaves,
                Step::Stays => self.write_piece(limits),
                gone => gone,
            },
        }
    }

    pub(super) fn wait(&mut self, limits: &Limits) {
        (self.stage, self.deadline) = (Stage::Waiting, Instant::now() + limits.waiting);
    }

    /// Gives it its answer, as much of it as the connection takes at once.
    pub(super) fn give(&mut self, answer: Vec<u8>, limits: &Limits) -> Step {
        self.took = Instant::now();
        (self.stage, self.deadline) = (Stage::Taking { answer, written: 0 }, self.took + limits.taking);
        self.write(limits)
    }

    /// As [`Self::give`], to one who has the place of a guest.
    pub(super) fn give_guest(&mut self, answer: Vec<u8>, limits: &Limits) -> Step {
        self.is_guest = true;
        self.give(answer, limits)
    }

    /// Gives it the first piece of a stream.
    pub(super) fn let_follow(&mut self, first: Vec<u8>, limits: &Limits) -> Step {
        self.is_guest = true;
        self.stream.keep_little();
        (self.stage, self.deadline) =
            (Stage::Following { piece: first.into(), written: 0, unasked: 0 }, Instant::now() + limits.taking);
        self.write_piece(limits)
    }

    /// Gives it the next piece, unless it still has some of the last one to take.
    pub(super) fn go_on(&mut self, next: &Arc<[u8]>, limits: &Limits) -> Step {
        match &mut self.stage {
            Stage::Following { piece, written, .. } if *written == piece.len() => {
                (*piece, *written) = (Arc::clone(next), 0);
                self.deadline = Instant::now() + limits.taking;
                self.write_piece(limits)
            }
            _ => Step::Stays,
        }
    }

    fn write(&mut self, limits: &Limits) -> Step {
        let Stage::Taking { answer, written } = &mut self.stage else { return Step::Stays };
        match write_some(&mut self.stream, answer, written, &mut self.took) {
            Written::Some => return Step::Stays,
            Written::Broken => return Step::Leaves,
            Written::All => {}
        }
        if self.stream.end_of_answer().is_err() {
            return Step::Leaves;
        }
        (self.stage, self.deadline) = (Stage::Leaving, Instant::now() + limits.leaving);
        Step::Stays
    }

    fn write_piece(&mut self, limits: &Limits) -> Step {
        let Stage::Following { piece, written, .. } = &mut self.stage else { return Step::Stays };
        let had = *written;
        match write_some(&mut self.stream, piece, written, &mut self.took) {
            Written::Broken => return Step::Leaves,
            // Until the next piece nothing is expected of it.
            Written::All if had < piece.len() => self.deadline = self.took + limits.waiting,
            Written::All | Written::Some => {}
        }
        Step::Stays
    }
}

/// How far writing has come.
enum Written {
    All,
    Some,
    Broken,
}

/// Writes as much as the connection takes at once.
fn write_some(stream: &mut impl Stream, bytes: &[u8], written: &mut usize, took: &mut Instant) -> Written {
    let before = *written;
    let outcome = loop {
        if *written == bytes.len() {
            break Written::All;
        }
        match stream.write(&bytes[*written..]) {
            Ok(0) => break Written::Broken,
            Ok(count) => *written += count,
            Err(error) if may_come_again(error.kind()) => break Written::Some,
            Err(_) => break Written::Broken,
        }
    };
    if *written > before {
        *took = Instant::now();
    }
    outcome
}

fn may_come_again(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn read_question(
    stream: &mut impl Stream,
    question: &mut Vec<u8>,
    limits: &Limits,
    question_length: impl Fn(&[u8]) -> Option<usize>,
) -> Step {
    let mut piece = [0; PIECE_BYTES];
    while question.len() < limits.question_bytes_max {
        let wanted = PIECE_BYTES.min(limits.question_bytes_max - question.len());
        match stream.read(&mut piece[..wanted]) {
            Ok(0) => return Step::Leaves,
            Ok(count) => question.extend_from_slice(&piece[..count]),
            Err(error) if may_come_again(error.kind()) => return Step::Stays,
            Err(_) => return Step::Leaves,
        }
        if let Some(length) = question_length(question) {
            question.truncate(length);
            return Step::Asks(std::mem::take(question));
        }
    }
    Step::AsksTooMuch
}

/// Reads what nobody wants, and adds how much it was.
fn forget(stream: &mut impl Stream, bytes: &mut usize) -> Step {
    let mut piece = [0; PIECE_BYTES];
    for _ in 0..FORGOTTEN_PIECES {
        match stream.read(&mut piece) {
            Ok(0) => return Step::Leaves,
            Ok(count) => *bytes += count,
            Err(error) if may_come_again(error.kind()) => return Step::Stays,
            Err(_) => return Step::Leaves,
        }
    }
    Step::Stays
}
