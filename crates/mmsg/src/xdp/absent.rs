//! AF_XDP of a crate that is built without the feature `af_xdp`. It can be asked for, says why there is none, and has
//! no value, so that nothing else changes: what compiles with the feature compiles without it.

use std::convert::Infallible;
use std::io;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecvBatch;
use crate::wait::Wait;
use crate::wake::Bell;

use super::options::{Options, Statistics, Tally, Wanted};
use super::refusal::Refusal;

/// Hands datagrams of an interface over to the engines of its queues, which this build lacks:
/// [`attach`](Redirect::attach) says so.
#[derive(Debug)]
pub struct Redirect {
    never: Infallible,
}

impl Redirect {
    /// Puts the program at the interface; here always the refusal that says how to get one.
    pub fn attach(wanted: &Wanted, addresses: &[IpAddr]) -> Result<Redirect, Refusal> {
        let _ = (wanted, addresses);
        Err(Refusal::not_built())
    }

    /// Puts a program that is loaded already at the interface of that name as it is now.
    pub fn attach_again(loaded: Arc<Loaded>, _: &[IpAddr]) -> Result<Redirect, Refusal> {
        match loaded.never {}
    }

    /// What was loaded for it.
    pub fn loaded(&self) -> Arc<Loaded> {
        match self.never {}
    }

    /// Looks whether the interface has another Ethernet address.
    pub fn look_at_card(&self) -> bool {
        match self.never {}
    }

    /// Sees to it that the driver runs the program for every queue.
    pub fn cover_all_queues(&self) -> Result<(), Refusal> {
        match self.never {}
    }

    /// Why the program does not see VLAN tags that were taken off frames.
    pub fn unseen_tags(&self) -> Option<String> {
        match self.never {}
    }

    /// The MTU of the interface and the highest one whose frames fit into chunks.
    pub fn mtu_beyond_chunks(&self) -> Option<(usize, usize)> {
        match self.never {}
    }

    /// Hands over what comes to these addresses.
    pub fn set_addresses(&self, _: &[IpAddr]) -> io::Result<()> {
        match self.never {}
    }

    /// Lays in a socket that the next engine is made from.
    pub fn lay_in(&self, _: OwnedFd) {
        match self.never {}
    }

    /// The number of the interface.
    pub fn interface_index(&self) -> u32 {
        match self.never {}
    }

    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        match self.never {}
    }
}

/// The program of a [`Redirect`], which this build lacks.
#[derive(Debug)]
pub struct Loaded {
    never: Infallible,
}

impl Loaded {
    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        match self.never {}
    }
}

/// A socket that an engine can be made from; here always the refusal that says how to get one.
pub fn socket() -> Result<OwnedFd, Refusal> {
    Err(Refusal::not_built())
}

/// Reads what the kernel has lost of an engine's queue, which this build has none of.
#[derive(Debug)]
pub struct Counter {
    never: Infallible,
}

impl Counter {
    /// Frames that were handed over and lost before they were in the ring.
    pub fn lost(&self) -> io::Result<Option<u64>> {
        match self.never {}
    }

    /// Whether the device writes the frames itself.
    pub fn is_zero_copy(&self) -> bool {
        match self.never {}
    }
}

/// The engine, which has no value here.
#[derive(Debug)]
pub(crate) struct Xdp {
    never: Infallible,
    /// An engine stays on its thread. What must not compile with the feature must not compile without it.
    of_this_thread: PhantomData<*const ()>,
}

impl Xdp {
    pub(crate) fn new(redirect: Arc<Redirect>, _: Vec<RecvBatch>, _: &Options) -> io::Result<Xdp> {
        match redirect.never {}
    }

    pub(crate) fn receive_more(&mut self, _: &mut RecvBatch, _: Wait, _: &Bell) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn receive_held(&mut self, _: &mut RecvBatch) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self.never {}
    }

    pub(crate) fn set_busy_poll_us(&mut self, _: u32) -> io::Result<()> {
        match self.never {}
    }

    pub(crate) fn wait_readable(&mut self, _: Duration) -> io::Result<bool> {
        match self.never {}
    }

    pub(crate) fn tally(&self) -> Tally {
        match self.never {}
    }

    pub(crate) fn counter(&self) -> io::Result<Counter> {
        match self.never {}
    }

    pub(crate) fn statistics(&self) -> io::Result<Statistics> {
        match self.never {}
    }
}
