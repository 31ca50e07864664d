//! The ethtool ioctls of the running kernel.
//!
//! A setter reads first and writes its fields over what it read, so that what it does not name stays. Answers of
//! varying length are asked for twice, first for their length.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use super::wire::{self, command};
use super::{
    Answer, Channels, Coalescing, DriverInfo, Ethtool, EthtoolError, Family, Feature, FlowHash, Rings, Rss, Rule, Rules,
};
use crate::sys::{self, Guarded};

/// How often the length of an answer may change while it is asked for.
const ATTEMPTS: usize = 4;

/// The kernel's ioctls, in the network namespace where this was made.
#[derive(Debug)]
pub struct Ioctl {
    socket: UdpSocket,
}

impl Ioctl {
    /// Any internet socket will do: it says which network namespace is meant. Nothing is ever sent from it.
    pub fn new() -> io::Result<Self> {
        UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")).map(|socket| Self { socket })
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    pub(super) fn call(&self, interface: &str, request: &mut Guarded, doing: impl FnOnce() -> String) -> Answer<()> {
        sys::ethtool(self.socket.as_fd(), interface, request).map_err(|cause| explain(cause, doing))
    }

    /// One question with a fixed length.
    pub(super) fn ask(&self, interface: &str, command: u32, bytes: usize, what: &str) -> Answer<Guarded> {
        let mut request = new_request(command, bytes)?;
        self.call(interface, &mut request, || format!("read {what} of {interface}"))?;
        Ok(request)
    }

    /// Writes a changed answer back under another command.
    fn tell(&self, interface: &str, command: u32, mut request: Guarded, doing: impl FnOnce() -> String) -> Answer<()> {
        wire::put_u32(request.bytes_mut(), wire::COMMAND_AT, command);
        self.call(interface, &mut request, doing)
    }

    fn set_rss(&self, interface: &str, table: Option<&[u32]>, table_size: u32, key: &[u8]) -> Answer<()> {
        let entries = table.map_or(0, <[u32]>::len);
        let write = |transform: u8| {
            let mut request = new_request(command::SET_RSS, wire::RSS_HEADER_BYTES + 4 * entries + key.len())?;
            let bytes = request.bytes_mut();
            wire::put_u32(bytes, wire::RSS_TABLE_SIZE_AT, table_size);
            wire::put_u32(bytes, wire::RSS_KEY_SIZE_AT, u32::try_from(key.len()).unwrap_or(u32::MAX));
            bytes[wire::RSS_TRANSFORM_AT] = transform;
            for (number, queue) in table.unwrap_or_default().iter().enumerate() {
                wire::put_u32(bytes, wire::RSS_HEADER_BYTES + 4 * number, *queue);
            }
            bytes[wire::RSS_HEADER_BYTES + 4 * entries..][..key.len()].copy_from_slice(key);
            sys::ethtool(self.socket.as_fd(), interface, &mut request).map_err(|cause| {
                explain(cause, || {
                    format!("set the hash spreading of {interface} ({entries} entries, {} bytes of key)", key.len())
                })
            })
        };
        // Older kernels refuse the value that newer ones take for "leave the symmetric hash as it is", and some newer
        // ones refuse it for drivers without a symmetric hash, where 0 changes nothing.
        match write(wire::TRANSFORM_UNCHANGED) {
            Err(EthtoolError::Failed { cause, .. }) if cause.raw_os_error() == Some(libc::EINVAL) => write(0),
            Err(EthtoolError::NotSupported) => write(0),
            result => result,
        }
    }
}

pub(super) fn new_request(command: u32, bytes: usize) -> Answer<Guarded> {
    let mut request = Guarded::new(bytes).map_err(|cause| EthtoolError::Failed {
        operation: format!("get {bytes} bytes of memory for a request to the driver"),
        cause,
    })?;
    wire::put_u32(request.bytes_mut(), wire::COMMAND_AT, command);
    Ok(request)
}

pub(super) fn explain(cause: io::Error, doing: impl FnOnce() -> String) -> EthtoolError {
    match cause.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => EthtoolError::NotSupported,
        Some(libc::EPERM | libc::EACCES) => EthtoolError::Permission,
        Some(libc::ENODEV) => EthtoolError::NoInterface,
        _ => EthtoolError::Failed { operation: doing(), cause },
    }
}

/// What is asked for its length first can have another one when it is asked for itself: the driver then refuses the
/// length, or a kernel that goes by its own writes past our end (EFAULT). So both are asked for again.
fn with_the_size_of_now<T>(mut ask: impl FnMut() -> Answer<T>) -> Answer<T> {
    let has_changed = |error: &EthtoolError| match error {
        EthtoolError::Failed { cause, .. } => matches!(cause.raw_os_error(), Some(libc::EINVAL | libc::EFAULT)),
        _ => false,
    };
    let mut answer = ask();
    for _ in 1..ATTEMPTS {
        match &answer {
            Err(error) if has_changed(error) => answer = ask(),
            _ => break,
        }
    }
    answer
}

