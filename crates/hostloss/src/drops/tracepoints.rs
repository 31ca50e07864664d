//! The two tracepoints that name drops, looked up in tracefs or in the text that root has read there.
//!
//! The layout of a record and the numbers behind the names change from kernel to kernel, so both are read from the
//! tracepoint's `format` file.

use std::fs;
use std::io;
use std::path::Path;

use super::errors;
use super::records;

/// Where tracefs is mounted: of its own, or by debugfs.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The file, below the mount of tracefs, that describes the tracepoint with ports.
pub const UDP_FAIL_FORMAT: &str = "events/udp/udp_fail_queue_rcv_skb/format";
/// The file, below the mount of tracefs, that describes the tracepoint with reasons.
pub const KFREE_SKB_FORMAT: &str = "events/skb/kfree_skb/format";

/// `udp:udp_fail_queue_rcv_skb`: what a socket did not take.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotQueued {
    pub(super) id: u64,
    pub(super) error: RecordField,
    pub(super) port: RecordField,
    /// Before Linux 6.10 there was one port, and before 6.6 it was not called for datagrams of IPv6.
    pub(super) is_of_old_kernel: bool,
}

/// `skb:kfree_skb`: what was thrown away.
#[derive(Clone, Debug)]
pub(super) struct Freed {
    pub(super) id: u64,
    pub(super) protocol: RecordField,
    pub(super) reason: RecordField,
    /// The name of each reason. Empty where the kernel does not tell.
    pub(super) names: Vec<(u32, String)>,
}

/// What this kernel calls its two tracepoints, and how their records are laid out. At least one of them is there.
#[derive(Clone, Debug)]
pub struct Tracepoints {
    pub(super) not_queued: Option<NotQueued>,
    pub(super) freed: Option<Freed>,
}

impl Tracepoints {
    /// Reads them from tracefs, which only root may. Mounts nothing.
    ///
    /// # Errors
    /// With cause and cure; `InvalidData` for a file that is not understood.
    pub fn read() -> io::Result<Tracepoints> {
        let mounted = MOUNTS.iter().find(|mount| Path::new(mount).join("events").exists());
        Tracepoints::read_below(Path::new(mounted.unwrap_or(&MOUNTS[0])))
    }

    /// Reads them from a tracefs that is mounted at `mount`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_below(mount: &Path) -> io::Result<Tracepoints> {
        let read = |file: &str| {
            let path = mount.join(file);
            fs::read_to_string(&path).map_err(|error| errors::of_file(&path.to_string_lossy(), &error))
        };
        match (read(UDP_FAIL_FORMAT), read(KFREE_SKB_FORMAT)) {
            (Err(error), Err(_)) => Err(error),
            (not_queued, freed) => Tracepoints::parse(not_queued.ok().as_deref(), freed.ok().as_deref()),
        }
    }

    /// Takes the texts of the files [`UDP_FAIL_FORMAT`] and [`KFREE_SKB_FORMAT`], which root has read on this host
    /// since it booted. One of them is enough to begin with.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(not_queued: Option<&str>, freed: Option<&str>) -> io::Result<Tracepoints> {
        let parsed = |text: Option<&str>, file: &str| {
            let unknown = |what: String| {
                let error = io::Error::new(io::ErrorKind::InvalidData, what);
                errors::explained(&format!("read {file}"), &error, "it is of another kind")
            };
            text.map(|text| TracepointFormat::parse(text).map_err(unknown)).transpose()
        };
        let not_queued = parsed(not_queued, UDP_FAIL_FORMAT)?.as_ref().and_then(not_queued_of);
        let freed = parsed(freed, KFREE_SKB_FORMAT)?.as_ref().and_then(freed_of);
        if not_queued.is_none() && freed.is_none() {
            let error = io::Error::from(io::ErrorKind::Unsupported);
            let cause = "neither udp:udp_fail_queue_rcv_skb nor a skb:kfree_skb with reasons (Linux 5.17) is there";
            return Err(errors::explained("look tracepoints up", &error, cause));
        }
        Ok(Tracepoints { not_queued, freed })
    }

    /// What the kernel calls reason `value`.
    pub(super) fn name(&self, value: u32) -> Option<&str> {
        let names = &self.freed.as_ref()?.names;
        names.iter().find(|(its, _)| *its == value).map(|(_, name)| name.as_str())
    }

    /// Whether the kernel tells drops without a reason apart.
    pub(super) fn has_unnamed(&self) -> bool {
        self.freed.as_ref().is_some_and(|freed| freed.names.iter().any(|(_, name)| name == records::UNNAMED))
    }
}

