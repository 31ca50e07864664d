//! Who has the address that we cannot have: the sockets in the kernel's tables, and the processes that hold them.
//!
//! "Address already in use" is of little help without a name. /proc/net/udp and udp6 list every UDP socket of this
//! network namespace with its inode; which process that is can be read from /proc/PID/fd, as far as we may look. This
//! process is never the answer: a socket that was handed to it when it was started belongs to the program that started
//! it.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;

use super::user;

/// A socket in the kernel's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The first other process found that has it open; `None` when none of those we may look into does.
    pub pid: Option<u32>,
    /// The name of that process, with nothing in it that could command a terminal.
    pub command: Option<String>,
    pub own: bool,
    /// The socket's inode, the same in every process that shares it.
    pub inode: u64,
    pub uid: u32,
    pub address: SocketAddr,
    /// It takes only what one peer sends.
    pub connected: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.command) {
            (Some(pid), Some(command)) => write!(formatter, "{command} (pid {pid})"),
            (Some(pid), None) => write!(formatter, "pid {pid}"),
            (None, _) if self.own => formatter.write_str("the program that started this udpd and handed it the socket"),
            (None, _) => write!(formatter, "a process of uid {}, which root can name (ss -lunp)", self.uid),
        }
    }
}

/// Every socket whose address overlaps `address`, but for those with the inodes `own`, read from a mounted proc file
/// system, usually `/proc`.
///
/// What cannot be read is left out: this explains an error and must not become one.
pub fn of_udp_address(address: SocketAddr, own: &[u64], proc_root: &Path) -> Vec<Holder> {
    let mut holders = sockets(proc_root, |port| port == address.port()).unwrap_or_default();
    holders.retain(|holder| overlap(address, holder.address) && !own.contains(&holder.inode));
    name_processes(&mut holders, proc_root);
    holders
}

/// Every UDP socket of this network namespace on the wanted ports, without the names of those who hold them.
pub fn sockets(proc_root: &Path, wanted: impl Fn(u16) -> bool) -> io::Result<Vec<Holder>> {
    let mut sockets = Vec::new();
    for (table, needed) in [("net/udp", true), ("net/udp6", false)] {
        let text = match fs::read_to_string(proc_root.join(table)) {
            Ok(text) => text,
            // A kernel without IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound && !needed => continue,
            Err(error) => return Err(error),
        };
        sockets.extend(text.lines().skip(1).filter_map(|line| parse_socket(line, &wanted)));
    }
    Ok(sockets)
}

/// The inode of an open socket.
pub fn inode_of(socket: impl AsFd) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(socket)?.st_ino)
}

/// Reads one line of the table: slot, local address, remote address, state, queues, timer, retransmits, uid, timeout,
/// inode and more.
fn parse_socket(line: &str, wanted: impl Fn(u16) -> bool) -> Option<Holder> {
    let mut fields = line.split_ascii_whitespace();
    let address = parse_address(fields.nth(1)?).filter(|address| wanted(address.port()))?;
    let connected = parse_address(fields.next()?)?.port() != 0;
    let uid = fields.nth(4)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Holder { pid: None, command: None, own: false, inode, uid, address, connected })
}

/// Reads `ADDRESS:PORT`. The kernel prints the address as numbers of 32 bits in the byte order of the machine, one or
/// four.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |position: usize| {
        let digits = address.get(position * 8..position * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for position in 0..4 {
                bytes[position * 4..position * 4 + 4].copy_from_slice(&word(position)?);
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Whether two sockets with these addresses compete. A socket on `[::]` may or may not take IPv4 as well; the table
/// does not say, so it counts as one that does.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (one_address, other_address) = (one.ip().to_canonical(), other.ip().to_canonical());
    let any_family = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let any_ipv4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let takes = |address: IpAddr, peer: IpAddr| {
        address == peer || address == any_family || (address == any_ipv4 && peer.is_ipv4())
    };
    one.port() == other.port() && (takes(one_address, other_address) || takes(other_address, one_address))
}

/// Finds out which processes hold the sockets, in the order of their pids so that a parent comes before its workers.
pub fn name_processes(holders: &mut [Holder], proc_root: &Path) {
    if holders.is_empty() {
        return;
    }
    let this = std::process::id();
    let open_here: Vec<u64> = open_sockets(&proc_root.join(this.to_string())).collect();
    holders.iter_mut().for_each(|holder| holder.own = open_here.contains(&holder.inode));
    let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.retain(|&pid| pid != this);
    pids.sort_unstable();
    user::with_eyes_of_root(|| name_those(&pids, holders, proc_root));
}

/// Looks through these processes.
fn name_those(pids: &[u32], holders: &mut [Holder], proc_root: &Path) {
    for &pid in pids {
        if holders.iter().all(|holder| holder.pid.is_some()) {
            return;
        }
        let process = proc_root.join(pid.to_string());
        for inode in open_sockets(&process) {
            for holder in holders.iter_mut().filter(|holder| holder.inode == inode && holder.pid.is_none()) {
                holder.pid = Some(pid);
                // A process chooses its own name, and may choose one that commands a terminal.
                holder.command = fs::read_to_string(process.join("comm"))
                    .ok()
                    .map(|name| name.trim_end().escape_debug().to_string());
            }
        }
    }
}

/// The inodes of the sockets that a process has open.
fn open_sockets(process: &Path) -> impl Iterator<Item = u64> + use<> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| socket_inode(&fs::read_link(descriptor.path()).ok()?))
}

