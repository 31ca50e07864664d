//! Reads all counters of the host in one pass, cheaply enough for once a second: files and sockets stay open, buffers
//! and tables are used again.
//!
//! Needs no privilege. What is not there, as IPv6 or connection tracking, is no error; what is there and cannot be read
//! is told in [`HostReading::unread`].

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use netlink::sock_diag::{UdpSocket, UdpSockets};

use super::nic::NicReader;
use super::reading::{HostReading, SocketReading};
use super::tables::{Conntrack, Ip, KernelLayer, KernelTable, SocketCounts, Softnet, Udp};

/// Settings that are read as gauges: where each is below /proc/sys/net, and the counters that its numbers are.
const SETTINGS: [(&str, &[&str]); 4] = [
    ("ipv4/udp_mem", &["low", "pressure", "max"]),
    ("core/rmem_max", &["rmem_max"]),
    ("core/rmem_default", &["rmem_default"]),
    ("core/netdev_max_backlog", &["netdev_max_backlog"]),
];

/// With more UDP sockets than this in the network namespace a sparing reader looks at them only now and then. The
/// kernel goes through all of them whichever port it is asked for, so one question for all is never dearer.
const SOCKETS_MANY: usize = 512;

/// How many readings have one such look.
const READINGS_PER_DUMP: u32 = 10;

/// The most sockets on other ports that have dropped something and are told apart: 64 KiB. Those on the ports that the
/// reader was asked for are all told, however many others there are.
const SOCKETS_ELSEWHERE_MAX: usize = 4096;

/// Reads this host, as the network namespace of the thread that made it shows it.
#[derive(Debug)]
pub struct HostReader {
    ports: BTreeSet<u16>,
    own: BTreeSet<u64>,
    files: ProcFiles,
    nic: NicReader,
    udp_sockets: Option<UdpSockets>,
    /// How many sockets there were at the last look.
    sockets_seen: usize,
    /// Why it could not be told then what those on other ports dropped.
    elsewhere_untold: Option<String>,
    /// How often it has read, and whether it leaves out of most readings what is costly.
    readings: u32,
    is_sparing: bool,
    buffer: Vec<u8>,
    reading: HostReading,
}

#[derive(Debug)]
struct ProcFiles {
    snmp: ProcFile,
    netstat: ProcFile,
    snmp6: ProcFile,
    softnet: ProcFile,
    sockstat: ProcFile,
    sockstat6: ProcFile,
    conntrack: ProcFile,
    conntrack_count: ProcFile,
    conntrack_max: ProcFile,
    settings: [ProcFile; SETTINGS.len()],
}

impl HostReader {
    /// A reader that looks at the sockets on these ports as well.
    pub fn new(ports: impl IntoIterator<Item = u16>) -> Self {
        Self::under(Path::new("/proc"), ports)
    }

    /// The same with the files of another proc file system; interfaces and sockets are always those of the kernel.
    pub fn under(proc_root: &Path, ports: impl IntoIterator<Item = u16>) -> Self {
        Self {
            ports: ports.into_iter().collect(),
            own: BTreeSet::new(),
            files: ProcFiles::below(proc_root),
            nic: NicReader::default(),
            udp_sockets: None,
            sockets_seen: 0,
            elsewhere_untold: None,
            readings: 0,
            is_sparing: false,
            buffer: Vec::new(),
            reading: HostReading::default(),
        }
    }

    /// Looks at the sockets on these ports from now on.
    pub(super) fn look_at_ports(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.ports = ports.into_iter().collect();
    }

    /// The same for one that reads once a second for ever: it asks the drivers, and for the sockets of a host that has
    /// many, with every tenth reading only. What is not read stays as it was.
    #[must_use]
    pub fn sparing(mut self) -> Self {
        self.is_sparing = true;
        self.nic.spare();
        self
    }

    /// Says which sockets are those of this process, by their inodes.
    pub fn own_sockets(&mut self, inodes: impl IntoIterator<Item = u64>) {
        self.own.clear();
        self.own.extend(inodes);
    }

    /// One pass. What it returns is written over by the next.
    pub fn read(&mut self) -> &HostReading {
        self.reading.unread.clear();
        self.nic.read(&mut self.reading);
        self.read_protocols();
        self.read_cores();
        self.read_conntrack();
        self.read_memory();
        if !self.is_sparing || self.sockets_seen <= SOCKETS_MANY || self.readings.is_multiple_of(READINGS_PER_DUMP) {
            self.read_sockets();
        }
        // Also with a reading that does not look at them.
        if let Some(why) = &self.elsewhere_untold {
            self.reading.unread.push((KernelLayer::Socket, why.clone()));
        }
        self.readings = self.readings.wrapping_add(1);
        &self.reading
    }

