//! One client of a service: where its exchange stands, and what its connection is watched for meanwhile.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::poll::PollFlags;

use super::protocol::{Limits, Stream};

/// How much is read at once.
const PIECE_BYTES: usize = 4096;

/// How many pieces of what nobody wants are read before the others have their turn.
const FORGOTTEN_PIECES: usize = 16;

/// A client and the moment at which its patience, or ours, is over.
#[derive(Debug)]
pub(super) struct Client<S> {
    pub(super) number: u64,
    pub(super) deadline: Instant,
    stream: S,
    stage: Stage,
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
        Self { number, deadline: now + limits.asking, stream, stage: Stage::Asking(Vec::new()) }
    }

    /// Whether it has asked and does not have the whole answer yet.
    pub(super) fn is_owed(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Taking { .. })
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// What to watch for. That the connection breaks is always seen.
    pub(super) fn interest(&self) -> PollFlags {
        match self.stage {
            Stage::Asking(_) | Stage::Leaving => PollFlags::POLLIN,
            Stage::Waiting => PollFlags::empty(),
            Stage::Taking { .. } => PollFlags::POLLOUT,
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
            Stage::Leaving => forget(&mut self.stream),
        }
    }

    pub(super) fn wait(&mut self, limits: &Limits) {
        (self.stage, self.deadline) = (Stage::Waiting, Instant::now() + limits.waiting);
    }

    /// Gives it its answer, as much of it as the connection takes at once.
    pub(super) fn give(&mut self, answer: Vec<u8>, limits: &Limits) -> Step {
        (self.stage, self.deadline) = (Stage::Taking { answer, written: 0 }, Instant::now() + limits.taking);
        self.write(limits)
    }

    fn write(&mut self, limits: &Limits) -> Step {
        let Stage::Taking { answer, written } = &mut self.stage else { return Step::Stays };
        while *written < answer.len() {
            match self.stream.write(&answer[*written..]) {
                Ok(0) => return Step::Leaves,
                Ok(count) => *written += count,
                Err(error) if may_come_again(error.kind()) => return Step::Stays,
                Err(_) => return Step::Leaves,
            }
        }
        if self.stream.end_of_answer().is_err() {
            return Step::Leaves;
        }
        (self.stage, self.deadline) = (Stage::Leaving, Instant::now() + limits.leaving);
        Step::Stays
    }
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

fn forget(stream: &mut impl Stream) -> Step {
    let mut piece = [0; PIECE_BYTES];
    for _ in 0..FORGOTTEN_PIECES {
        match stream.read(&mut piece) {
            Ok(0) => return Step::Leaves,
            Ok(_) => {}
            Err(error) if may_come_again(error.kind()) => return Step::Stays,
            Err(_) => return Step::Leaves,
        }
    }
    Step::Stays
}