/// The inode in `socket:[INODE]`, which is what the link of a socket's descriptor says.
pub fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::fs::symlink;

    const HEADING: &str =
        "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode ref\n";

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A line of the table, in the byte order of this machine as the kernel would write it.
    fn line(bound: &str, uid: u32, inode: u64) -> String {
        let bound = address(bound);
        let octets = match bound.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let words = octets.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        let text: String = words.map(|word| format!("{word:08X}")).collect();
        let port = bound.port();
        format!(
            "12345: {text}:{port:04X} 00000000:0000 07 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 2 0 0\n"
        )
    }

    fn process(root: &Path, pid: u32, command: &str, links: &[&str]) {
        let directory = root.join(pid.to_string());
        fs::create_dir_all(directory.join("fd")).unwrap();
        fs::write(directory.join("comm"), format!("{command}\n")).unwrap();
        for (descriptor, link) in links.iter().enumerate() {
            symlink(link, directory.join("fd").join(descriptor.to_string())).unwrap();
        }
    }

    fn made_up() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("net")).unwrap();
        let udp = [
            HEADING.to_string(),
            line("0.0.0.0:514", 0, 100),
            line("127.0.0.1:514", 1000, 101),
            line("127.0.0.2:8125", 1000, 102),
            "garbage\n".to_string(),
        ];
        fs::write(root.path().join("net/udp"), udp.concat()).unwrap();
        let udp6 = HEADING.to_string() + &line("[::]:8125", 7, 200) + &line("[2001:db8::1]:514", 0, 201);
        fs::write(root.path().join("net/udp6"), udp6).unwrap();
        process(root.path(), 900, "worker", &["socket:[100]"]);
        process(root.path(), 812, "rsyslogd", &["/dev/null", "socket:[100]", "pipe:[101]"]);
        process(root.path(), 1001, "statsd", &["socket:[200]"]);
        root
    }

    fn inodes(bound: &str, root: &Path) -> Vec<u64> {
        of_udp_address(address(bound), &[], root).iter().map(|holder| holder.inode).collect()
    }

    #[test]
    fn holders_are_named_and_a_parent_comes_before_its_worker() {
        let root = made_up();
        let holders = of_udp_address(address("10.0.0.1:514"), &[], root.path());
        let expected = Holder {
            pid: Some(812),
            command: Some("rsyslogd".into()),
            own: false,
            inode: 100,
            uid: 0,
            address: address("0.0.0.0:514"),
            connected: false,
        };
        assert_eq!(holders, [expected]);
        assert_eq!(holders[0].to_string(), "rsyslogd (pid 812)");
    }

    #[test]
    fn a_holder_that_we_may_not_look_into_is_still_told() {
        let root = made_up();
        let holders = of_udp_address(address("127.0.0.2:8125"), &[], root.path());
        assert_eq!(holders.len(), 2);
        assert_eq!(holders[0].to_string(), "a process of uid 1000, which root can name (ss -lunp)");
        assert_eq!(holders[1].to_string(), "statsd (pid 1001)");
    }

    #[test]
    fn only_addresses_that_overlap_count() {
        let root = made_up();
        assert_eq!(inodes("127.0.0.1:514", root.path()), [100, 101]);
        assert_eq!(inodes("0.0.0.0:514", root.path()), [100, 101]);
        assert_eq!(inodes("[::]:514", root.path()), [100, 101, 201]);
        assert_eq!(inodes("[2001:db8::1]:514", root.path()), [201]);
        assert!(inodes("[2001:db8::2]:514", root.path()).is_empty());
        assert_eq!(inodes("[::ffff:127.0.0.1]:514", root.path()), [100, 101]);
        assert_eq!(inodes("10.0.0.1:8125", root.path()), [200]);
        assert!(inodes("0.0.0.0:515", root.path()).is_empty());
    }

    #[test]
    fn without_proc_nobody_is_found() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of_udp_address(address("0.0.0.0:514"), &[], root.path()), []);
    }

    #[test]
    fn a_name_that_would_command_a_terminal_is_shown_escaped() {
        let root = made_up();
        process(root.path(), 77, "\x1b[2J", &["socket:[101]"]);
        let holders = of_udp_address(address("127.0.0.1:514"), &[100], root.path());
        assert_eq!(holders.iter().map(ToString::to_string).collect::<Vec<_>>(), ["\\u{1b}[2J (pid 77)"]);
    }

    #[test]
    fn tables_that_cannot_be_read_are_an_error_and_a_kernel_without_ipv6_is_none() {
        let root = made_up();
        fs::remove_file(root.path().join("net/udp6")).unwrap();
        assert_eq!(sockets(root.path(), |port| port == 8125).unwrap().len(), 1);
        fs::remove_file(root.path().join("net/udp")).unwrap();
        assert!(sockets(root.path(), |_| true).is_err());
    }

    #[test]
    fn a_socket_of_this_process_is_never_called_a_holder() {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(bound) else {
                assert_ne!(bound, "127.0.0.1:0", "every Linux has IPv4 on loopback");
                continue;
            };
            let bound = socket.local_addr().unwrap();
            let holders = of_udp_address(bound, &[], Path::new("/proc"));
            let ours = holders.iter().find(|holder| holder.address == bound).unwrap();
            assert!(ours.own && ours.pid != Some(std::process::id()), "{ours:?}");
            assert_eq!(ours.inode, inode_of(&socket).unwrap());
            assert!(!of_udp_address(bound, &[ours.inode], Path::new("/proc")).contains(ours));
            socket.connect(bound).unwrap();
            let connected = of_udp_address(bound, &[], Path::new("/proc"));
            assert!(connected.iter().any(|holder| holder.inode == ours.inode && holder.connected));
        }
    }
}
