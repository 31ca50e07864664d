//! The part of a destination that there is for a spill: what becomes of the datagrams of one batch, its round.

use super::super::round::Round;
use super::Destination;
use udpd_base::ledger::Tallies;

impl Destination {
    pub(super) fn note_queued(&mut self) {
        if let Some(round) = &mut self.round {
            round.queue();
        }
    }

    /// In the middle of a round what was sent may be taken back.
    pub(super) fn publish(&self) {
        if self.round.as_ref().is_none_or(Round::is_over) {
            self.ledger.publish(&self.tally);
        }
    }

    /// Sends what is queued for as long as the kernel takes some of it; the places of the rest go to `left`.
    /// Where the network has refused something meanwhile, nothing of the round is believed to have arrived.
    pub(in super::super) fn end_round(&mut self, listener: usize, tallies: &mut Tallies, left: &mut Vec<usize>) {
        if !self.make_room(tallies) {
            self.say_full();
            self.give_up(tallies);
        }
        let was_refused = self.take_refusal();
        let Some(round) = &mut self.round else { return };
        if was_refused {
            let sent = round.sent.len() as u64;
            tallies[listener].delivered -= sent;
            tallies[listener].pending += sent;
            self.tally.sent -= sent;
            left.append(&mut round.sent);
        }
        left.append(&mut round.left);
        round.sent.clear();
        self.ledger.publish(&self.tally);
    }

    /// The next datagrams of the round are this one of the batch.
    pub(in super::super) fn begin_datagram(&mut self, place: usize) {
        if let Some(round) = &mut self.round {
            round.place = place;
        }
    }

    /// Whether the network has refused something since this was last asked.
    pub(in super::super) fn take_refusal(&mut self) -> bool {
        self.hear_answer();
        std::mem::take(&mut self.is_refused)
    }
}
