//! The ethtool ioctls of the running kernel.
//!
//! A setter reads first and writes its fields over what it read, so that what it does not name stays. Answers of
//! varying length are asked for twice, first for their length.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use super::wire::{self, command};
use super::{Answer, Channels, Coalescing, Ethtool, EthtoolError, Family, Feature, FlowHash, Rings, Rss, Rule, Rules};
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

    /// One request, with what `fill` writes into it.
    fn request(
        &self,
        interface: &str,
        command: u32,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
        doing: impl FnOnce() -> String,
    ) -> Answer<Guarded> {
        let mut request = new_request(command, bytes)?;
        fill(request.bytes_mut());
        self.call(interface, &mut request, doing)?;
        Ok(request)
    }

    /// One question with a fixed length.
    fn ask(&self, interface: &str, command: u32, bytes: usize, what: &str) -> Answer<Guarded> {
        self.request(interface, command, bytes, |_| {}, || format!("read {what} of {interface}"))
    }

    /// Writes a changed answer back under another command.
    fn tell(&self, interface: &str, command: u32, mut request: Guarded, doing: impl FnOnce() -> String) -> Answer<()> {
        wire::put_u32(request.bytes_mut(), wire::COMMAND_AT, command);
        self.call(interface, &mut request, doing)
    }

    fn set_rss(&self, interface: &str, table: Option<&[u32]>, table_size: u32, key: &[u8]) -> Answer<()> {
        let entries = table.map_or(0, <[u32]>::len);
        let write = |transform: u8| {
            let fill = |bytes: &mut [u8]| {
                wire::put_u32(bytes, wire::RSS_TABLE_SIZE_AT, table_size);
                wire::put_u32(bytes, wire::RSS_KEY_SIZE_AT, u32::try_from(key.len()).unwrap_or(u32::MAX));
                bytes[wire::RSS_TRANSFORM_AT] = transform;
                wire::put_table(bytes, wire::RSS_HEADER_BYTES, table.unwrap_or_default());
                bytes[wire::RSS_HEADER_BYTES + 4 * entries..][..key.len()].copy_from_slice(key);
            };
            let bytes = wire::RSS_HEADER_BYTES + 4 * entries + key.len();
            let doing =
                || format!("set the hash spreading of {interface} ({entries} entries, {} bytes of key)", key.len());
            self.request(interface, command::SET_RSS, bytes, fill, doing).map(drop)
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

/// The length of an answer is asked for first, and may have changed when the answer is asked for: the driver then
/// refuses the length, or the kernel writes past our end (EFAULT). So both are asked for again.
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
    fn driver(&self, interface: &str) -> Answer<String> {
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
                let fill = |bytes: &mut [u8]| {
                    wire::put_u32(bytes, wire::INDIRECTION_SIZE_AT, size);
                    wire::put_table(bytes, wire::INDIRECTION_HEADER_BYTES, table.unwrap_or_default());
                };
                let bytes = wire::INDIRECTION_HEADER_BYTES + 4 * size as usize;
                let doing = || format!("set the indirection table of {interface} to {size} entries");
                self.request(interface, command::SET_INDIRECTION, bytes, fill, doing).map(drop)
            }
            result => result,
        }
    }

    fn set_rss_key(&self, interface: &str, key: &[u8]) -> Answer<()> {
        self.set_rss(interface, None, wire::TABLE_UNCHANGED, key)
    }

    fn flow_hash(&self, interface: &str, family: Family) -> Answer<FlowHash> {
        let fill = |bytes: &mut [u8]| wire::put_u32(bytes, wire::FLOW_TYPE_AT, wire::flow_type(family));
        let doing = || format!("read what {interface} hashes of UDP over {family}");
        match self.request(interface, command::GET_FLOW_HASH, wire::RXNFC_BYTES, fill, doing) {
            // Some drivers answer EINVAL for flows that they do not know, instead of EOPNOTSUPP.
            Err(EthtoolError::Failed { cause, .. }) if cause.raw_os_error() == Some(libc::EINVAL) => {
                Err(EthtoolError::NotSupported)
            }
            answer => Ok(FlowHash(wire::u64_at(answer?.bytes(), wire::DATA_AT))),
        }
    }

    fn set_flow_hash(&self, interface: &str, family: Family, hash: FlowHash) -> Answer<()> {
        let fill = |bytes: &mut [u8]| {
            wire::put_u32(bytes, wire::FLOW_TYPE_AT, wire::flow_type(family));
            wire::put_u64(bytes, wire::DATA_AT, hash.0);
        };
        let doing = || format!("let {interface} hash {:?} of UDP over {family}", hash.letters());
        self.request(interface, command::SET_FLOW_HASH, wire::RXNFC_BYTES, fill, doing).map(drop)
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

    fn rules(&self, interface: &str) -> Answer<Rules> {
        'listing: for _ in 0..LISTINGS {
            let counted = self.ask(interface, command::COUNT_RULES, wire::RXNFC_BYTES, "the number of rules")?;
            let count =
                bounded(wire::u32_at(counted.bytes(), wire::RULE_COUNT_AT), wire::RULES_MAX, "rules", interface)?;
            let bytes = (wire::PLACES_AT + 4 * count as usize).max(wire::RXNFC_BYTES);
            let mut request = new_request(command::LIST_RULES, bytes)?;
            wire::put_u32(request.bytes_mut(), wire::RULE_COUNT_AT, count);
            match sys::ethtool(self.socket().as_fd(), interface, &mut request) {
                // More rules than there is room for: one came in between.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => continue,
                result => result.map_err(|cause| explain(cause, || format!("list the rules of {interface}")))?,
            }
            let listed = wire::u32_at(request.bytes(), wire::RULE_COUNT_AT).min(count) as usize;
            let mut taken = Vec::with_capacity(listed);
            for place in wire::table(request.bytes(), wire::PLACES_AT, listed) {
                match self.rule_at(interface, place)? {
                    Some(rule) => taken.push((place, rule)),
                    None => continue 'listing,
                }
            }
            taken.sort_by_key(|(place, _)| *place);
            // Some drivers tell the number of places with the count, some with the list, some never.
            let told = [counted.bytes(), request.bytes()].map(|bytes| wire::u64_at(bytes, wire::DATA_AT));
            let places = told.map(|data| data & !wire::DRIVER_CHOOSES);
            let places = places.into_iter().find(|&places| places > 0).and_then(|places| u32::try_from(places).ok());
            let driver_chooses = told.iter().any(|data| data & wire::DRIVER_CHOOSES != 0);
            return Ok(Rules { places, driver_chooses, taken });
        }
        Err(EthtoolError::Failed {
            operation: format!("list the rules of {interface}"),
            cause: std::io::Error::other(format!("they changed {LISTINGS} times while they were listed")),
        })
    }

    fn insert_rule(&self, interface: &str, rule: &Rule, place: Option<u32>) -> Answer<u32> {
        let fill = |bytes: &mut [u8]| wire::put_rule(bytes, rule, place);
        let doing = || {
            let Rule { family, port, queue, .. } = rule;
            format!("let {interface} send UDP over {family} to port {port} to queue {queue}")
        };
        let answer = self.request(interface, command::INSERT_RULE, wire::RXNFC_BYTES, fill, doing)?;
        Ok(wire::u32_at(answer.bytes(), wire::PLACE_AT))
    }

    fn delete_rule(&self, interface: &str, place: u32) -> Answer<()> {
        let fill = |bytes: &mut [u8]| wire::put_u32(bytes, wire::PLACE_AT, place);
        let doing = || format!("delete the rule at place {place} of {interface}");
        self.request(interface, command::DELETE_RULE, wire::RXNFC_BYTES, fill, doing).map(drop)
    }

    fn feature(&self, interface: &str, name: &str) -> Answer<Feature> {
        let (bit, words) = self.find_feature(interface, name)?;
        let bytes = wire::FEATURES_HEADER_BYTES + wire::GET_BLOCK_BYTES * words;
        let fill = |bytes: &mut [u8]| wire::put_feature_words(bytes, words);
        let doing = || format!("read the features of {interface}");
        let answer = self.request(interface, command::GET_FEATURES, bytes, fill, doing)?;
        Ok(wire::feature(answer.bytes(), bit))
    }

    fn set_feature(&self, interface: &str, name: &str, on: bool) -> Answer<()> {
        let (bit, words) = self.find_feature(interface, name)?;
        let bytes = wire::FEATURES_HEADER_BYTES + wire::SET_BLOCK_BYTES * words;
        let fill = |request: &mut [u8]| {
            wire::put_feature_words(request, words);
            wire::put_feature(request, bit, on);
        };
        let doing = || format!("turn {name} of {interface} {}", if on { "on" } else { "off" });
        // The kernel answers a request that the driver does not follow with a flag and no error; reading it back tells.
        self.request(interface, command::SET_FEATURES, bytes, fill, doing).map(drop)
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
        let fill = |bytes: &mut [u8]| {
            wire::put_u32(bytes, wire::RSS_TABLE_SIZE_AT, entries as u32);
            wire::put_u32(bytes, wire::RSS_KEY_SIZE_AT, key_bytes as u32);
        };
        let bytes = wire::RSS_HEADER_BYTES + 4 * entries + key_bytes;
        let doing = || format!("read the hash spreading of {interface}");
        let answer = self.request(interface, command::GET_RSS, bytes, fill, doing)?;
        let bytes = answer.bytes();
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
        let fill = |bytes: &mut [u8]| wire::put_u32(bytes, wire::INDIRECTION_SIZE_AT, entries);
        let bytes = wire::INDIRECTION_HEADER_BYTES + 4 * entries as usize;
        let doing = || format!("read the indirection table of {interface}");
        let answer = self.request(interface, command::GET_INDIRECTION, bytes, fill, doing)?;
        let indirection = wire::table(answer.bytes(), wire::INDIRECTION_HEADER_BYTES, entries as usize);
        Ok(Rss { indirection, key: Vec::new() })
    }
}

