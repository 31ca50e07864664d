//! The same with a spill: nothing fails because its peer is not there or does not read.
//!
//! A peer that is there and takes nothing is waited for a moment and then counts as one that is gone, but its socket
//! stays. In a stream it may have taken a part of a record by then. The rest is kept and goes first when it reads
//! again; the datagram stays in the spill until that is written, and is sent whole where there is another connection by
//! then.

use std::io::{self, Write};

use super::sink::{SendOutcome, UnixDatagramSink, UnixStreamSink};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{SinkTally, Tallies};
use udpd_base::os::threads;
use udpd_base::sink::{ConsumerFeeders, Sink, deliver, fail};
use udpd_spill::spilling::Attempt;

impl Attempt for UnixDatagramSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let tally = &mut tallies[batch.listener];
        let mut takes = true;
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if !takes {
                left.push(place);
            } else if datagram.is_truncated() {
                self.peer.say_truncated();
                fail(tally, 1);
            } else {
                match self.send(datagram.payload()) {
                    SendOutcome::Yes => deliver(tally, 1),
                    SendOutcome::Never => fail(tally, 1),
                    found @ (SendOutcome::NotNow | SendOutcome::Stuck) => {
                        if found == SendOutcome::Stuck {
                            self.peer.say_stuck();
                        }
                        takes = false;
                        left.push(place);
                    }
                }
            }
        }
        if takes {
            self.peer.note_taken();
        }
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}

impl UnixStreamSink {
    /// Writes the rest of the record that the peer has a part of. False when it still has not all of it.
    fn write_cut(&mut self) -> bool {
        while !self.gathered.cut.is_empty() {
            let Some(stream) = self.peer.find() else { return false };
            match threads::blocking(|| stream.0.write(&self.gathered.cut)) {
                Ok(0) => return false,
                Ok(written) => drop(self.gathered.cut.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.note_failure(&error);
                    return false;
                }
            }
        }
        true
    }

    /// What the peer has a part of goes with its connection.
    fn note_failure(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::WouldBlock {
            return self.peer.say_stuck();
        }
        self.gathered.cut.clear();
        self.peer.lose(error);
    }

    /// Writes what is gathered; the places of what is not written go to `left`. Whether all of it is.
    fn write_gathered(&mut self, tally: &mut SinkTally, left: &mut Vec<usize>) -> bool {
        let (written, outcome) = match self.peer.find() {
            None => (0, Err(io::ErrorKind::NotConnected.into())),
            Some(stream) => self.outbox.write_part(stream),
        };
        let whole = self.gathered.records.iter().take_while(|(_, end)| *end <= written).count();
        deliver(tally, whole as u64);
        let rest = &self.gathered.records[whole..];
        left.extend(rest.iter().map(|(place, _)| place));
        if let (Some((_, end)), Err(error)) = (rest.first(), &outcome) {
            let begin = whole.checked_sub(1).map_or(0, |last| self.gathered.records[last].1);
            if written > begin && error.kind() == io::ErrorKind::WouldBlock {
                self.gathered.cut.extend_from_slice(&self.outbox.bytes()[written..*end]);
            }
            if error.kind() != io::ErrorKind::NotConnected {
                self.note_failure(error);
            }
        }
        self.gathered.records.clear();
        self.outbox.forget();
        outcome.is_ok()
    }
}

impl Attempt for UnixStreamSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        self.outbox.begin_batch();
        let tally = &mut tallies[batch.listener];
        // The first datagram is the one that the peer has a part of.
        let mut is_cut = !self.gathered.cut.is_empty();
        let mut takes = true;
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if takes && std::mem::take(&mut is_cut) {
                takes = self.write_cut();
                if takes {
                    deliver(tally, 1);
                    continue;
                }
            }
            if !takes {
                left.push(place);
                continue;
            }
            if datagram.is_truncated() && !self.marks_truncation {
                self.peer.say_truncated();
                fail(tally, 1);
                continue;
            }
            self.outbox.push(batch, &datagram);
            self.gathered.records.push((place, self.outbox.bytes().len()));
            if self.outbox.is_full() {
                takes = self.write_gathered(tally, left);
            }
        }
        if takes && !self.gathered.records.is_empty() {
            takes = self.write_gathered(tally, left);
        }
        if takes {
            self.peer.note_taken();
        }
    }

    fn forget_left(&mut self) {
        if !std::mem::take(&mut self.gathered.cut).is_empty() {
            // So a reader does not take what follows for the rest of it.
            self.peer.socket = None;
        }
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        Sink::go_on_for(self, feeders);
    }
}
