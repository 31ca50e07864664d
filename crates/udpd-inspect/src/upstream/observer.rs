//! The receiver's side: reads the number of each datagram of a batch and leaves a note, before anything of the batch is
//! dropped. The datagrams of a batch that follow one another in their stream share a note, so a busy stream costs
//! little.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mmsg::RecvBatch;

use super::header::{self, Header};
use super::ipfix::{self, Set};
use super::note::{Key, Note, What};
use super::ring::{Bell, Ring, Writer};
use super::runs::Runs;
use super::settings::Sequence;
use udpd_base::capture::headers;

/// How many sets and templates of a message are noted; of the others nobody knows how many records they have.
const SETS_MAX: usize = 31;

/// What a lane sees of the numbers.
#[derive(Debug)]
pub struct Observer {
    sequence: Sequence,
    /// The kernel says at each datagram how many it has dropped before.
    knows_drops: bool,
    ring: Arc<Ring>,
    writer: Writer,
    bell: Arc<Bell>,
    /// What is not yet written, because the next datagram may follow it.
    runs: Runs,
    /// What the ring has of it.
    units_max: u64,
    /// Those of a message, until they are written in one piece.
    notes: [Note; SETS_MAX + 1],
}

impl Observer {
    pub(super) fn new(sequence: Sequence, knows_drops: bool, ring: Arc<Ring>, bell: Arc<Bell>) -> Self {
        let writer = Writer::new(Arc::clone(&ring));
        let units_max = ring.units_max.load(Ordering::Relaxed);
        Self {
            sequence,
            knows_drops,
            ring,
            writer,
            bell,
            runs: Runs::new(sequence.bits()),
            units_max,
            notes: [Note::default(); SETS_MAX + 1],
        }
    }

    /// Notes what is in a batch. To be called before anything of it is discarded.
    pub fn observe(&mut self, batch: &RecvBatch) {
        // A loop for each protocol, so that what its headers never have costs nothing.
        match self.sequence {
            Sequence::NetFlow5 => self.note_runs(batch, |payload, _| header::netflow5(payload)),
            Sequence::NetFlow9 => self.note_runs(batch, |payload, _| header::netflow9(payload)),
            Sequence::Ipfix => self.note_messages(batch),
            Sequence::Sflow => self.note_runs(batch, |payload, _| header::sflow(payload)),
            Sequence::Rtp => self.note_runs(batch, |payload, _| header::rtp(payload)),
            Sequence::Fixed(place) => self.note_runs(batch, |payload, port| header::fixed(place, payload, port)),
        }
        self.writer.publish();
        self.bell.ring();
    }

    /// The lane receives from another socket from now on, whose drops the kernel counts anew: they do not go on from
    /// those of the last datagram.
    pub fn note_other_socket(&mut self) {
        self.ring.is_other_socket.store(true, Ordering::Relaxed);
    }

    /// What follows one another in its stream, with one note. `parse` reads a header, given the sender's port.
    #[inline]
    fn note_runs(&mut self, batch: &RecvBatch, parse: impl Fn(&[u8], u16) -> Option<Header>) {
        for datagram in batch.datagrams() {
            let source = headers::source(&datagram);
            let Some(header) = parse(datagram.payload(), source.port()) else {
                add(&self.ring.unnumbered, 1);
                continue;
            };
            let key = Key::new(source.ip(), header.stream);
            let drops = if self.knows_drops { datagram.drop_overflow().unwrap_or(0) } else { 0 };
            if !self.runs.go_on(&key, &header, drops) {
                self.begin(key, header, drops);
            }
            if u64::from(header.units) > self.units_max {
                self.units_max = header.units.into();
                self.ring.units_max.store(self.units_max, Ordering::Relaxed);
            }
        }
        while let Some(run) = self.runs.pop() {
            write_run(&mut self.writer, &self.ring, run);
        }
    }

    /// A run that begins with this datagram. By itself, so that a run that goes on never makes a note in memory.
    #[inline(never)]
    fn begin(&mut self, key: Key, header: Header, drops: u32) {
        let Header { number, units, clock, .. } = header;
        let run = Note { key, what: What::Run, number, units, datagrams: 1, clock, drops };
        self.runs.begin(&run, |closed| write_run(&mut self.writer, &self.ring, closed));
    }

    /// IPFIX: what a message covers is known only when its sets have been read, so there are no runs.
    fn note_messages(&mut self, batch: &RecvBatch) {
        for datagram in batch.datagrams() {
            let Some(header) = header::ipfix(datagram.payload()) else {
                add(&self.ring.unnumbered, 1);
                continue;
            };
            let key = Key::new(headers::source(&datagram).ip(), header.stream);
            self.note_message(key, &header, datagram.payload());
        }
    }

    /// A message, with what its sets say, in one piece.
    fn note_message(&mut self, key: Key, header: &Header, payload: &[u8]) {
        let Header { number, clock, .. } = *header;
        let notes = &mut self.notes;
        let mut count = 0;
        let is_whole = ipfix::each_set(payload, |set| {
            let Some(note) = notes[..SETS_MAX].get_mut(count) else { return false };
            let (what, number, units) = match set {
                Set::Records { template, bytes } => (What::Records, template, bytes),
                Set::Template { template, record_bytes, is_variable, is_options } => {
                    let what = match (is_options, is_variable) {
                        (false, false) => What::Template,
                        (false, true) => What::TemplateVariable,
                        (true, false) => What::OptionsTemplate,
                        (true, true) => What::OptionsTemplateVariable,
                    };
                    (what, template, record_bytes)
                }
            };
            *note = Note { key, what, number: number.into(), units: units.into(), ..Note::default() };
            count += 1;
            true
        });
        let what = if is_whole { What::Message } else { What::MessageInPart };
        notes[count] = Note { key, what, number, units: 0, datagrams: 1, clock, drops: 0 };
        if !self.writer.write(&notes[..=count]) {
            add(&self.ring.unseen, 1);
        }
    }
}

fn write_run(writer: &mut Writer, ring: &Ring, run: &Note) {
    if !writer.write(std::slice::from_ref(run)) {
        add(&ring.unseen, run.datagrams.into());
    }
}

/// Adds to what this thread alone counts.
fn add(count: &std::sync::atomic::AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