    fn read_protocols(&mut self) {
        let Self { files, buffer, reading, .. } = self;
        let HostReading { ip, ip6, udp, udp6, unread, .. } = reading;
        [&mut *ip, &mut *ip6].into_iter().for_each(Ip::clear);
        [&mut *udp, &mut *udp6].into_iter().for_each(Udp::clear);
        if let Some(text) = text(&mut files.snmp, buffer, KernelLayer::Udp, FilePresence::Always, unread) {
            sections(text, |section, name, value| match section {
                "Ip" => ip.set(name, value),
                "Udp" => udp.set(name, value),
                _ => {}
            });
        }
        if let Some(text) = text(&mut files.netstat, buffer, KernelLayer::Ip, FilePresence::Always, unread) {
            sections(text, |section, name, value| match section {
                "IpExt" => ip.set(name, value),
                "TcpExt" if name == "IPReversePathFilter" => ip.set(name, value),
                _ => {}
            });
        }
        if let Some(text) = text(&mut files.snmp6, buffer, KernelLayer::Udp, FilePresence::MayBeAbsent, unread) {
            // IPv6 has no such filter, so it drops nothing by it.
            ip6.reverse_path_filter = Some(0);
            // The checksum of a header is a matter of IPv4 alone.
            ip6.in_csum_errors = Some(0);
            lines(text, |name, value| {
                if let Some(name) = name.strip_prefix("Ip6") {
                    ip6.set(name, value);
                } else if let Some(name) = name.strip_prefix("Udp6") {
                    udp6.set(name, value);
                }
            });
        }
    }

    fn read_cores(&mut self) {
        let Self { files, buffer, reading: HostReading { softnet, unread, .. }, .. } = self;
        let text = text(&mut files.softnet, buffer, KernelLayer::Softnet, FilePresence::Always, unread);
        // A core may have gone off since the last pass.
        softnet.clear();
        parse_softnet(text.unwrap_or_default(), |core, counts| {
            softnet.insert(core, counts);
        });
    }

    fn read_conntrack(&mut self) {
        let Self { files, buffer, reading: HostReading { conntrack, unread, .. }, .. } = self;
        conntrack.clear();
        let mut told =
            |file| text(file, buffer, KernelLayer::Conntrack, FilePresence::MayBeAbsent, unread).map(str::to_owned);
        if let Some(text) = told(&mut files.conntrack) {
            parse_conntrack(&text, conntrack);
        }
        let mut number = |file| told(file).and_then(|text| numbers(&text).next());
        conntrack.count = number(&mut files.conntrack_count);
        conntrack.max = number(&mut files.conntrack_max);
    }

    fn read_memory(&mut self) {
        let Self { files, buffer, reading: HostReading { memory, unread, .. }, .. } = self;
        memory.clear();
        if let Some(text) = text(&mut files.sockstat, buffer, KernelLayer::Udp, FilePresence::Always, unread) {
            pairs(text, |section, name, value| match (section, name) {
                ("UDP", name) => memory.set(name, value),
                ("FRAG", "memory") => memory.set("frag", value),
                _ => {}
            });
        }
        if let Some(text) = text(&mut files.sockstat6, buffer, KernelLayer::Udp, FilePresence::MayBeAbsent, unread) {
            pairs(text, |section, name, value| {
                if (section, name) == ("UDP6", "inuse") {
                    memory.udp6_sockets = Some(value);
                }
            });
        }
        for ((_, names), file) in SETTINGS.iter().zip(&mut files.settings) {
            // Older kernels show some of them to the first network namespace only.
            if let Some(text) = text(file, buffer, KernelLayer::Udp, FilePresence::MayBeAbsent, unread) {
                names.iter().zip(numbers(text)).for_each(|(name, value)| memory.set(name, value));
            }
        }
    }

