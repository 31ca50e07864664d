//! Templates follow their exporters: a relay keeps the templates of NetFlow 9 and IPFIX, and sends them to a
//! destination before the first datagram that goes there of an exporter whose templates it may not have.
//!
//! A destination is owed the templates of its exporters when it is new, when its socket is (it has another address, or
//! a route again), when it has answered with errors and is quiet since, and when a failover goes over to it. They are
//! sent when the exporter next sends something: then they come first, have a number that leaves no gap, and are no
//! burst.
//!
//! The consumers of a sink share what is kept, under a lock that is taken only for datagrams with templates and for
//! those that are owed some. It outlives the sink: one that a reload opens anew goes on with it, and one that is new
//! begins with what a sink of the same name for another destination has. So it is found by name, while a sink holds it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use mmsg::Datagram;

use udpd_base::capture::headers;
use udpd_base::ledger::Keyed;
use udpd_base::seams::clock;
use udpd_base::text::address::PeerAddress;
use udpd_inspect::upstream::templates::{ExporterDomain, TemplateSets, count_templates, has_templates, repeat};

/// The memory for the templates of one exporter: some twenty of ten fields each.
pub(super) const ROOM_BYTES: usize = 2048;

/// For how long a destination is owed the templates of an exporter that is silent. Most send their own by then.
const OWED_FOR: Duration = Duration::from_secs(1800);

/// Longer than any datagram that is made of templates.
const BUFFER_BYTES: usize = ROOM_BYTES + 64;

/// The memory of so many consumers for so many exporters.
pub(super) fn memory_bytes(consumers: usize, exporters: usize) -> usize {
    let indexed = index_bytes(exporters, size_of::<(Exporter, u32)>());
    let kept = exporters * (ROOM_BYTES + size_of::<KeptExporter>()) + indexed;
    let owed = index_bytes(exporters, size_of::<Exporter>()) + ROOM_BYTES + BUFFER_BYTES;
    if exporters == 0 { 0 } else { kept + consumers * owed }
}