// Rules and features take several calls each: a table is counted before it is listed, and a feature is a bit whose
// place changes from kernel to kernel, so its name is looked up every time.

/// How often a table of rules is listed that changes while it is listed.
const LISTINGS: usize = 5;

impl Ioctl {
    /// The rule at a place: `None` when the place is empty by now, `Some(None)` when a [`Rule`] cannot express it. Of
    /// an empty place most drivers answer ENOENT, and ixgbe EINVAL.
    fn rule_at(&self, interface: &str, place: u32) -> Answer<Option<Option<Rule>>> {
        let fill = |bytes: &mut [u8]| wire::put_u32(bytes, wire::PLACE_AT, place);
        let doing = || format!("read the rule at place {place} of {interface}");
        match self.request(interface, command::GET_RULE, wire::RXNFC_BYTES, fill, doing) {
            Err(EthtoolError::Failed { cause, .. })
                if matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) =>
            {
                Ok(None)
            }
            answer => Ok(Some(wire::rule(answer?.bytes()))),
        }
    }

    /// The bit of a feature and how many words hold all of them.
    fn find_feature(&self, interface: &str, name: &str) -> Answer<(usize, usize)> {
        let (names, count) = self.names(interface, wire::FEATURE_NAMES, wire::FEATURES_MAX, "features")?;
        let bit = wire::bit_named(names.bytes(), name).ok_or(EthtoolError::NotSupported)?;
        Ok((bit, wire::feature_words(count)))
    }

    /// The names of a set, as the driver answers them, and how many they are.
    pub(super) fn names(&self, interface: &str, set: u32, most: u32, what: &str) -> Answer<(Guarded, u32)> {
        let fill = |bytes: &mut [u8]| wire::put_u64(bytes, wire::STRING_SETS_AT, 1 << set);
        let doing = || format!("count the {what} of {interface}");
        let sets = self.request(interface, command::COUNT_STRINGS, wire::STRING_COUNT_BYTES, fill, doing)?;
        let count = bounded(wire::string_count(sets.bytes(), set), most, what, interface)?;
        let fill = |bytes: &mut [u8]| wire::put_name_count(bytes, set, count);
        let doing = || format!("read the names of the {what} of {interface}");
        let names = self.request(interface, command::GET_STRINGS, wire::names_bytes(count), fill, doing)?;
        Ok((names, count))
    }
}

