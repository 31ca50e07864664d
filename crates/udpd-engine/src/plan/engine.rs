//! Which engine the lanes of a listener receive with, and why: decided once at the start, and logged.
//!
//! `engine = "auto"` takes what measured better, which is recvmmsg: see docs/tuning.md. What is written in the
//! configuration is used or refused, never replaced. To learn whether the kernel permits a ring, udpd makes one and
//! drops it again.

use std::io;
use std::sync::Arc;

use mmsg::{Engine, RecvBatch, Refusal, Socket, Uring};

use crate::config::{EngineKind, ListenerConfig};
use udpd_base::exit::{ExitCode, Failure};

/// Payloads of up to so many bytes are copied out of the ring instead of handing over its block, so that the ring
/// reuses a few blocks that stay in the cache. `cargo run --release -p mmsg --example drain` measures both; longer
/// payloads cost more when they are copied from cold memory.
pub const COPY_UP_TO: usize = 256;

/// A decision and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineChoice {
    pub kind: EngineKind,
    /// Why, as the start-up line says it.
    pub why: String,
}

impl EngineChoice {
    /// What the lanes of addresses have where AF_XDP takes the receive queues.
    pub(super) fn beside_af_xdp() -> Self {
        let why = "for what the program of af_xdp lets pass, and for everything while a queue has no engine";
        Self { kind: EngineKind::Recvmmsg, why: why.to_owned() }
    }

    /// How many batches of so many slots the engine keeps to itself. Those of AF_XDP are in the plan of the lane.
    pub fn own_batches(&self, slots: usize) -> usize {
        match self.kind {
            EngineKind::Recvmmsg | EngineKind::AfXdp => 0,
            EngineKind::IoUring => Uring::reserve_batches(slots),
        }
    }
}

/// Decides for a listener. `supported` asks the kernel, and is called only where the answer matters.
pub fn choose(listener: &ListenerConfig, supported: impl Fn() -> Result<(), Refusal>) -> Result<EngineChoice, Failure> {
    let (kind, why) = match listener.engine {
        None => (EngineKind::Recvmmsg, "auto; io_uring measured no better, see udpd bench"),
        Some(kind) => (kind, "the configuration says so"),
    };
    if kind == EngineKind::IoUring {
        supported().map_err(|refusal| refused(&listener.name, &refusal))?;
    }
    Ok(EngineChoice { kind, why: why.to_owned() })
}

/// Makes the engine of a lane, on the thread that will use it. It takes its own batches from the end of `batches`.
pub fn make(
    choice: &EngineChoice,
    listener: &str,
    socket: &Arc<Socket>,
    batches: &mut Vec<RecvBatch>,
) -> Result<Engine, Failure> {
    if choice.kind != EngineKind::IoUring {
        return Ok(Engine::recvmmsg(Arc::clone(socket)));
    }
    let slots = batches.first().map_or(1, RecvBatch::slots);
    let own = batches.split_off(batches.len().saturating_sub(choice.own_batches(slots)));
    // The kernel permitted a ring a moment ago, so if this fails, a limit has been reached.
    Engine::uring(Arc::clone(socket), own, COPY_UP_TO).map_err(|error| not_made(listener, &error))
}

fn refused(listener: &str, refusal: &Refusal) -> Failure {
    let code = if refusal.is_forbidden() { ExitCode::Permission } else { ExitCode::Unavailable };
    let message = format!(
        "listener {listener}: io_uring is unavailable: {refusal}; or write engine = \"auto\", which uses recvmmsg"
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

    fn listener(engine: Option<EngineKind>) -> ListenerConfig {
        let mut listener = ListenerConfig::new("in", Vec::new());
        listener.engine = engine;
        listener
    }

    #[test]
    fn auto_does_not_even_ask_the_kernel_for_a_ring() {
        let choice = choose(&listener(None), || panic!("asked")).expect("a choice");
        assert_eq!((choice.kind, choice.own_batches(64)), (EngineKind::Recvmmsg, 0));
        assert!(choice.why.contains("measured"), "{}", choice.why);
    }

    #[test]
    fn what_is_written_is_used() {
        let choice = choose(&listener(Some(EngineKind::Recvmmsg)), || panic!("asked")).expect("a choice");
        assert_eq!((choice.kind, choice.own_batches(64)), (EngineKind::Recvmmsg, 0));
        let choice = choose(&listener(Some(EngineKind::IoUring)), || Ok(())).expect("a choice");
        assert_eq!((choice.kind, choice.own_batches(64)), (EngineKind::IoUring, 2));
    }
}
