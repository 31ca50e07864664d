//! The steps of the ladder: each is a way to receive that differs from another in one thing, so that its figure says
//! what that one thing is worth. And what they run on: the cores that send and receive, the load, and loopback, which
//! every machine has, or a cable, where AF_XDP is a step like the others.
//!
//! On a cable all steps get the same frames from the same sender, so that the last one can be compared with the first.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mmsg::Refusal;
use mmsg::xdp::{self, Redirect, Wanted};
use serde::Serialize;

use crate::cable::Cable;
use crate::pacer::{Rate, SendAmount};
use crate::send::{self, SendLoad};
use crate::sizes::Sizes;
use udpd_base::exit::Failure;
use udpd_engine::config::EngineKind;

/// Datagrams in one call, but for the first step.
const BATCH: usize = 64;

/// How long the last steps let datagrams gather.
const GATHER: Duration = Duration::from_millis(1);

/// How datagrams are spread over several sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Every thread receives from one socket.
    OneSocket,
    /// A socket each; the kernel's hash over addresses and ports chooses.
    ByFlow,
    /// A socket each; the core that handled the datagram chooses.
    ByCore,
}

/// A way to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceiveMethod {
    pub threads: usize,
    pub sharing: Sharing,
    pub is_pinned: bool,
    /// Datagrams in one call at most.
    pub slots: usize,
    pub engine: EngineKind,
    /// How long datagrams gather; zero: not at all.
    pub gather: Duration,
    pub gro: bool,
}

/// What this machine and this path support.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepSupport<'a> {
    pub io_uring: &'a Result<(), Refusal>,
    /// Why there is no AF_XDP, if so.
    pub no_af_xdp: Option<&'a str>,
    /// Datagrams in a train of the sender.
    pub train: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LadderStep {
    Recv,
    Recvmmsg,
    Pinned,
    /// The same as `pinned` once more: what differs is the noise of this machine.
    Again,
    Threads,
    Reuseport,
    ByCpu,
    Gro,
    IoUring,
    Gather,
    IoUringGather,
    AfXdp,
    AfXdpGather,
}

impl LadderStep {
    /// Each with its name in tables and in `--steps`, and what is different about it.
    const NAMED: [(LadderStep, &str, &str); 13] = [
        (LadderStep::Recv, "recv", "one socket, one datagram in a call"),
        (LadderStep::Recvmmsg, "recvmmsg", "64 in a call"),
        (LadderStep::Pinned, "pinned", "recvmmsg on a pinned thread"),
        (LadderStep::Again, "again", "pinned once more: the difference is noise"),
        (LadderStep::Threads, "threads", "several pinned threads on one socket"),
        (LadderStep::Reuseport, "reuseport", "a socket for each thread, chosen by flow"),
        (LadderStep::ByCpu, "by_cpu", "a socket for each thread, chosen by core"),
        (LadderStep::Gro, "gro", "pinned, with UDP_GRO"),
        (LadderStep::IoUring, "io_uring", "pinned, with io_uring"),
        (LadderStep::Gather, "gather", "pinned, letting datagrams gather for 1 ms"),
        (LadderStep::IoUringGather, "io_uring_gather", "io_uring, letting datagrams gather for 1 ms"),
        (LadderStep::AfXdp, "af_xdp", "past the sockets, a thread for each receive queue"),
        (LadderStep::AfXdpGather, "af_xdp_gather", "af_xdp, letting datagrams gather for 1 ms"),
    ];

    pub(super) fn all() -> impl Iterator<Item = LadderStep> {
        Self::NAMED.iter().map(|(step, ..)| *step)
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMED[self as usize].1
    }

    pub(super) fn what(self) -> &'static str {
        Self::NAMED[self as usize].2
    }

    pub(super) fn wants_cable(self) -> bool {
        matches!(self, LadderStep::AfXdp | LadderStep::AfXdpGather)
    }

    /// How it receives with this many receiver threads and receive queues.
    pub(super) fn way(self, threads: usize, queues: usize) -> ReceiveMethod {
        let base = ReceiveMethod {
            threads: 1,
            sharing: Sharing::OneSocket,
            is_pinned: true,
            slots: BATCH,
            engine: EngineKind::Recvmmsg,
            gather: Duration::ZERO,
            gro: false,
        };
        match self {
            LadderStep::Recv => ReceiveMethod { slots: 1, is_pinned: false, ..base },
            LadderStep::Recvmmsg => ReceiveMethod { is_pinned: false, ..base },
            LadderStep::Pinned | LadderStep::Again => base,
            LadderStep::Threads => ReceiveMethod { threads, ..base },
            LadderStep::Reuseport => ReceiveMethod { threads, sharing: Sharing::ByFlow, ..base },
            LadderStep::ByCpu => ReceiveMethod { threads, sharing: Sharing::ByCore, ..base },
            LadderStep::Gro => ReceiveMethod { gro: true, ..base },
            LadderStep::IoUring => ReceiveMethod { engine: EngineKind::IoUring, ..base },
            LadderStep::Gather => ReceiveMethod { gather: GATHER, ..base },
            LadderStep::IoUringGather => ReceiveMethod { engine: EngineKind::IoUring, gather: GATHER, ..base },
            LadderStep::AfXdp => ReceiveMethod { threads: queues, engine: EngineKind::AfXdp, ..base },
            LadderStep::AfXdpGather => {
                ReceiveMethod { threads: queues, engine: EngineKind::AfXdp, gather: GATHER, ..base }
            }
        }
    }

    /// Why this machine cannot measure the step, if so.
    pub(super) fn obstacle(self, reach: StepSupport<'_>) -> Option<String> {
        match (self, reach.io_uring) {
            (LadderStep::IoUring | LadderStep::IoUringGather, Err(refusal)) => {
                Some(format!("io_uring is refused: {refusal}"))
            }
            (LadderStep::Gro, _) if reach.train < 2 => {
                Some("the sender makes no trains (--gso 1, or a cable), and GRO merges only trains".to_owned())
            }
            _ if self.wants_cable() => reach.no_af_xdp.map(ToOwned::to_owned),
            _ => None,
        }
    }
}

