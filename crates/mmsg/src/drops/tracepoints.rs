//! The two tracepoints that name drops, looked up in tracefs or in the text that root has read there.

use std::fs;
use std::io;
use std::path::Path;

use super::format::{Field, Format};
use super::reasons;
use super::refusal::Refusal;

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
    pub(super) error: Field,
    pub(super) port: Field,
    /// Before Linux 6.10 there was one port, and before 6.6 it was not called for datagrams of IPv6.
    pub(super) is_of_old_kernel: bool,
}

/// `skb:kfree_skb`: what was thrown away.
#[derive(Clone, Debug)]
pub(super) struct Freed {
    pub(super) id: u64,
    pub(super) protocol: Field,
    pub(super) reason: Field,
    /// What each reason is called. Empty where the kernel keeps that to itself.
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
    pub fn read() -> Result<Tracepoints, Refusal> {
        let mounted = MOUNTS.iter().find(|mount| Path::new(mount).join("events").exists());
        Tracepoints::read_below(Path::new(mounted.unwrap_or(&MOUNTS[0])))
    }

    /// Reads them from a tracefs that is mounted at `mount`.
    pub fn read_below(mount: &Path) -> Result<Tracepoints, Refusal> {
        let read = |file: &str| {
            let path = mount.join(file);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(text),
                Err(error) => Err(Refusal::of_file(&path.to_string_lossy(), error)),
            }
        };
        match (read(UDP_FAIL_FORMAT), read(KFREE_SKB_FORMAT)) {
            (Err(refusal), Err(_)) => Err(refusal),
            (not_queued, freed) => Tracepoints::parse(not_queued.ok().as_deref(), freed.ok().as_deref()),
        }
    }

    /// Takes the texts of the files [`UDP_FAIL_FORMAT`] and [`KFREE_SKB_FORMAT`], which root has read on this host
    /// since it booted. One of them is enough to begin with.
    pub fn parse(not_queued: Option<&str>, freed: Option<&str>) -> Result<Tracepoints, Refusal> {
        let parsed = |text: Option<&str>, file: &str| {
            let unknown = |error: String| Refusal::new(format!("read {file}"), invalid(error), "it is of another kind");
            text.map(|text| Format::parse(text).map_err(unknown)).transpose()
        };
        let not_queued = parsed(not_queued, UDP_FAIL_FORMAT)?.as_ref().and_then(not_queued_of);
        let freed = parsed(freed, KFREE_SKB_FORMAT)?.as_ref().and_then(freed_of);
        if not_queued.is_none() && freed.is_none() {
            let error = io::Error::from(io::ErrorKind::Unsupported);
            let cause = "neither udp:udp_fail_queue_rcv_skb nor a skb:kfree_skb with reasons (Linux 5.17) is there";
            return Err(Refusal::new("look tracepoints up".to_owned(), error, cause));
        }
        Ok(Tracepoints { not_queued, freed })
    }

    /// What the kernel calls reason `value`.
    pub(super) fn name(&self, value: u32) -> Option<&str> {
        let names = &self.freed.as_ref()?.names;
        names.iter().find(|(its, _)| *its == value).map(|(_, name)| name.as_str())
    }

    /// Whether a drop can be told to have no reason.
    pub(super) fn has_unnamed(&self) -> bool {
        self.freed.as_ref().is_some_and(|freed| freed.names.iter().any(|(_, name)| name == reasons::UNNAMED))
    }
}

/// From Linux 6.10 on both ports of the datagram, before that the port of the socket.
fn not_queued_of(format: &Format) -> Option<NotQueued> {
    let (of_datagram, of_socket) = (format.field("dport"), format.field("lport"));
    let (error, port) = (format.field("rc")?, of_datagram.or(of_socket)?);
    let is_of_old_kernel = of_datagram.is_none();
    (format.name == "udp_fail_queue_rcv_skb").then_some(NotQueued { id: format.id, error, port, is_of_old_kernel })
}

/// Without a reason the record says nothing that is of use here.
fn freed_of(format: &Format) -> Option<Freed> {
    let (protocol, reason) = (format.field("protocol")?, format.field("reason")?);
    (format.name == "kfree_skb").then(|| Freed { id: format.id, protocol, reason, names: format.names("reason") })
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
