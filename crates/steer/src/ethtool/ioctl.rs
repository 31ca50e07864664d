//! The ethtool ioctls of the running kernel.
//!
//! A setter reads first and writes its fields over what it read, so that what it does not name stays. Answers of
//! varying length are asked for twice, first for their length; a driver that changes its mind in between is asked
//! again.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use super::wire::{self, command};
use super::{
    Answer, Channels, Coalescing, DriverInfo, Ethtool, EthtoolError, Family, FlowHash, NtupleRule, Rings, Rss,
};
use crate::sys::{self, Guarded};

/// How often a driver may change its mind between two calls.
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

    fn call(&self, interface: &str, request: &mut Guarded, doing: impl FnOnce() -> String) -> Answer<()> {
        sys::ethtool(self.socket.as_fd(), interface, request).map_err(|cause| explain(cause, doing))
    }

    /// One question with a fixed length.
    fn ask(&self, interface: &str, command: u32, bytes: usize, what: &str) -> Answer<Guarded> {
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

fn new_request(command: u32, bytes: usize) -> Answer<Guarded> {
    let mut request = Guarded::new(bytes).map_err(|cause| EthtoolError::Failed {
        operation: format!("get {bytes} bytes of memory for a request to the driver"),
        cause,
    })?;
    wire::put_u32(request.bytes_mut(), wire::COMMAND_AT, command);
    Ok(request)
}

fn explain(cause: io::Error, doing: impl FnOnce() -> String) -> EthtoolError {
    match cause.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => EthtoolError::NotSupported,
        Some(libc::EPERM | libc::EACCES) => EthtoolError::Permission,
        Some(libc::ENODEV) => EthtoolError::NoInterface,
        _ => EthtoolError::Failed { operation: doing(), cause },
    }
}

fn bounded(value: u32, most: u32, what: &str, interface: &str) -> Answer<u32> {
    if value <= most {
        return Ok(value);
    }
    Err(EthtoolError::Failed {
        operation: format!("use what the driver of {interface} answers"),
        cause: io::Error::other(format!("it claims {value} {what}, and more than {most} cannot be")),
    })
}

fn kept_changing(interface: &str, what: &str) -> EthtoolError {
    EthtoolError::Failed {
        operation: format!("read {what} of {interface}"),
        cause: io::Error::other(format!("their number changed during each of {ATTEMPTS} attempts")),
    }
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
            function: bytes[wire::RSS_FUNCTION_AT],
        })
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
        self.call(interface, &mut request, || format!("read what {interface} hashes of UDP over {family}"))?;
        Ok(FlowHash(wire::u64_at(request.bytes(), wire::DATA_AT)))
    }

    fn set_flow_hash(&self, interface: &str, family: Family, hash: FlowHash) -> Answer<()> {
        let mut request = new_request(command::SET_FLOW_HASH, wire::RXNFC_BYTES)?;
        wire::put_u32(request.bytes_mut(), wire::FLOW_TYPE_AT, wire::flow_type(family));
        wire::put_u64(request.bytes_mut(), wire::DATA_AT, hash.0);
        let doing = || format!("let {interface} hash {:?} of UDP over {family}", hash.letters());
        self.call(interface, &mut request, doing)
    }

    fn ntuple_rules(&self, interface: &str) -> Answer<Vec<NtupleRule>> {
        for _ in 0..ATTEMPTS {
            let count = self.rule_count(interface)?.0;
            let mut request = new_request(command::LIST_RULES, wire::RULE_LOCATIONS_AT + 4 * count as usize)?;
            wire::put_rule_count(request.bytes_mut(), count);
            match sys::ethtool(self.socket.as_fd(), interface, &mut request) {
                // More rules than there is room for: one came in between.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => continue,
                result => result.map_err(|cause| explain(cause, || format!("list the ntuple rules of {interface}")))?,
            };
            let listed = wire::rule_count(request.bytes()).min(count) as usize;
            return wire::table(request.bytes(), wire::RULE_LOCATIONS_AT, listed)
                .into_iter()
                .filter_map(|location| self.rule_at(interface, location).transpose())
                .collect();
        }
        Err(kept_changing(interface, "the ntuple rules"))
    }

    fn insert_ntuple_rule(&self, interface: &str, rule: &NtupleRule) -> Answer<u32> {
        let mut rule = rule.clone();
        if rule.location.is_none() {
            let (_, driver_chooses) = self.rule_count(interface)?;
            if !driver_chooses {
                let taken: Vec<u32> = self.ntuple_rules(interface)?.iter().filter_map(|rule| rule.location).collect();
                rule.location = (0..wire::RULES_MAX).find(|location| !taken.contains(location));
            }
        }
        let mut request = new_request(command::INSERT_RULE, wire::RXNFC_BYTES)?;
        wire::put_rule(request.bytes_mut(), &rule);
        let doing = || format!("insert an ntuple rule on {interface} ({rule:?})");
        self.call(interface, &mut request, doing)?;
        Ok(wire::location(request.bytes()))
    }

    fn delete_ntuple_rule(&self, interface: &str, location: u32) -> Answer<()> {
        let mut request = new_request(command::DELETE_RULE, wire::RXNFC_BYTES)?;
        wire::put_location(request.bytes_mut(), location);
        self.call(interface, &mut request, || format!("delete ntuple rule {location} of {interface}"))
    }

    fn coalescing(&self, interface: &str) -> Answer<Coalescing> {
        self.ask(interface, command::GET_COALESCING, wire::COALESCING_BYTES, "the coalescing")
            .map(|answer| wire::coalescing(answer.bytes()))
    }

    fn set_coalescing(&self, interface: &str, coalescing: &Coalescing) -> Answer<()> {
        let mut request = self.ask(interface, command::GET_COALESCING, wire::COALESCING_BYTES, "the coalescing")?;
        wire::put_coalescing(request.bytes_mut(), coalescing);
        self.tell(interface, command::SET_COALESCING, request, || {
            format!("set the coalescing of {interface} to {coalescing:?}")
        })
    }
}

impl Ioctl {
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

    /// How many rules there are, and whether the driver chooses the place of a new one.
    fn rule_count(&self, interface: &str) -> Answer<(u32, bool)> {
        let answer = self.ask(interface, command::COUNT_RULES, wire::RXNFC_BYTES, "the ntuple rules")?;
        let count = bounded(wire::rule_count(answer.bytes()), wire::RULES_MAX, "rules", interface)?;
        Ok((count, wire::u64_at(answer.bytes(), wire::DATA_AT) & wire::PLACES_BY_DRIVER != 0))
    }

    /// One rule; `None` when it is gone by now or is about something else than UDP.
    fn rule_at(&self, interface: &str, location: u32) -> Answer<Option<NtupleRule>> {
        let mut request = new_request(command::GET_RULE, wire::RXNFC_BYTES)?;
        wire::put_location(request.bytes_mut(), location);
        match self.call(interface, &mut request, || format!("read ntuple rule {location} of {interface}")) {
            Err(EthtoolError::Failed { cause, .. }) if cause.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            result => result.map(|()| wire::rule(request.bytes())),
        }
    }
}

#[cfg(test)]
#[path = "ioctl_tests.rs"]
mod tests;
