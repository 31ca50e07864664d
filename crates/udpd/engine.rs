//! Which engine the lanes of a listener receive with, and why: decided once at the start, and said.
//!
//! The rule of `engine = "auto"` stands in one function, [`automatic`], and is written out in docs/operating.md. It asks the
//! kernel by making a ring and letting it go again; what is written in the configuration is used or refused, never swapped.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mmsg::{Engine, RecvBatch, Refusal, Socket, Uring};

use crate::config::{self, Listener};
use crate::exit::{ExitCode, Failure};

/// Payloads of up to so many bytes are copied out of the ring instead of changing hands. 0: none.
const COPY_UP_TO: usize = 0;

/// What receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// One system call for each batch.
    Recvmmsg,
    /// A ring that the kernel fills.
    IoUring,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            EngineKind::Recvmmsg => "recvmmsg",
            EngineKind::IoUring => "io_uring",
        })
    }
}

/// A decision and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub kind: EngineKind,
    /// True when the configuration names it, so that nothing else will do.
    pub written: bool,
    /// Why, in the words of the start-up line.
    pub why: String,
}

impl Choice {
    /// The batches that the engine keeps to itself, of so many slots each.
    pub fn own_batches(&self, slots: usize) -> usize {
        match self.kind {
            EngineKind::Recvmmsg => 0,
            EngineKind::IoUring => Uring::reserve_batches(slots),
        }
    }
}

/// Decides for a listener. `supported` asks the kernel, and is asked only where the answer matters.
pub fn choose(listener: &Listener, supported: impl Fn() -> Result<(), Refusal>) -> Result<Choice, Failure> {
    let written = |kind| Choice { kind, written: true, why: "the configuration says so".to_owned() };
    match listener.engine {
        config::Engine::Auto if !listener.busy_poll.is_zero() => {
            let why = "auto; with busy_poll a receive call spins, and io_uring makes none".to_owned();
            Ok(Choice { kind: EngineKind::Recvmmsg, written: false, why })
        }
        config::Engine::Auto => Ok(automatic(listener.gather, supported)),
        config::Engine::Recvmmsg => Ok(written(EngineKind::Recvmmsg)),
        config::Engine::IoUring => match supported() {
            Ok(()) => Ok(written(EngineKind::IoUring)),
            Err(refusal) => Err(refused(&listener.name, &refusal)),
        },
    }
}

/// The rule of "auto": io_uring pays where one wait lets many datagrams gather, and not for waking up once each.
fn automatic(gather: Duration, supported: impl Fn() -> Result<(), Refusal>) -> Choice {
    let chosen = |kind, why: String| Choice { kind, written: false, why };
    if gather.is_zero() {
        let why = "auto; with gather = \"0ms\" io_uring saves nothing that was measured".to_owned();
        return chosen(EngineKind::Recvmmsg, why);
    }
    match supported() {
        Ok(()) => chosen(EngineKind::IoUring, format!("auto; gather = \"{gather:?}\", and the kernel permits it")),
        Err(refusal) => chosen(EngineKind::Recvmmsg, format!("auto; io_uring is refused: {refusal}")),
    }
}

/// Makes the engine of a lane, on the thread that will use it. It takes its own batches from the end of `batches`.
pub fn make(
    choice: &Choice,
    listener: &str,
    socket: &Arc<Socket>,
    batches: &mut Vec<RecvBatch>,
) -> Result<Engine, Failure> {
    if choice.kind == EngineKind::Recvmmsg {
        return Ok(Engine::recvmmsg(Arc::clone(socket)));
    }
    let slots = batches.first().map_or(1, RecvBatch::slots);
    let own = batches.split_off(batches.len().saturating_sub(choice.own_batches(slots)));
    match Engine::uring(Arc::clone(socket), own, COPY_UP_TO) {
        Ok(engine) => Ok(engine),
        Err(error) if choice.written => Err(not_made(listener, &error)),
        Err(error) => {
            // The kernel had permitted it a moment ago: a limit has been reached.
            log::warn!("listener {listener}: a lane receives by recvmmsg, because its ring cannot be made: {error}");
            Ok(Engine::recvmmsg(Arc::clone(socket)))
        }
    }
}

fn refused(listener: &str, refusal: &Refusal) -> Failure {
    let code = if refusal.is_forbidden() { ExitCode::Permission } else { ExitCode::Unavailable };
    let message = format!(
        "listener {listener}: engine = \"io_uring\" is not to be had: {refusal}; or write engine = \"auto\", which then \
         uses recvmmsg"
    );
    Failure::new(code, message)
}

fn not_made(listener: &str, error: &io::Error) -> Failure {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>()) {
        Some(refusal) => refused(listener, refusal),
        None => Failure::new(ExitCode::Failure, format!("listener {listener}: cannot make its ring: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(engine: config::Engine, gather_ms: u64) -> Listener {
        let mut listener = Listener::new("in", Vec::new());
        (listener.engine, listener.gather) = (engine, Duration::from_millis(gather_ms));
        listener
    }

    #[test]
    fn auto_takes_the_ring_where_datagrams_gather_and_the_kernel_permits_it() {
        let choice = choose(&listener(config::Engine::Auto, 1), || Ok(())).expect("a choice");
        assert_eq!((choice.kind, choice.written), (EngineKind::IoUring, false));
        assert_eq!(choice.own_batches(64), 2);
    }

    #[test]
    fn auto_does_not_even_ask_the_kernel_where_nothing_gathers() {
        let choice = choose(&listener(config::Engine::Auto, 0), || panic!("asked")).expect("a choice");
        assert_eq!(choice.kind, EngineKind::Recvmmsg);
        assert!(choice.why.contains("gather"), "{}", choice.why);
    }

    #[test]
    fn auto_receives_by_recvmmsg_where_it_is_to_spin() {
        let mut listener = listener(config::Engine::Auto, 1);
        listener.busy_poll = Duration::from_micros(50);
        let choice = choose(&listener, || panic!("asked")).expect("a choice");
        assert_eq!(choice.kind, EngineKind::Recvmmsg);
        assert!(choice.why.contains("busy_poll"), "{}", choice.why);
    }

    #[test]
    fn what_is_written_is_used_whatever_auto_would_have_chosen() {
        let choice = choose(&listener(config::Engine::Recvmmsg, 1), || panic!("asked")).expect("a choice");
        assert_eq!((choice.kind, choice.written, choice.own_batches(64)), (EngineKind::Recvmmsg, true, 0));
        let choice = choose(&listener(config::Engine::IoUring, 0), || Ok(())).expect("a choice");
        assert_eq!(choice.kind, EngineKind::IoUring);
    }
}
