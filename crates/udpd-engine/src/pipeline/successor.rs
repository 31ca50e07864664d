//! The socket that takes the place of another under a running receiver: left here by the main thread, picked up by the
//! receiver.
//!
//! A receiver looks only when a receive call came back with nothing, which happens when its socket was interrupted. So
//! a lane whose socket is never replaced never looks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mmsg::Socket;

/// The place where it is left.
#[derive(Debug, Default)]
pub struct Successor {
    there: AtomicBool,
    socket: Mutex<Option<Arc<Socket>>>,
}

impl Successor {
    /// Leaves a socket that is ready to be received from. One that was not picked up yet is let go.
    pub fn leave(&self, socket: Arc<Socket>) {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        self.there.store(true, Ordering::Release);
    }

    /// Picks up what was left, if anything was.
    pub fn pick_up(&self) -> Option<Arc<Socket>> {
        if !self.there.swap(false, Ordering::Acquire) {
            return None;
        }
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmsg::Family;

    #[test]
    fn a_socket_is_picked_up_once_and_the_last_one_left_counts() {
        let successor = Successor::default();
        assert!(successor.pick_up().is_none());
        let sockets = [(); 2].map(|()| Arc::new(Socket::new(Family::V4).expect("a socket")));
        sockets.iter().for_each(|socket| successor.leave(Arc::clone(socket)));
        assert!(successor.pick_up().is_some_and(|socket| Arc::ptr_eq(&socket, &sockets[1])));
        assert!(successor.pick_up().is_none());
    }
}
