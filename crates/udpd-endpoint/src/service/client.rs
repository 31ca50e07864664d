//! One client of a service: the stage of its exchange, and what `poll` watches its connection for.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::poll::PollFlags;
use nix::sys::socket::{self, setsockopt, sockopt};

use super::ServiceLimits;
use udpd_base::seams::clock;

const PIECE_BYTES: usize = 4096;

/// How many pieces of unwanted bytes are read before the other clients have their turn.
const DISCARDED_PIECES: usize = 16;

/// A follower that sends more than this is closed, or reading it would be all that the thread does.
const UNASKED_BYTES_MAX: usize = 64 << 10;

/// How much the kernel keeps of a stream that its client does not read.
const STREAM_BUFFER_BYTES: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Client<S> {
    pub(super) number: u64,
    pub(super) deadline: Instant,
    stream: S,
    stage: ClientStage,
    is_secondary: bool,
    /// When it last took something of its answer.
    took: Instant,
}

#[derive(Debug)]
enum ClientStage {
    /// This much of its question has come.
    Asking(Vec<u8>),
    Waiting,
    /// This much of its answer is written.
    Taking {
        answer: Vec<u8>,
        written: usize,
    },
    /// This much of the latest piece is written, and there is never a second one to come: what the client is too slow
    /// for, it misses.
    Following {
        piece: Arc<[u8]>,
        written: usize,
        /// How many bytes it has sent without being asked.
        unasked: usize,
    },
    /// It has the whole answer. What it still sends is read and discarded: closing a connection with unread bytes would
    /// take the answer away from it again.
    Leaving,
}

/// The result of looking at a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientStep {
    /// The service has nothing to do for it.
    Stays,
    Leaves,
    Asks(Vec<u8>),
    /// It has sent more than a question may have.
    AsksTooMuch,
}

impl<S: Read + Write + AsFd> Client<S> {
    pub(super) fn new(number: u64, stream: S, limits: &ServiceLimits, now: Instant) -> Self {
        let stage = ClientStage::Asking(Vec::new());
        Self { number, deadline: now + limits.asking, stream, stage, is_secondary: false, took: now }
    }

    /// Whether it has asked and does not have the whole answer yet.
    pub(super) fn is_owed(&self) -> bool {
        matches!(self.stage, ClientStage::Waiting | ClientStage::Taking { .. } | ClientStage::Following { .. })
    }

    /// Whether it takes one of the secondary places.
    pub(super) fn is_secondary(&self) -> bool {
        self.is_secondary && self.is_owed()
    }