pub(super) fn bounded(value: u32, most: u32, what: &str, interface: &str) -> Answer<u32> {
    if value <= most {
        return Ok(value);
    }
    Err(EthtoolError::Failed {
        operation: format!("use what the driver of {interface} answers"),
        cause: io::Error::other(format!("it claims {value} {what}, and more than {most} cannot be")),
    })
}

impl Ethtool for Ioctl {
    fn driver(&self, interface: &str) -> Answer<DriverInfo> {
        self.ask(interface, command::GET_DRIVER, wire::DRVINFO_BYTES, "the driver")
            .map(|answer| wire::driver(answer.bytes()))
    }

    fn channels(&self, interface: &str) -> Answer<Channels> {
        self.ask(interface, command::GET_CHANNELS, wire::CHANNELS_BYTES, "the channels")
            .map(|answer| wire::channels(answer.bytes()))
    }

    fn set_channels(&self, interface: &str, channels: &Channels) -> Answer<()> {
        let mut request = self.ask(interface, command::GET_CHANNELS, wire::CHANNELS_BYTES, "the channels")?;
        wire::put_channels(request.bytes_mut(), channels);
        let doing = || {
            let Channels { rx, tx, other, combined, .. } = channels;
            format!("set the channels of {interface} to rx {rx}, tx {tx}, other {other}, combined {combined}")
        };
        self.tell(interface, command::SET_CHANNELS, request, doing)
    }

    fn rings(&self, interface: &str) -> Answer<Rings> {
        self.ask(interface, command::GET_RINGS, wire::RINGS_BYTES, "the rings")
            .map(|answer| wire::rings(answer.bytes()))
    }

    fn set_rings(&self, interface: &str, rings: &Rings) -> Answer<()> {
        let mut request = self.ask(interface, command::GET_RINGS, wire::RINGS_BYTES, "the rings")?;
        wire::put_rings(request.bytes_mut(), rings);
        let doing = || format!("set the rings of {interface} to rx {}, tx {}", rings.rx, rings.tx);
        self.tell(interface, command::SET_RINGS, request, doing)
    }

    fn rss(&self, interface: &str) -> Answer<Rss> {
        with_the_size_of_now(|| self.table_and_key(interface))
    }

    fn set_indirection(&self, interface: &str, table: Option<&[u32]>) -> Answer<()> {
        // A size of 0 asks for the driver's default.
        let size = table.map_or(0, |table| u32::try_from(table.len()).unwrap_or(u32::MAX));
        match self.set_rss(interface, table, size, &[]) {
            Err(EthtoolError::NotSupported) => {
                let mut request =
                    new_request(command::SET_INDIRECTION, wire::INDIRECTION_HEADER_BYTES + 4 * size as usize)?;
                wire::put_u32(request.bytes_mut(), wire::INDIRECTION_SIZE_AT, size);
                for (number, queue) in table.unwrap_or_default().iter().enumerate() {
                    wire::put_u32(request.bytes_mut(), wire::INDIRECTION_HEADER_BYTES + 4 * number, *queue);
                }
                let doing = || format!("set the indirection table of {interface} to {size} entries");
                self.call(interface, &mut request, doing)
            }
            result => result,
        }
    }

    fn set_rss_key(&self, interface: &str, key: &[u8]) -> Answer<()> {
        self.set_rss(interface, None, wire::TABLE_UNCHANGED, key)
    }

    fn flow_hash(&self, interface: &str, family: Family) -> Answer<FlowHash> {
        let mut request = new_request(command::GET_FLOW_HASH, wire::RXNFC_BYTES)?;
        wire::put_u32(request.bytes_mut(), wire::FLOW_TYPE_AT, wire::flow_type(family));
        match self.call(interface, &mut request, || format!("read what {interface} hashes of UDP over {family}")) {
            // So some drivers say that they know no such flows, instead of EOPNOTSUPP.
            Err(EthtoolError::Failed { cause, .. }) if cause.raw_os_error() == Some(libc::EINVAL) => {
                return Err(EthtoolError::NotSupported);
            }
            answer => answer?,
        }
        Ok(FlowHash(wire::u64_at(request.bytes(), wire::DATA_AT)))
    }

