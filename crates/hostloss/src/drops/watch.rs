//! A watch over all cores: opened, read every now and then, asked for its tally.

use std::fs;
use std::io;

use super::errors;
use super::perf::{PerfEvent, PerfRing, page_bytes};
use super::reasons;
use super::records::{PerfRecord, PerfRecords};
use super::tally::{DropTally, Fired, TallyTables};
use super::tracepoints::Tracepoints;

/// The ring of a core: four thousand records, within what the kernel lets a user lock without a right
/// (`kernel.perf_event_mlock_kb`).
const RING_BYTES_MAX: usize = 256 << 10;
/// The kernel is never built for more cores (`CONFIG_NR_CPUS`).
const CORES_MAX: usize = 8192;
/// The cores that the machine may ever have.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// All rings together, on machines with very many cores.
const RINGS_BYTES_MAX: usize = 16 << 20;

/// Counts the drops of this host by name, from when it is opened until it is dropped.
///
/// Opening it needs `CAP_PERFMON` and nothing else. While it is open a drop costs the kernel a record of a hundred
/// bytes; everything else that is thrown away costs a comparison. Each core has a ring of at most 256 KiB, which holds
/// about four thousand records: call [`read`](Watch::read) some fifty times a second. What does not fit is counted
/// without its name.
#[derive(Debug)]
pub struct Watch {
    tracepoints: Tracepoints,
    cores: Vec<CoreEvents>,
    tables: TallyTables,
    fired: Fired,
    /// A copy of what is new in a ring.
    bytes: Vec<u8>,
}

/// The events of one core, and their ring. The first event of the ring is its owner and lives as long as it does.
#[derive(Debug)]
struct CoreEvents {
    number: usize,
    ring: PerfRing,
    not_queued: Option<PerfEvent>,
    freed: Option<PerfEvent>,
    unnamed: Option<PerfEvent>,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// Which right is missing, or which call failed on which core.
    pub fn open(tracepoints: &Tracepoints) -> io::Result<Watch> {
        let possible = fs::read_to_string(POSSIBLE).map_err(|error| errors::of_file(POSSIBLE, &error))?;
        let possible = parse_cores(&possible).unwrap_or_else(|| vec![0]);
        let mut ring_bytes = ring_bytes(possible.len(), page_bytes());
        let mut cores = Vec::new();
        for core in possible {
            cores.extend(CoreEvents::open(core, tracepoints, &mut ring_bytes)?);
        }
        // All of them at the end, so that an error leaves nothing half begun.
        for core in &cores {
            core.enable().map_err(|error| errors::of_call("ioctl(PERF_EVENT_IOC_ENABLE)", core.number, &error))?;
        }
        let (tables, fired, bytes) = (TallyTables::default(), Fired::default(), Vec::with_capacity(ring_bytes));
        Ok(Watch { tracepoints: tracepoints.clone(), cores, tables, fired, bytes })
    }

    /// Takes what the rings have, and gives their place back to the kernel.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn read(&mut self) -> io::Result<()> {
        let mut fired = Fired::default();
        for core in &mut self.cores {
            // The counts first: what fires between the two is then taken already, and not called lost.
            let count = |event: &Option<PerfEvent>| event.as_ref().map_or(Ok(0), PerfEvent::count);
            fired.not_queued += count(&core.not_queued)?;
            fired.freed += count(&core.freed)?;
            fired.unnamed += count(&core.unnamed)?;
            self.bytes.clear();
            core.ring.take(&mut self.bytes);
            for record in PerfRecords::of(&self.bytes) {
                if let PerfRecord::Sample(record) = record {
                    self.tables.count(record, &self.tracepoints);
                }
            }
        }
        self.fired = fired;
        Ok(())
    }

    /// What was dropped from the beginning to the last [`read`](Watch::read).
    pub fn tally(&self) -> DropTally {
        self.tables.tally(self.fired, &self.tracepoints)
    }
}

impl CoreEvents {
    /// `None`: the core is not there, or is switched off.
    fn open(core: usize, tracepoints: &Tracepoints, ring_bytes: &mut usize) -> io::Result<Option<CoreEvents>> {
        let failed = |operation: &'static str| move |error: io::Error| errors::of_call(operation, core, &error);
        let open = |id, has_records| match PerfEvent::open(id, core, has_records) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            opened => opened.map(Some).map_err(failed("perf_event_open")),
        };
        let mut not_queued = None;
        if let Some(it) = tracepoints.not_queued {
            let Some(event) = open(it.id, true)? else { return Ok(None) };
            not_queued = Some(event);
        }
        let (mut freed, mut unnamed) = (None, None);
        if let Some(it) = &tracepoints.freed {
            let set_filter = |event: &PerfEvent, filter: &str| {
                event.set_filter(filter).map_err(failed("ioctl(PERF_EVENT_IOC_SET_FILTER)"))
            };
            let Some(event) = open(it.id, true)? else { return Ok(None) };
            set_filter(&event, &reasons::filter_of_named(&it.names))?;
            freed = Some(event);
            if let Some(filter) = reasons::filter_of_unnamed(&it.names) {
                let Some(event) = open(it.id, false)? else { return Ok(None) };
                set_filter(&event, &filter)?;
                unnamed = Some(event);
            }
        }
        let owner = not_queued.as_ref().or(freed.as_ref());
        let Some(owner) = owner else {
            return Err(errors::of_call("perf_event_open", core, &io::ErrorKind::Unsupported.into()));
        };
        let ring = map(owner, core, ring_bytes)?;
        if let (Some(owner), Some(other)) = (&not_queued, &freed) {
            other.write_into_ring_of(owner).map_err(failed("ioctl(PERF_EVENT_IOC_SET_OUTPUT)"))?;
        }
        Ok(Some(CoreEvents { number: core, ring, not_queued, freed, unnamed }))
    }

    fn enable(&self) -> io::Result<()> {
        [&self.not_queued, &self.freed, &self.unnamed].into_iter().flatten().try_for_each(PerfEvent::enable)
    }
}

/// Maps the ring of a core, with less memory where the kernel does not let us lock as much.
fn map(owner: &PerfEvent, core: usize, ring_bytes: &mut usize) -> io::Result<PerfRing> {
    loop {
        match PerfRing::map(owner, *ring_bytes) {
            Ok(ring) => return Ok(ring),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && *ring_bytes > page_bytes() => {
                *ring_bytes /= 2;
            }
            Err(error) => return Err(errors::of_ring(core, &error)),
        }
    }
}

/// How large the ring of each of `cores` is: a power of two of pages.
fn ring_bytes(cores: usize, page_bytes: usize) -> usize {
    let each = (RINGS_BYTES_MAX / cores.max(1)).min(RING_BYTES_MAX).max(page_bytes);
    1 << each.ilog2()
}

/// Reads a list such as `0-3,8`.
fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok().filter(|last| *last < CORES_MAX)?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cores_is_read_and_nonsense_is_not() {
        assert_eq!(parse_cores("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        for nonsense in ["", "a", "0-8192", "0,,1"] {
            assert_eq!(parse_cores(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_ring_is_a_power_of_two_of_pages_on_every_machine() {
        assert_eq!(ring_bytes(1, 4096), 256 << 10);
        assert_eq!(ring_bytes(64, 4096), 256 << 10);
        assert_eq!(ring_bytes(100, 4096), 128 << 10);
        assert_eq!(ring_bytes(8192, 4096), 4096);
        assert_eq!(ring_bytes(8192, 65536), 65536);
    }
}