/// More counters than any driver has.
const STATISTICS_MAX: u32 = 65_536;

/// The counters of one driver for one interface.
#[derive(Debug)]
pub struct DriverStatistics {
    interface: String,
    names: Vec<String>,
    request: Guarded,
}

impl DriverStatistics {
    /// Asks for the names. A driver without counters is not supported.
    pub fn new(ioctl: &Ioctl, interface: &str) -> Answer<Self> {
        let (names, count) = ioctl.names(interface, wire::STATISTIC_NAMES, STATISTICS_MAX, "counters")?;
        let names: Vec<String> = wire::names(names.bytes()).take(count as usize).collect();
        let request = new_request(command::GET_STATISTICS, wire::STATISTICS_HEADER_BYTES + 8 * count as usize)?;
        Ok(Self { interface: interface.to_owned(), names, request })
    }

    /// In the order of the driver, without spaces around them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Asks for the values. False when the driver has another number of counters by now.
    pub fn read(&mut self, ioctl: &Ioctl) -> Answer<bool> {
        let count = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        wire::put_u32(self.request.bytes_mut(), wire::COMMAND_AT, command::GET_STATISTICS);
        wire::put_u32(self.request.bytes_mut(), wire::STATISTICS_COUNT_AT, count);
        let interface = &self.interface;
        ioctl.call(interface, &mut self.request, || format!("read the counters of the driver of {interface}"))?;
        // A kernel that knows better than to write more than there is room for says 0.
        Ok(wire::u32_at(self.request.bytes(), wire::STATISTICS_COUNT_AT) == count)
    }

    /// The value of the counter at this place, as last read.
    pub fn value(&self, place: usize) -> u64 {
        wire::u64_at(self.request.bytes(), wire::STATISTICS_HEADER_BYTES + 8 * place)
    }
}

#[cfg(test)]
#[path = "ioctl_tests.rs"]
mod tests;