    pub(super) fn is_following(&self) -> bool {
        matches!(self.stage, ClientStage::Following { .. })
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, ClientStage::Waiting)
    }

    /// From when on it may be closed for another client; never while it waits for us or follows a stream.
    pub(super) fn may_go_from(&self, limits: &ServiceLimits) -> Option<Instant> {
        match self.stage {
            ClientStage::Asking(_) | ClientStage::Leaving => Some(self.took),
            ClientStage::Taking { .. } => Some(self.took + limits.stalling),
            ClientStage::Waiting | ClientStage::Following { .. } => None,
        }
    }

    /// What to watch for. `poll` always shows that the connection breaks.
    pub(super) fn interest(&self) -> PollFlags {
        match &self.stage {
            ClientStage::Asking(_) | ClientStage::Leaving => PollFlags::POLLIN,
            ClientStage::Waiting => PollFlags::empty(),
            ClientStage::Taking { .. } => PollFlags::POLLOUT,
            ClientStage::Following { piece, written, .. } if *written == piece.len() => PollFlags::POLLIN,
            ClientStage::Following { .. } => PollFlags::POLLIN | PollFlags::POLLOUT,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Does what can be done without waiting.
    pub(super) fn look(
        &mut self,
        limits: &ServiceLimits,
        question_length: impl Fn(&[u8]) -> Option<usize>,
    ) -> ClientStep {
        match &mut self.stage {
            ClientStage::Asking(question) => read_question(&mut self.stream, question, limits, question_length),
            // Nothing is expected from it now, so what has happened is its end.
            ClientStage::Waiting => ClientStep::Leaves,
            ClientStage::Taking { .. } => self.write(limits),
            ClientStage::Leaving => discard(&mut self.stream, &mut 0),
            ClientStage::Following { unasked, .. } => match discard(&mut self.stream, unasked) {
                ClientStep::Stays if *unasked > UNASKED_BYTES_MAX => ClientStep::Leaves,
                ClientStep::Stays => self.write_piece(limits),
                gone => gone,
            },
        }
    }

    pub(super) fn wait(&mut self, limits: &ServiceLimits) {
        (self.stage, self.deadline) = (ClientStage::Waiting, clock::now() + limits.waiting);
    }

    /// Gives it its answer, as much of it as the connection takes at once.
    pub(super) fn give(&mut self, answer: Vec<u8>, limits: &ServiceLimits) -> ClientStep {
        self.took = clock::now();
        (self.stage, self.deadline) = (ClientStage::Taking { answer, written: 0 }, self.took + limits.taking);
        self.write(limits)
    }

    /// As [`Self::give`], in a secondary place.
    pub(super) fn give_secondary(&mut self, answer: Vec<u8>, limits: &ServiceLimits) -> ClientStep {
        self.is_secondary = true;
        self.give(answer, limits)
    }

    /// Gives it the first piece of a stream.
    pub(super) fn start_stream(&mut self, first: Vec<u8>, limits: &ServiceLimits) -> ClientStep {
        self.is_secondary = true;
        // Where the kernel refuses, it keeps what tcp_wmem allows, which is bounded as well.
        let _ = setsockopt(&self.stream, sockopt::SndBuf, &STREAM_BUFFER_BYTES);
        self.stage = ClientStage::Following { piece: first.into(), written: 0, unasked: 0 };
        self.deadline = clock::now() + limits.taking;
        self.write_piece(limits)
    }

    /// Gives it the next piece, unless it still has some of the last one to take.
    pub(super) fn continue_stream(&mut self, next: &Arc<[u8]>, limits: &ServiceLimits) -> ClientStep {
        match &mut self.stage {
            ClientStage::Following { piece, written, .. } if *written == piece.len() => {
                (*piece, *written) = (Arc::clone(next), 0);
                self.deadline = clock::now() + limits.taking;
                self.write_piece(limits)
            }
            _ => ClientStep::Stays,
        }
    }

    fn write(&mut self, limits: &ServiceLimits) -> ClientStep {
        let ClientStage::Taking { answer, written } = &mut self.stage else { return ClientStep::Stays };
        match write_some(&mut self.stream, answer, written, &mut self.took) {
            Ok(false) => return ClientStep::Stays,
            Ok(true) => {}
            Err(_) => return ClientStep::Leaves,
        }
        // Tells the client that the answer is complete.
        if socket::shutdown(self.stream.as_fd().as_raw_fd(), socket::Shutdown::Write).is_err() {
            return ClientStep::Leaves;
        }
        (self.stage, self.deadline) = (ClientStage::Leaving, clock::now() + limits.leaving);
        ClientStep::Stays
    }

    fn write_piece(&mut self, limits: &ServiceLimits) -> ClientStep {
        let ClientStage::Following { piece, written, .. } = &mut self.stage else { return ClientStep::Stays };
        let had = *written;
        match write_some(&mut self.stream, piece, written, &mut self.took) {
            Err(_) => return ClientStep::Leaves,
            // Until the next piece nothing is expected of it.
            Ok(true) if had < piece.len() => self.deadline = self.took + limits.waiting,
            Ok(_) => {}
        }
        ClientStep::Stays
    }
}

/// Writes as much as the connection takes at once; whether that is all.
fn write_some(stream: &mut impl Write, bytes: &[u8], written: &mut usize, took: &mut Instant) -> io::Result<bool> {
    let before = *written;
    let outcome = loop {
        if *written == bytes.len() {
            break Ok(true);
        }
        match stream.write(&bytes[*written..]) {
            Ok(0) => break Err(ErrorKind::WriteZero.into()),
            Ok(count) => *written += count,
            Err(error) if may_come_again(error.kind()) => break Ok(false),
            Err(error) => break Err(error),
        }
    };
    if *written > before {
        *took = clock::now();
    }
    outcome
}

fn may_come_again(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn read_question(
    stream: &mut impl Read,
    question: &mut Vec<u8>,
    limits: &ServiceLimits,
    question_length: impl Fn(&[u8]) -> Option<usize>,
) -> ClientStep {
    let mut piece = [0; PIECE_BYTES];
    while question.len() < limits.question_bytes_max {
        let wanted = PIECE_BYTES.min(limits.question_bytes_max - question.len());
        match stream.read(&mut piece[..wanted]) {
            Ok(0) => return ClientStep::Leaves,
            Ok(count) => question.extend_from_slice(&piece[..count]),
            Err(error) if may_come_again(error.kind()) => return ClientStep::Stays,
            Err(_) => return ClientStep::Leaves,
        }
        if let Some(length) = question_length(question) {
            question.truncate(length);
            return ClientStep::Asks(std::mem::take(question));
        }
    }
    ClientStep::AsksTooMuch
}

/// Reads bytes that were not asked for, and adds their number to `bytes`.
fn discard(stream: &mut impl Read, bytes: &mut usize) -> ClientStep {
    let mut piece = [0; PIECE_BYTES];
    for _ in 0..DISCARDED_PIECES {
        match stream.read(&mut piece) {
            Ok(0) => return ClientStep::Leaves,
            Ok(count) => *bytes += count,
            Err(error) if may_come_again(error.kind()) => return ClientStep::Stays,
            Err(_) => return ClientStep::Leaves,
        }
    }
    ClientStep::Stays
}