    fn read_sockets(&mut self) {
        let Self { ports, own, udp_sockets, sockets_seen, elsewhere_untold, reading, .. } = self;
        let HostReading { sockets, elsewhere, unread, .. } = reading;
        let (found, others) = (sockets.get_or_insert_default(), elsewhere.get_or_insert_default());
        found.clear();
        others.clear();
        *sockets_seen = 0;
        let mut is_silent = false;
        let visit = |socket: UdpSocket| {
            *sockets_seen += 1;
            let memory = socket.memory;
            if !ports.contains(&socket.address.port()) {
                is_silent |= memory.is_none();
                // Who is not in the list has dropped nothing.
                let drops = memory.map_or(0, |memory| memory.drops);
                if drops > 0 && others.len() <= SOCKETS_ELSEWHERE_MAX {
                    others.push((socket.inode, drops));
                }
                return;
            }
            found.push(SocketReading {
                address: socket.address,
                inode: socket.inode,
                uid: socket.uid,
                interface: socket.interface,
                peer: socket.peer,
                v6_only: socket.v6_only,
                own: own.contains(&socket.inode),
                counts: SocketCounts {
                    drops: memory.map(|memory| u64::from(memory.drops)),
                    used_bytes: memory.map(|memory| u64::from(memory.used_bytes)),
                    buffer_bytes: memory.map(|memory| u64::from(memory.buffer_bytes)),
                },
            });
        };
        let outcome = each_udp_socket(udp_sockets, visit);
        found.sort_by_key(|socket| socket.inode);
        others.sort_unstable();
        *elsewhere_untold = untold(is_silent, others.len());
        if elsewhere_untold.is_some() {
            *elsewhere = None;
        }
        if let Err(error) = outcome {
            (*udp_sockets, *sockets, *elsewhere, *elsewhere_untold) = (None, None, None, None);
            unread.push((KernelLayer::Socket, format!("the UDP sockets: {error}")));
        }
    }
}

/// Why what sockets on other ports dropped is not known, if it is not: some do not tell it, or too many have.
fn untold(is_silent: bool, dropping: usize) -> Option<String> {
    let why = match (is_silent, dropping > SOCKETS_ELSEWHERE_MAX) {
        (true, _) => "this kernel does not tell it of each".to_owned(),
        (_, true) => format!("more than {SOCKETS_ELSEWHERE_MAX} of them have dropped something"),
        _ => return None,
    };
    Some(format!("what UDP sockets on other ports dropped: {why}"))
}

/// All UDP sockets of both families.
fn each_udp_socket(open: &mut Option<UdpSockets>, mut visit: impl FnMut(UdpSocket)) -> netlink::Result<()> {
    let sockets = match open {
        Some(sockets) => sockets,
        empty => empty.insert(UdpSockets::open()?),
    };
    sockets.each(false, None, &mut visit)?;
    sockets.each(true, None, &mut visit)
}

impl ProcFiles {
    fn below(proc_root: &Path) -> Self {
        let net = |file: &str| ProcFile::new(proc_root.join("thread-self/net").join(file));
        let setting =
            |path: &str| ProcFile::new([proc_root, "sys/net".as_ref(), path.as_ref()].iter().collect::<PathBuf>());
        Self {
            snmp: net("snmp"),
            netstat: net("netstat"),
            snmp6: net("snmp6"),
            softnet: net("softnet_stat"),
            sockstat: net("sockstat"),
            sockstat6: net("sockstat6"),
            conntrack: net("stat/nf_conntrack"),
            conntrack_count: setting("netfilter/nf_conntrack_count"),
            conntrack_max: setting("netfilter/nf_conntrack_max"),
            settings: SETTINGS.map(|(path, _)| setting(path)),
        }
    }
}

/// Whether every kernel has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilePresence {
    Always,
    MayBeAbsent,
}

/// The text of a file; what is wrong with it goes into `unread`.
fn text<'a>(
    file: &mut ProcFile,
    buffer: &'a mut Vec<u8>,
    layer: KernelLayer,
    presence: FilePresence,
    unread: &mut Vec<(KernelLayer, String)>,
) -> Option<&'a str> {
    match file.read(buffer) {
        Ok(None) if presence == FilePresence::Always => {
            unread.push((layer, format!("{} is not there", file.path().display())));
            None
        }
        Ok(text) => text,
        Err(why) => {
            unread.push((layer, why));
            None
        }
    }
}

// Files of the kernel that are read once a second: opened once, and read anew from their beginning.
//
// An open file below /proc/net stays in the network namespace of the thread that opened it. It is therefore opened
// below `thread-self`: `/proc/net` is that of the process's first thread.

/// More than any of them has, so that nothing here grows without bound.
const BYTES_MAX: usize = 4 << 20;
const FIRST_BYTES: usize = 16 << 10;

/// One such file.
#[derive(Debug)]
struct ProcFile {
    path: PathBuf,
    file: Option<File>,
}

