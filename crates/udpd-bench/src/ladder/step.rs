//! The steps of the ladder: each is a way to receive that differs from another in one thing, so that its figure says
//! what that one thing is worth.

use std::time::Duration;

use mmsg::Refusal;
use serde::Serialize;

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
pub(super) struct Way {
    pub threads: usize,
    /// What they receive from.
    pub sharing: Sharing,
    /// Whether each is kept to a core.
    pub is_pinned: bool,
    /// Datagrams in one call at most.
    pub slots: usize,
    pub engine: EngineKind,
    /// How long datagrams gather; zero: not at all.
    pub gather: Duration,
    /// UDP_GRO.
    pub gro: bool,
}

/// What can be had where the ladder stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach<'a> {
    pub io_uring: &'a Result<(), Refusal>,
    /// Why there is no AF_XDP, if so.
    pub no_af_xdp: Option<&'a str>,
    /// Datagrams in a train of the sender.
    pub train: usize,
}

/// One step, in the order of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Recv,
    /// 64 in a call.
    Recvmmsg,
    /// The thread is kept to its core.
    Pinned,
    /// The same as `pinned` once more: what differs is the noise of this machine.
    Again,
    Threads,
    Reuseport,
    ByCpu,
    Gro,
    IoUring,
    /// Datagrams gather, received by calls.
    Gather,
    IoUringGather,
    /// Frames past the sockets, on a cable.
    AfXdp,
    AfXdpGather,
}

impl Step {
    /// All of them, from the ground up.
    pub const ALL: [Step; 13] = [
        Step::Recv,
        Step::Recvmmsg,
        Step::Pinned,
        Step::Again,
        Step::Threads,
        Step::Reuseport,
        Step::ByCpu,
        Step::Gro,
        Step::IoUring,
        Step::Gather,
        Step::IoUringGather,
        Step::AfXdp,
        Step::AfXdpGather,
    ];

    /// What it is called in tables and in `--steps`.
    pub fn name(self) -> &'static str {
        match self {
            Step::Recv => "recv",
            Step::Recvmmsg => "recvmmsg",
            Step::Pinned => "pinned",
            Step::Again => "again",
            Step::Threads => "threads",
            Step::Reuseport => "reuseport",
            Step::ByCpu => "by_cpu",
            Step::Gro => "gro",
            Step::IoUring => "io_uring",
            Step::Gather => "gather",
            Step::IoUringGather => "io_uring_gather",
            Step::AfXdp => "af_xdp",
            Step::AfXdpGather => "af_xdp_gather",
        }
    }

    /// What is different about it, in a line.
    pub fn what(self) -> &'static str {
        match self {
            Step::Recv => "one socket, one datagram in a call",
            Step::Recvmmsg => "64 in a call",
            Step::Pinned => "recvmmsg on a pinned thread",
            Step::Again => "pinned once more: the difference is noise",
            Step::Threads => "several pinned threads on one socket",
            Step::Reuseport => "a socket for each thread, chosen by flow",
            Step::ByCpu => "a socket for each thread, chosen by core",
            Step::Gro => "pinned, with UDP_GRO",
            Step::IoUring => "pinned, with io_uring",
            Step::Gather => "pinned, letting datagrams gather for 1 ms",
            Step::IoUringGather => "io_uring, letting datagrams gather for 1 ms",
            Step::AfXdp => "past the sockets, a thread for each receive queue",
            Step::AfXdpGather => "af_xdp, letting datagrams gather for 1 ms",
        }
    }

    /// Whether there has to be an Ethernet interface.
    pub(super) fn wants_cable(self) -> bool {
        matches!(self, Step::AfXdp | Step::AfXdpGather)
    }

    /// How it receives, where there are so many receiver threads to be had, and so many receive queues.
    pub(super) fn way(self, threads: usize, queues: usize) -> Way {
        let base = Way {
            threads: 1,
            sharing: Sharing::OneSocket,
            is_pinned: true,
            slots: BATCH,
            engine: EngineKind::Recvmmsg,
            gather: Duration::ZERO,
            gro: false,
        };
        match self {
            Step::Recv => Way { slots: 1, is_pinned: false, ..base },
            Step::Recvmmsg => Way { is_pinned: false, ..base },
            Step::Pinned | Step::Again => base,
            Step::Threads => Way { threads, ..base },
            Step::Reuseport => Way { threads, sharing: Sharing::ByFlow, ..base },
            Step::ByCpu => Way { threads, sharing: Sharing::ByCore, ..base },
            Step::Gro => Way { gro: true, ..base },
            Step::IoUring => Way { engine: EngineKind::IoUring, ..base },
            Step::Gather => Way { gather: GATHER, ..base },
            Step::IoUringGather => Way { engine: EngineKind::IoUring, gather: GATHER, ..base },
            Step::AfXdp => Way { threads: queues, engine: EngineKind::AfXdp, ..base },
            Step::AfXdpGather => Way { threads: queues, engine: EngineKind::AfXdp, gather: GATHER, ..base },
        }
    }

    /// Why this machine cannot take the step, if so.
    pub(super) fn obstacle(self, reach: Reach<'_>) -> Option<String> {
        match (self, reach.io_uring) {
            (Step::IoUring | Step::IoUringGather, Err(refusal)) => Some(format!("io_uring is refused: {refusal}")),
            (Step::Gro, _) if reach.train < 2 => {
                Some("the sender makes no trains (--gso 1, or a cable), and GRO merges only trains".to_owned())
            }
            _ if self.wants_cable() => reach.no_af_xdp.map(ToOwned::to_owned),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_but_the_repetition_differs_from_every_other() {
        let ways: Vec<Way> =
            Step::ALL.into_iter().filter(|step| *step != Step::Again).map(|step| step.way(3, 1)).collect();
        for (place, way) in ways.iter().enumerate() {
            assert!(!ways[place + 1..].contains(way), "{:?} is there twice", Step::ALL[place]);
        }
        assert_eq!(Step::Again.way(3, 1), Step::Pinned.way(3, 1));
        assert_eq!(Step::AfXdp.way(3, 8).threads, 8);
    }

    #[test]
    fn what_a_machine_cannot_do_is_told_with_its_reason() {
        let obstacle =
            |step: Step, train| step.obstacle(Reach { io_uring: &Ok(()), no_af_xdp: Some("add --interface"), train });
        assert_eq!(obstacle(Step::Gro, 20), None);
        assert!(obstacle(Step::Gro, 1).expect("an obstacle").contains("--gso 1"));
        assert_eq!(obstacle(Step::Recvmmsg, 1), None);
        assert_eq!(obstacle(Step::AfXdp, 1).as_deref(), Some("add --interface"));
    }
}