/// From Linux 6.10 on both ports of the datagram, before that the port of the socket.
fn not_queued_of(format: &TracepointFormat) -> Option<NotQueued> {
    let (of_datagram, of_socket) = (format.field("dport"), format.field("lport"));
    let (error, port) = (format.field("rc")?, of_datagram.or(of_socket)?);
    let is_of_old_kernel = of_datagram.is_none();
    (format.name == "udp_fail_queue_rcv_skb").then_some(NotQueued { id: format.id, error, port, is_of_old_kernel })
}

/// Without a reason the record says nothing of use.
fn freed_of(format: &TracepointFormat) -> Option<Freed> {
    let (protocol, reason) = (format.field("protocol")?, format.field("reason")?);
    (format.name == "kfree_skb").then(|| Freed { id: format.id, protocol, reason, names: format.names("reason") })
}

/// Where a field lies in the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordField {
    offset: usize,
    bytes: usize,
    signed: bool,
}

impl RecordField {
    /// The value in `record`; `None` where the record is too short for it.
    pub(super) fn read(&self, record: &[u8]) -> Option<i64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.bytes)?)?;
        // Each arm is right about its length, because only these four are made.
        Some(match (bytes.len(), self.signed) {
            (1, false) => i64::from(bytes[0]),
            (1, true) => i64::from(bytes[0].cast_signed()),
            (2, false) => i64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            (2, true) => i64::from(i16::from_ne_bytes(bytes.try_into().ok()?)),
            (4, false) => i64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            (4, true) => i64::from(i32::from_ne_bytes(bytes.try_into().ok()?)),
            (8, _) => i64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }
}

/// One parsed `format` file.
#[derive(Debug)]
pub(super) struct TracepointFormat {
    /// As in `name: kfree_skb`.
    pub(super) name: String,
    /// The number by which `perf_event_open` knows the tracepoint. Another one after each boot.
    pub(super) id: u64,
    fields: Vec<(String, RecordField)>,
    print: String,
}

impl TracepointFormat {
    /// Reads the text of a `format` file. The error says what is missing.
    pub(super) fn parse(text: &str) -> Result<TracepointFormat, String> {
        let after = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let name = after("name:").ok_or("no line `name:`")?.to_owned();
        let id = after("ID:").ok_or("no line `ID:`")?;
        let id = id.parse().map_err(|_| format!("`ID: {id}` is no number"))?;
        let fields = text.lines().filter_map(field).collect();
        let print = after("print fmt:").unwrap_or_default().to_owned();
        Ok(TracepointFormat { name, id, fields, print })
    }

    /// The field of this name, where the kernel has it.
    pub(super) fn field(&self, name: &str) -> Option<RecordField> {
        self.fields.iter().find(|(its, _)| its == name).map(|(_, field)| *field)
    }

    /// The names of the values of a field, from the list with which the kernel prints it. Empty where there is none.
    pub(super) fn names(&self, field: &str) -> Vec<(u32, String)> {
        let list = format!("__print_symbolic(REC->{field},");
        let Some(list) = self.print.split(&list).nth(1) else { return Vec::new() };
        let mut names = Vec::new();
        let mut left = list.trim_start();
        // One `{ 3, "NO_SOCKET" }` after the other. A value that is not a number is an enumerator that the kernel did
        // not resolve.
        while let Some((pair, after)) = left.strip_prefix('{').and_then(|left| left.split_once('}')) {
            if let Some((value, name)) = pair.split_once(',')
                && let Some(value) = number(value.trim())
            {
                names.push((value, name.trim().trim_matches('"').to_owned()));
            }
            left = after.trim_start().trim_start_matches(',').trim_start();
        }
        names
    }
}

/// One line such as `field:unsigned short protocol; offset:32; size:2; signed:0;`, with tabs between.
fn field(line: &str) -> Option<(String, RecordField)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declared = parts.next()?.strip_prefix("field:")?;
    let name = declared.rsplit([' ', '*']).next()?;
    // An array has its length behind its name; none is used.
    let name = name.split('[').next()?;
    let mut value = |key: &str| parts.next()?.strip_prefix(key)?.parse::<usize>().ok();
    let field = RecordField { offset: value("offset:")?, bytes: value("size:")?, signed: value("signed:")? != 0 };
    Some((name.to_owned(), field))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