impl ProcFile {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Its text of now. `None` when there is no such file: the kernel has not what it tells of.
    fn read<'a>(&mut self, buffer: &'a mut Vec<u8>) -> Result<Option<&'a str>, String> {
        let length = match self.fill(buffer) {
            Ok(length) => length,
            Err(error) => {
                // Perhaps it can be opened anew.
                self.file = None;
                let is_absent = error.kind() == io::ErrorKind::NotFound;
                return if is_absent { Ok(None) } else { Err(format!("{}: {error}", self.path.display())) };
            }
        };
        match str::from_utf8(&buffer[..length]) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(format!("{} is not text", self.path.display())),
        }
    }

    fn fill(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if self.file.is_none() {
            self.file = Some(File::open(&self.path)?);
        }
        let file = self.file.as_ref().expect("just opened");
        buffer.resize(buffer.len().max(FIRST_BYTES), 0);
        let mut length = 0;
        // The kernel may hand out a file in pieces, so only the end says that it is whole.
        loop {
            match file.read_at(&mut buffer[length..], length as u64)? {
                0 => return Ok(length),
                read => length += read,
            }
            if length == buffer.len() {
                if length >= BYTES_MAX {
                    return Err(io::Error::other(format!("it is longer than {BYTES_MAX} bytes")));
                }
                buffer.resize(2 * length, 0);
            }
        }
    }
}

// The texts of the kernel's files as numbers. What a kernel does not have is passed over and stays unknown, and so is
// what a later one has more.

/// `/proc/net/snmp` and `/proc/net/netstat`: a line of names and a line of values, both behind the name of their
/// section.
pub(super) fn sections(text: &str, mut visit: impl FnMut(&str, &str, u64)) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((section, names)), Some((same, values))) = (names.split_once(':'), values.split_once(':')) else {
            return;
        };
        if section != same {
            return;
        }
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            // Some are negative, none of which is a counter.
            if let Ok(value) = value.parse() {
                visit(section, name, value);
            }
        }
    }
}

/// `/proc/net/snmp6`: a name and a value in each line.
pub(super) fn lines(text: &str, mut visit: impl FnMut(&str, u64)) {
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            visit(name, value);
        }
    }
}

/// `/proc/net/sockstat`: the name of a section, and names and values by turns.
pub(super) fn pairs(text: &str, mut visit: impl FnMut(&str, &str, u64)) {
    for (section, rest) in text.lines().filter_map(|line| line.split_once(':')) {
        let mut words = rest.split_ascii_whitespace();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            if let Ok(value) = value.parse() {
                visit(section, name, value);
            }
        }
    }
}

/// The numbers of a setting, as in `/proc/sys/net/ipv4/udp_mem`.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split_ascii_whitespace().map_while(|word| word.parse().ok())
}

/// `/proc/net/softnet_stat`: a line for each core that is online, in hexadecimal. Kernels before 5.10 do not say of
/// which, and then the place of the line does, which is right as long as no core is off.
pub(super) fn parse_softnet(text: &str, mut visit: impl FnMut(u32, Softnet)) {
    const CORE_AT: usize = 12;
    for (place, line) in (0..).zip(text.lines()) {
        let column = |number: usize| {
            let word = line.split_ascii_whitespace().nth(number)?;
            u64::from_str_radix(word, 16).ok()
        };
        let counts = Softnet {
            processed: column(0),
            dropped: column(1),
            time_squeeze: column(2),
            received_rps: column(9),
            flow_limit: column(10),
            backlog: column(11),
        };
        if counts.processed.is_some() {
            visit(column(CORE_AT).and_then(|core| u32::try_from(core).ok()).unwrap_or(place), counts);
        }
    }
}

/// `/proc/net/stat/nf_conntrack`: names, and a line of hexadecimal values for each core. The sum over the cores is
/// cut to 32 bits as each of them is, so that a difference is right whichever of them has wrapped.
pub(super) fn parse_conntrack(text: &str, counts: &mut Conntrack) {
    let mut lines = text.lines();
    let Some(names) = lines.next() else { return };
    // Linux before 5.15 drops nothing for a long chain, and so has no such column.
    counts.chain_too_long = Some(0);
    for line in lines {
        for (name, value) in names.split_ascii_whitespace().zip(line.split_ascii_whitespace()) {
            let Ok(value) = u64::from_str_radix(value, 16) else { continue };
            if let Some((counter, cell)) = counts.cells().find(|(counter, _)| counter.source == name)
                && counter.bits == 32
            {
                *cell = Some(cell.unwrap_or(0).wrapping_add(value) & u64::from(u32::MAX));
            }
        }
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "parse_tests.rs"]
mod parse_tests;