/// A table of twice as many entries never grows: an eighth stays free, and the whole is a power of two.
fn index_bytes(entries: usize, entry_bytes: usize) -> usize {
    (2 * entries * 8 / 7).next_power_of_two() * (entry_bytes + 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Exporter {
    address: SocketAddr,
    domain: ExporterDomain,
}

impl Exporter {
    fn of(datagram: &Datagram<'_>) -> Option<Self> {
        let domain = ExporterDomain::of(datagram.payload())?;
        Some(Self { address: headers::source(datagram), domain })
    }
}

/// No place of an exporter.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct KeptExporter {
    exporter: Exporter,
    /// How much of its room is in use.
    bytes: usize,
    /// The destination that has had them last.
    sent_to: u64,
    /// The places of the exporters whose templates came next before and after its own.
    older: u32,
    newer: u32,
}

/// The templates of some exporters. When another one finds no room, the one goes whose templates are oldest.
#[derive(Debug)]
struct KeptTemplates {
    limit: usize,
    index: HashMap<Exporter, u32, Keyed>,
    exporters: Vec<KeptExporter>,
    /// By place, `ROOM_BYTES` for each.
    rooms: Box<[u8]>,
    oldest: u32,
    newest: u32,
}

impl KeptTemplates {
    fn new(limit: usize) -> Self {
        let (index, rooms) = (HashMap::with_capacity_and_hasher(2 * limit, Keyed::new()), vec![0; limit * ROOM_BYTES]);
        let (rooms, exporters) = (rooms.into_boxed_slice(), Vec::with_capacity(limit));
        Self { limit, index, exporters, rooms, oldest: NONE, newest: NONE }
    }

    fn sets(&self, place: u32) -> &[u8] {
        &self.rooms[place as usize * ROOM_BYTES..][..self.exporters[place as usize].bytes]
    }

    /// Takes the templates of a datagram. Returns how many templates were forgotten for want of room.
    fn take(&mut self, exporter: Exporter, payload: &[u8], sent_to: u64) -> u64 {
        let (place, forgotten) = self.place(exporter);
        let kept = &mut self.exporters[place as usize];
        kept.sent_to = sent_to;
        let room = &mut self.rooms[place as usize * ROOM_BYTES..][..ROOM_BYTES];
        forgotten + TemplateSets { room, bytes: &mut kept.bytes }.take(payload)
    }

    /// The place of an exporter, which is the newest then.
    fn place(&mut self, exporter: Exporter) -> (u32, u64) {
        let (place, forgotten) = match self.index.get(&exporter) {
            Some(&place) => {
                self.unlink(place);
                (place, 0)
            }
            None if self.exporters.len() < self.limit => {
                let place = self.exporters.len() as u32;
                self.exporters.push(KeptExporter { exporter, bytes: 0, sent_to: 0, older: NONE, newer: NONE });
                self.index.insert(exporter, place);
                (place, 0)
            }
            None => {
                let place = self.oldest;
                let forgotten = count_templates(self.sets(place));
                self.unlink(place);
                let kept = &mut self.exporters[place as usize];
                self.index.remove(&kept.exporter);
                (kept.exporter, kept.bytes) = (exporter, 0);
                self.index.insert(exporter, place);
                (place, forgotten)
            }
        };
        let older = std::mem::replace(&mut self.newest, place);
        let kept = &mut self.exporters[place as usize];
        (kept.older, kept.newer) = (older, NONE);
        match older {
            NONE => self.oldest = place,
            older => self.exporters[older as usize].newer = place,
        }
        (place, forgotten)
    }

    fn unlink(&mut self, place: u32) {
        let KeptExporter { older, newer, .. } = self.exporters[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.exporters[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.exporters[newer as usize].older = older,
        }
    }

    /// Takes over what another one has, from the oldest on. No destination here has had it.
    fn copy(&mut self, other: &KeptTemplates) {
        let mut next = other.oldest;
        while next != NONE {
            let kept = &other.exporters[next as usize];
            let (place, _) = self.place(kept.exporter);
            let own = &mut self.exporters[place as usize];
            (own.bytes, own.sent_to) = (kept.bytes, 0);
            self.rooms[place as usize * ROOM_BYTES..][..kept.bytes].copy_from_slice(other.sets(next));
            next = kept.newer;
        }
    }
}

type SharedTemplates = Mutex<KeptTemplates>;

/// What the sinks of this process keep, by name.
static KEPT: Mutex<Vec<(String, Weak<SharedTemplates>)>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The templates of one consumer of a relay.
#[derive(Debug)]
pub(super) struct RelayTemplates {
    kept: Arc<SharedTemplates>,
    /// What this one begins with, if it is new itself.
    before: Option<Arc<SharedTemplates>>,
    /// The destinations, by place.
    destinations: Vec<u64>,
    /// The exporters whose next datagram their templates go before, and until when that is so.
    owed: HashSet<Exporter, Keyed>,
    owed_until: Option<Instant>,
    limit: usize,
    /// Sets, and a datagram that is made of them.
    sets: Vec<u8>,
    buffer: Vec<u8>,
}

impl RelayTemplates {
    /// For so many exporters; `None` for 0.
    pub(super) fn open(sink: &str, limit: usize, destinations: &[&PeerAddress]) -> Option<Self> {
        if limit == 0 {
            return None;
        }
        let mut all = locked(&KEPT);
        all.retain(|(_, kept)| kept.strong_count() > 0);
        let find = |fits: &dyn Fn(&str, &SharedTemplates) -> bool| {
            let mut held = all.iter().rev().filter_map(|(name, kept)| Some((name, kept.upgrade()?)));
            held.find(|(name, kept)| fits(name, kept)).map(|(_, kept)| kept)
        };
        let own = find(&|name, kept| name == sink && locked(kept).limit == limit);
        // "relay@10.0.0.9:514" is one of those that the sink "relay" stands for.
        let family = |name: &str| name.split('@').next().map(str::to_owned);
        let before = match own {
            Some(_) => None,
            None => find(&|name, _| name == sink).or_else(|| find(&|name, _| family(name) == family(sink))),
        };
        let kept = own.unwrap_or_else(|| {
            let kept = Arc::new(Mutex::new(KeptTemplates::new(limit)));
            all.push((sink.to_owned(), Arc::downgrade(&kept)));
            kept
        });
        let number = |peer: &&PeerAddress| {
            let mut hasher = DefaultHasher::new();
            peer.hash(&mut hasher);
            hasher.finish()
        };
        let destinations = destinations.iter().map(number).collect();
        let owed = HashSet::with_capacity_and_hasher(2 * limit, Keyed::new());
        let (sets, buffer) = (Vec::with_capacity(ROOM_BYTES), Vec::with_capacity(BUFFER_BYTES));
        Some(Self { kept, before, destinations, owed, owed_until: None, limit, sets, buffer })
    }

    /// To be called before the first datagram, when the sink of before takes none any more. `choose` says which
    /// destination a source has now. Where destinations do not see the address of an exporter, they see another port of
    /// this host now, which to them is another exporter.
    pub(super) fn begin(&mut self, keeps_address: bool, choose: impl Fn(IpAddr) -> usize) {
        if let Some(before) = self.before.take() {
            locked(&self.kept).copy(&locked(&before));
        }
        let destinations = std::mem::take(&mut self.destinations);
        self.owe(|kept| !keeps_address || destinations[choose(kept.exporter.address.ip())] != kept.sent_to);
        self.destinations = destinations;
    }

    /// This destination is owed the templates of all its exporters.
    pub(super) fn owe_to(&mut self, destination: usize, choose: impl Fn(IpAddr) -> usize) {
        self.owe(|kept| choose(kept.exporter.address.ip()) == destination);
    }

    fn owe(&mut self, is_owed: impl Fn(&KeptExporter) -> bool) {
        let kept = locked(&self.kept);
        for kept in kept.exporters.iter().filter(|kept| kept.bytes > 0 && is_owed(kept)) {
            if self.owed.len() < self.limit {
                self.owed.insert(kept.exporter);
            }
        }
        self.owed_until = (!self.owed.is_empty()).then(|| clock::now() + OWED_FOR);
    }

    /// Forgets what has been owed for long. The clock is read only while something is.
    pub(super) fn review(&mut self) {
        if self.owed_until.take_if(|until| self.owed.is_empty() || clock::now() >= *until).is_some() {
            self.owed.clear();
        }
    }

    /// Whether a datagram may have to wait for templates.
    #[inline]
    pub(super) fn are_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Sends the templates that are owed to the destination of this datagram.
    pub(super) fn send_before(&mut self, datagram: &Datagram<'_>, destination: usize, send: impl FnMut(&[u8])) {
        let Some(exporter) = Exporter::of(datagram).filter(|exporter| self.owed.remove(exporter)) else { return };
        let mut kept = locked(&self.kept);
        let Some(&place) = kept.index.get(&exporter) else { return };
        kept.exporters[place as usize].sent_to = self.destinations[destination];
        self.sets.clear();
        self.sets.extend_from_slice(kept.sets(place));
        // To send may take a while.
        drop(kept);
        repeat(&self.sets, datagram.payload(), &mut self.buffer, send);
    }

    /// Keeps the templates in this datagram, if there are any. Returns how many others were forgotten.
    #[inline]
    pub(super) fn keep(&mut self, datagram: &Datagram<'_>, destination: usize) -> u64 {
        let has_some = has_templates(datagram.payload()) && !datagram.is_truncated();
        if has_some { self.keep_those_of(datagram, destination) } else { 0 }
    }

    fn keep_those_of(&mut self, datagram: &Datagram<'_>, destination: usize) -> u64 {
        let Some(exporter) = Exporter::of(datagram) else { return 0 };
        locked(&self.kept).take(exporter, datagram.payload(), self.destinations[destination])
    }
}

#[cfg(test)]
#[path = "templates_tests.rs"]
mod tests;