/// The port of a program that is only loaded to see whether that works.
const PROBE_PORT: u16 = 9;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrialCores {
    /// Sends, and so pays for the receive interrupt of loopback.
    pub sender: usize,
    /// Receive, in turn.
    pub receivers: Vec<usize>,
}

impl TrialCores {
    /// The first core sends and the others receive; a machine with one core shares it.
    pub(super) fn of(allowed: &[usize]) -> Self {
        let sender = allowed.first().copied().unwrap_or(0);
        let receivers = if allowed.len() > 1 { allowed[1..].to_vec() } else { vec![sender] };
        Self { sender, receivers }
    }

    /// How many receivers the steps with several of them have.
    pub(super) fn several(&self) -> usize {
        self.receivers.len().clamp(2, 4)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OfferedLoad {
    pub rate: Rate,
    pub duration: Duration,
    pub size: usize,
    /// Datagrams in a UDP_SEGMENT train; 1: none.
    pub train: usize,
}

/// Where the ladder is measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TestPath {
    cable: Option<Cable>,
}

impl TestPath {
    pub(super) fn of(cable: Option<Cable>) -> Self {
        Self { cable }
    }

    pub(super) fn what(&self) -> String {
        self.cable.as_ref().map_or_else(|| "loopback".to_owned(), |cable| format!("{}, {cable}", cable.receiver))
    }

    /// Where the sockets of the receivers are bound.
    pub(super) fn address(&self) -> IpAddr {
        self.cable.as_ref().map_or(Ipv4Addr::LOCALHOST.into(), |cable| cable.address)
    }

    /// How many receive queues an AF_XDP program has to serve.
    pub(super) fn queues(&self) -> usize {
        let interface = self.cable.as_ref().map(|cable| cable.receiver.as_str());
        interface.and_then(|name| steer::receive_queues(Path::new("/sys"), name)).unwrap_or(1).max(1)
    }

    /// Attaches a program to the receiver until the result is dropped.
    pub(super) fn redirect(&self, port: u16) -> Option<Result<Redirect, xdp::Refusal>> {
        let cable = self.cable.as_ref()?;
        Some(Redirect::attach(&Wanted::new(&cable.receiver, port), &[cable.address]))
    }

    /// Why there is no AF_XDP here, if so.
    pub(super) fn obstacle(&self) -> Option<String> {
        match self.redirect(PROBE_PORT) {
            None => Some("AF_XDP receives from an Ethernet interface; add --interface".to_owned()),
            Some(Err(refusal)) => Some(refusal.to_string()),
            Some(Ok(_)) => None,
        }
    }

    pub(super) fn send(
        &self,
        offer: &OfferedLoad,
        to: SocketAddr,
        cores: &TrialCores,
        stop: &Arc<AtomicBool>,
    ) -> Result<send::SenderReport, Failure> {
        let load = SendLoad {
            sizes: Sizes::Fixed(offer.size),
            gso: NonZeroUsize::new(offer.train).filter(|train| train.get() > 1),
            burst: NonZeroUsize::new(32),
            cpus: vec![cores.sender],
            ..SendLoad::new(to, offer.rate, SendAmount::Seconds(offer.duration))
        };
        match &self.cable {
            Some(cable) => cable.send(&load, stop, &mut |_| {}),
            None => send::run(&load, stop, &mut |_| {}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_but_the_repetition_differs_from_every_other() {
        assert!(LadderStep::all().enumerate().all(|(place, step)| step as usize == place), "names go by number");
        let ways: Vec<ReceiveMethod> =
            LadderStep::all().filter(|step| *step != LadderStep::Again).map(|step| step.way(3, 1)).collect();
        for (place, way) in ways.iter().enumerate() {
            assert!(!ways[place + 1..].contains(way), "{way:?} is there twice");
        }
        assert_eq!(LadderStep::Again.way(3, 1), LadderStep::Pinned.way(3, 1));
        assert_eq!(LadderStep::AfXdp.way(3, 8).threads, 8);
    }

    #[test]
    fn what_a_machine_cannot_do_is_told_with_its_reason() {
        let obstacle = |step: LadderStep, train| {
            step.obstacle(StepSupport { io_uring: &Ok(()), no_af_xdp: Some("add --interface"), train })
        };
        assert_eq!(obstacle(LadderStep::Gro, 20), None);
        assert!(obstacle(LadderStep::Gro, 1).expect("an obstacle").contains("--gso 1"));
        assert_eq!(obstacle(LadderStep::Recvmmsg, 1), None);
        assert_eq!(obstacle(LadderStep::AfXdp, 1).as_deref(), Some("add --interface"));
    }

    #[test]
    fn one_core_is_shared_and_of_several_the_first_sends() {
        assert_eq!(TrialCores::of(&[5]), TrialCores { sender: 5, receivers: vec![5] });
        assert_eq!(TrialCores::of(&[2, 3, 9]), TrialCores { sender: 2, receivers: vec![3, 9] });
        assert_eq!((TrialCores::of(&[5]).several(), TrialCores::of(&[0, 1, 2, 3, 4, 5]).several()), (2, 4));
    }
}
