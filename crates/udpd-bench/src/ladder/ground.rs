//! What the ladder stands on: the cores that send and receive, what is offered, and over what: loopback, which every
//! machine has, or a cable, where AF_XDP is a step like the others.
//!
//! On a cable all steps get the same frames from the same sender, so that the last one can be held against the first.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mmsg::xdp::{Redirect, Refusal, Wanted};

use crate::cable::Cable;
use crate::pacer::Amount;
use crate::rate::Rate;
use crate::send;
use crate::send::Load;
use crate::sizes::Sizes;
use udpd_base::exit::Failure;

/// The port of a program that only shows whether there can be one.
const PROBE_PORT: u16 = 9;

/// Which cores do what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cores {
    /// Sends, and so pays for the receive interrupt of loopback.
    pub sender: usize,
    /// Receive, in turn.
    pub receivers: Vec<usize>,
}

impl Cores {
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

/// What is offered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    pub rate: Rate,
    pub duration: Duration,
    pub size: usize,
    /// Datagrams in a UDP_SEGMENT train; 1: none.
    pub train: usize,
}

/// Where the ladder is measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ground {
    cable: Option<Cable>,
}

impl Ground {
    pub(super) fn of(cable: Option<Cable>) -> Self {
        Self { cable }
    }

    /// In words.
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

    /// Puts a program at the receiver, which goes when it is dropped.
    pub(super) fn redirect(&self, port: u16) -> Option<Result<Redirect, Refusal>> {
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
        offer: &Offer,
        to: SocketAddr,
        cores: &Cores,
        stop: &Arc<AtomicBool>,
    ) -> Result<send::Report, Failure> {
        let load = Load {
            sizes: Sizes::Fixed(offer.size),
            gso: NonZeroUsize::new(offer.train).filter(|train| train.get() > 1),
            burst: NonZeroUsize::new(32),
            cpus: vec![cores.sender],
            ..Load::new(to, offer.rate, Amount::Seconds(offer.duration))
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
    fn one_core_is_shared_and_of_several_the_first_sends() {
        assert_eq!(Cores::of(&[5]), Cores { sender: 5, receivers: vec![5] });
        assert_eq!(Cores::of(&[2, 3, 9]), Cores { sender: 2, receivers: vec![3, 9] });
        assert_eq!((Cores::of(&[5]).several(), Cores::of(&[0, 1, 2, 3, 4, 5]).several()), (2, 4));
    }
}
