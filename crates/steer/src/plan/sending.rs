//! Which send queue a core uses (XPS): that of its own seat.
//!
//! What a receiver's core sends, such as a relay or an answer, then leaves through a queue whose lock and whose
//! completions no other core has, instead of one that a hash chooses. A core without a seat is in no mask and keeps the
//! kernel's hash. Some drivers put every core into some queue's mask (virtio_net, i40e, ice, ixgbe): cores that have a
//! seat are taken out of all other masks, because with two queues to choose from the kernel would hash again.

use super::parts::{InterfacePlan, QueueSeat, Target};
use crate::model::Interface;

impl InterfacePlan {
    pub(super) fn want_xps(&mut self, interface: &Interface) {
        // With one queue there is nothing to choose, and the kernel has no mask to write.
        if interface.send_queues.len() < 2 {
            return;
        }
        let seated: Vec<usize> = self.seats.iter().flat_map(cores_of).collect();
        for queue in &interface.send_queues {
            let Some(now) = &queue.cores else { continue };
            let cores = self.seats.get(queue.index).map(cores_of).unwrap_or_default();
            let is_seat = !cores.is_empty();
            let why = if is_seat {
                format!("relays and answers of queue {} leave through the queue of their own core", queue.index)
            } else {
                format!("send queue {} has no seat, and cores of seats send through their own", queue.index)
            };
            let others = || now.iter().copied().filter(|core| !seated.contains(core)).collect();
            let cores = if is_seat { cores } else { others() };
            if is_seat || cores != *now {
                self.want(Target::Xps { queue: queue.index, cores }, why);
            }
        }
    }
}

/// The cores of a seat. One whose receiver may run anywhere on a node has no core of its own but the interrupt's, and
/// where nobody knows the interrupt the seat is a guess, for which nothing is moved.
fn cores_of(seat: &QueueSeat) -> Vec<usize> {
    let Some(interrupt) = seat.interrupt_core else { return Vec::new() };
    let receiver = Some(seat.receiver_core).filter(|core| seat.receiver_cores == [*core]);
    let mut cores: Vec<usize> = [interrupt].into_iter().chain(receiver).collect();
    cores.sort_unstable();
    cores.dedup();
    cores
}
