//! New sockets under running receivers, for an interface that was removed and came back.
//!
//! A socket that is bound to an interface is bound to its index. When the interface is gone the socket hears nothing
//! any more, without an error, also after one of the same name has appeared. To bind it again takes CAP_NET_RAW, and
//! puts it out of its group, whose program would then choose among nobody. Hence every lane gets a new socket, made,
//! grouped and bound as the first one was, which takes no more rights than that did. The old ones are deaf: nothing can
//! be lost while the receivers change over, and what the kernel had dropped at them is counted to the end.

use std::sync::Arc;

use mmsg::Socket;

use super::running::{Lane, Pipeline};
use super::setup::LaneSetup;
use super::{bind, multicast, socket};
use udpd_base::exit::Failure;

impl Pipeline {
    /// Makes new sockets for all lanes of a listener, as it made the first ones, and lets the receivers go over to
    /// them. After an error everything is as it was.
    pub fn replace_sockets(&self, listener: usize) -> Result<(), Failure> {
        let lanes: Vec<&Lane> = self.lanes_of(listener).filter(|lane| lane.setup.plan.has_socket()).collect();
        let made = lanes.iter().map(|lane| socket::make(&lane.setup).map(|(socket, _)| Arc::new(socket)));
        let sockets: Vec<Arc<Socket>> = made.collect::<Result<_, _>>()?;
        for (socket, books) in sockets.iter().zip(&self.books.listeners[listener].lanes) {
            if let Some(Err(error)) = books.arrivals.as_ref().map(|arrivals| arrivals.attach(socket)) {
                log::warn!(
                    "cannot count any longer on which cores datagrams arrive: {error}; wrong_cpu stays as it is"
                );
            }
        }
        let setups: Vec<&LaneSetup> = lanes.iter().map(|lane| &lane.setup).collect();
        let own: Vec<(&LaneSetup, Arc<Socket>)> = setups.iter().copied().zip(sockets.iter().cloned()).collect();
        let arrivals = self.books.listeners[listener].lanes.iter().map(|books| books.arrivals.as_ref());
        match self.tables.filters(own.iter().zip(arrivals)) {
            Ok(filters) => filters.attach(),
            Err(failure) => log::warn!("{failure}; udpd refuses what they refused, until it is restarted"),
        }
        // Who else has the address are the sockets that are to be replaced.
        bind::bind_all(&setups, &sockets, None, |_| Ok(()))?;
        for (lane, socket) in lanes.iter().zip(sockets) {
            let before = lane.ledger.replace_socket(Arc::clone(&socket));
            lane.successor.leave(socket);
            if let Some(Err(error)) = before.map(|before| before.interrupt()) {
                log::error!("{}: cannot wake its receiver: {error}", lane.setup);
            }
        }
        Ok(())
    }

    /// Joins on the interface with the index `now` what the lanes of a listener had joined on one that is gone.
    pub fn rejoin(&self, listener: usize, gone: u32, now: u32) -> Result<(), String> {
        let mut with_sockets = self.lanes_of(listener).filter_map(|lane| Some((lane, lane.socket()?)));
        with_sockets.try_for_each(|(lane, socket)| multicast::rejoin(&lane.setup, &socket, gone, now))
    }
}