    fn set_flow_hash(&self, interface: &str, family: Family, hash: FlowHash) -> Answer<()> {
        let mut request = new_request(command::SET_FLOW_HASH, wire::RXNFC_BYTES)?;
        wire::put_u32(request.bytes_mut(), wire::FLOW_TYPE_AT, wire::flow_type(family));
        wire::put_u64(request.bytes_mut(), wire::DATA_AT, hash.0);
        let doing = || format!("let {interface} hash {:?} of UDP over {family}", hash.letters());
        self.call(interface, &mut request, doing)
    }

    fn coalescing(&self, interface: &str) -> Answer<Coalescing> {
        self.ask(interface, command::GET_COALESCING, wire::COALESCING_BYTES, "the coalescing")
            .map(|answer| wire::coalescing(answer.bytes()))
    }

    fn set_coalescing(&self, interface: &str, coalescing: &Coalescing) -> Answer<()> {
        let mut request = self.ask(interface, command::GET_COALESCING, wire::COALESCING_BYTES, "the coalescing")?;
        wire::put_coalescing(request.bytes_mut(), coalescing);
        let Coalescing { rx_usecs, rx_frames, adaptive_rx } = *coalescing;
        self.tell(interface, command::SET_COALESCING, request, || {
            let adaptive = if adaptive_rx { "on" } else { "off" };
            format!("set the coalescing of {interface} to {rx_usecs} us, {rx_frames} frames, adaptive {adaptive}")
        })
    }

    fn feature(&self, interface: &str, name: &str) -> Answer<Feature> {
        self.read_feature(interface, name)
    }

    fn set_feature(&self, interface: &str, name: &str, on: bool) -> Answer<()> {
        self.write_feature(interface, name, on)
    }

    fn rules(&self, interface: &str) -> Answer<Rules> {
        self.list_rules(interface)
    }

    fn insert_rule(&self, interface: &str, rule: &Rule, place: Option<u32>) -> Answer<u32> {
        self.add_rule(interface, rule, place)
    }

    fn delete_rule(&self, interface: &str, place: u32) -> Answer<()> {
        self.remove_rule(interface, place)
    }
}

impl Ioctl {
    fn table_and_key(&self, interface: &str) -> Answer<Rss> {
        let sizes = self.ask(interface, command::GET_RSS, wire::RSS_HEADER_BYTES, "the hash spreading")?;
        let entries = bounded(
            wire::u32_at(sizes.bytes(), wire::RSS_TABLE_SIZE_AT),
            wire::INDIRECTION_MAX,
            "table entries",
            interface,
        )?;
        let key_bytes =
            bounded(wire::u32_at(sizes.bytes(), wire::RSS_KEY_SIZE_AT), wire::KEY_BYTES_MAX, "key bytes", interface)?;
        if entries == 0 && key_bytes == 0 {
            // Drivers that only have the older command answer it alone.
            return self.indirection_only(interface);
        }
        let (entries, key_bytes) = (entries as usize, key_bytes as usize);
        let mut request = new_request(command::GET_RSS, wire::RSS_HEADER_BYTES + 4 * entries + key_bytes)?;
        wire::put_u32(request.bytes_mut(), wire::RSS_TABLE_SIZE_AT, entries as u32);
        wire::put_u32(request.bytes_mut(), wire::RSS_KEY_SIZE_AT, key_bytes as u32);
        self.call(interface, &mut request, || format!("read the hash spreading of {interface}"))?;
        let bytes = request.bytes();
        let key_at = wire::RSS_HEADER_BYTES + 4 * entries;
        Ok(Rss {
            indirection: wire::table(bytes, wire::RSS_HEADER_BYTES, entries),
            key: bytes.get(key_at..key_at + key_bytes).unwrap_or_default().to_vec(),
        })
    }

    fn indirection_only(&self, interface: &str) -> Answer<Rss> {
        let size =
            self.ask(interface, command::GET_INDIRECTION, wire::INDIRECTION_HEADER_BYTES, "the indirection table")?;
        let entries = bounded(
            wire::u32_at(size.bytes(), wire::INDIRECTION_SIZE_AT),
            wire::INDIRECTION_MAX,
            "table entries",
            interface,
        )?;
        if entries == 0 {
            return Err(EthtoolError::NotSupported);
        }
        let mut request = new_request(command::GET_INDIRECTION, wire::INDIRECTION_HEADER_BYTES + 4 * entries as usize)?;
        wire::put_u32(request.bytes_mut(), wire::INDIRECTION_SIZE_AT, entries);
        self.call(interface, &mut request, || format!("read the indirection table of {interface}"))?;
        Ok(Rss {
            indirection: wire::table(request.bytes(), wire::INDIRECTION_HEADER_BYTES, entries as usize),
            ..Rss::default()
        })
    }
}

#[cfg(test)]
#[path = "ioctl_tests.rs"]
mod tests;
