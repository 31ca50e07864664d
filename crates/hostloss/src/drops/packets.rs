//! Which datagrams the kernel of this host throws away: reason, addresses, port, interface and network namespace of
//! each, counted in the kernel by a small program at `skb:kfree_skb`.
//!
//! The tracepoint's own record has no port, so a watch by records cannot tell whose datagram a firewall dropped. The
//! program reads the headers of the packet itself and adds one in a table, so that no burst overruns anything. It
//! needs `CAP_BPF` and `CAP_PERFMON`, a kernel with BTF, and Linux 5.17 for the reasons.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use bpf::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use bpf::{Assembler, Instruction, Label, Map, Operation, Program, ProgramKind, Register, Types, When, Width, helper};

/// What may call `bpf_probe_read_kernel`.
const LICENSE: &CStr = c"Dual MIT/GPL";
/// So many kinds of drops are told apart; beyond that addresses are left out.
const ENTRIES_MAX: u32 = 16_384;

/// Datagrams that were thrown away in this network namespace for one reason, on one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedDatagrams {
    /// As the kernel calls it: `NETFILTER_DROP`. Where it has no name, its number.
    pub reason: String,
    /// Where they came from; unspecified where too many kinds were seen.
    pub source: IpAddr,
    /// Where they went.
    pub destination: IpAddr,
    /// The port that they were sent to; 0 for the later fragments of a datagram, which have none.
    pub port: u16,
    /// The index of the interface on which they came; 0 for what this host sends.
    pub interface: u32,
    /// The frame was meant for another Ethernet address.
    pub is_for_other_host: bool,
    /// They were dropped in another network namespace, on the way out of it or through it.
    pub is_elsewhere: bool,
    /// How many datagrams; each segment of a train counts.
    pub count: u64,
    /// The longest packet, with the headers of IP and UDP; of a train, which has no length of its own, 0.
    pub longest_bytes: u64,
}

/// Counts them from when it is made until it is dropped.
#[derive(Debug)]
pub struct DropProgram {
    table: Map,
    names: Vec<(u32, String)>,
    namespace: u32,
    _attached: OwnedFd,
}

impl DropProgram {
    /// Begins to count.
    ///
    /// # Errors
    /// What is missing: the right, the description of the kernel's types, or a kernel that gives reasons.
    pub fn attach() -> io::Result<Self> {
        let described = Types::of_kernel()?;
        let unknown = |what: &str| io::Error::new(io::ErrorKind::Unsupported, format!("this kernel {what}"));
        let types = Types::parse(&described).ok_or_else(|| unknown("describes its types in a way that came later"))?;
        let places = Places::read(&types).ok_or_else(|| unknown("does not say where it keeps a packet's headers"))?;
        let names = types.values("skb_drop_reason");
        let names: Vec<(u32, String)> = names
            .into_iter()
            .map(|(value, name)| (value, name.trim_start_matches("SKB_DROP_REASON_").to_owned()))
            .collect();
        if names.is_empty() {
            return Err(unknown("gives no reasons for drops, which Linux does from 5.17 on"));
        }
        let table = Map::hash("udpd_drops", KEY_BYTES, VALUE_BYTES, ENTRIES_MAX)?;
        // Before Linux 6.11 the tracepoint does not tell the socket, and a program that asks for it is not attached.
        let attached = attach(&places, &table, true).or_else(|_| attach(&places, &table, false))?;
        // The kernel's number of a namespace has 32 bits.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino() as u32;
        Ok(Self { table, names, namespace, _attached: attached })
    }

    /// What was dropped until now, those with a number of this network namespace and those that came to no namespace.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn read(&self) -> io::Result<Vec<DroppedDatagrams>> {
        let (mut key, mut next, mut value) = ([0; KEY_BYTES], [0; KEY_BYTES], [0; VALUE_BYTES]);
        let mut is_first = true;
        let mut found: HashMap<[u8; KEY_BYTES], [u8; VALUE_BYTES]> = HashMap::new();
        while self.table.next_key((!is_first).then_some(&key[..]), &mut next)? {
            self.table.look_up(&next, &mut value)?;
            found.insert(next, value);
            (key, is_first) = (next, false);
        }
        let mut drops: Vec<_> = found.iter().map(|(key, value)| self.read_entry(key, value)).collect();
        drops.sort_by_key(|drop| (std::cmp::Reverse(drop.count), drop.port));
        Ok(drops)
    }

    fn read_entry(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> DroppedDatagrams {
        let word = |at: i16| u32::from_ne_bytes(bytes(key, at));
        let double = |at: usize| u64::from_ne_bytes(std::array::from_fn(|place| value[at + place]));
        let address = |at: i16| match key[VERSION as usize] {
            6 => IpAddr::V6(Ipv6Addr::from(bytes::<16>(key, at))),
            _ => IpAddr::V4(Ipv4Addr::from(bytes::<4>(key, at))),
        };
        let reason = word(REASON);
        let name = self.names.iter().find(|(value, _)| *value == reason).map(|(_, name)| name.clone());
        DroppedDatagrams {
            reason: name.unwrap_or_else(|| format!("reason {reason}")),
            source: address(SOURCE),
            destination: address(DESTINATION),
            port: u16::from_be_bytes(bytes(key, PORT)),
            interface: word(INTERFACE),
            is_for_other_host: key[KIND as usize] & 7 == libc::PACKET_OTHERHOST,
            is_elsewhere: ![0, self.namespace].contains(&word(NAMESPACE)),
            count: double(0),
            longest_bytes: double(8),
        }
    }
}

fn attach(places: &Places, table: &Map, has_socket: bool) -> io::Result<OwnedFd> {
    let instructions = &assemble(places, table.as_fd(), has_socket);
    let program = Program::new(ProgramKind::RawTracepoint, "udpd_drops", instructions);
    let program = Program { license: LICENSE, ..program }.load()?;
    bpf::attach_to_tracepoint(program.as_fd(), c"kfree_skb")
}

fn bytes<const N: usize>(key: &[u8; KEY_BYTES], at: i16) -> [u8; N] {
    std::array::from_fn(|place| key[at as usize + place])
}

// The key of the table: where each part lies in it.
const REASON: i16 = 0;
const PORT: i16 = 4;
const KIND: i16 = 6;
const VERSION: i16 = 7;
const INTERFACE: i16 = 8;
const NAMESPACE: i16 = 12;
const SOURCE: i16 = 16;
const DESTINATION: i16 = 32;
const KEY_BYTES: usize = 48;
/// How many, and the length of the longest.
const VALUE_BYTES: usize = 16;

// Where things lie on the program's stack, below register 10.
const KEY: i16 = -48;
const VALUE: i16 = -64;
/// The header of IP, 40 bytes.
const HEADER: i16 = -104;
const POINTER: i16 = -112;
const WORD: i16 = -120;
/// What the header says how long the packet is.
const LENGTH: i16 = -128;

/// Where the kernel keeps what the key is made of.
#[derive(Clone, Copy, Debug)]
struct Places {
    head: usize,
    end: usize,
    network: usize,
    protocol: usize,
    kind: usize,
    came_on: usize,
    device: usize,
    /// In `struct net_device` and in `struct sock`: the network namespace.
    of_device: usize,
    of_socket: usize,
    /// In `struct net`: its number.
    number: usize,
    segments: usize,
}

impl Places {
    fn read(types: &Types<'_>) -> Option<Self> {
        // With 32 bits `end` is a pointer.
        if cfg!(not(target_pointer_width = "64")) {
            return None;
        }
        let of_packet = |field| types.field("sk_buff", field);
        Some(Self {
            head: of_packet("head")?,
            end: of_packet("end")?,
            network: of_packet("network_header")?,
            protocol: of_packet("protocol")?,
            kind: of_packet("__pkt_type_offset").or_else(|| of_packet("pkt_type"))?,
            came_on: of_packet("skb_iif")?,
            device: of_packet("dev")?,
            of_device: types.field("net_device", "nd_net")?,
            of_socket: types.field("sock_common", "skc_net")?,
            number: types.field("net", "ns")? + types.field("ns_common", "inum")?,
            segments: types.field("skb_shared_info", "gso_segs")?,
        })
    }
}

/// Register 6 has the packet, 7 the context and then the length, 8 what is followed, 9 how many datagrams it is.
fn assemble(places: &Places, table: BorrowedFd<'_>, has_socket: bool) -> Vec<Instruction> {
    let mut program = Assembler::new();
    let [ipv6, has_port, no_port, of_device, named, end] = std::array::from_fn(|_| program.label());
    for at in 0..8 {
        program.store_value(Width::Double, R10, VALUE + 8 * at, 0);
    }
    program.load(Width::Double, R6, R1, 0).copy(R7, R1);
    program.load(Width::Double, R1, R7, 16).store(Width::Word, R10, KEY + REASON, R1);
    // The header of IP, and whether it is one of UDP.
    read(&mut program, (R6, places.head), (POINTER, 8));
    read(&mut program, (R6, places.network), (WORD, 2));
    program.load(Width::Double, R8, R10, POINTER).load(Width::Half, R1, R10, WORD).compute(Operation::Add, R8, R1);
    read(&mut program, (R8, 0), (HEADER, 40));
    read(&mut program, (R6, places.protocol), (WORD, 2));
    program.load(Width::Half, R1, R10, WORD).to_big_endian(R1, 16);
    program.jump_if(R1, When::Equal, libc::ETH_P_IPV6, ipv6).jump_if(R1, When::NotEqual, libc::ETH_P_IP, end);
    program.load(Width::Byte, R1, R10, HEADER + 9).jump_if(R1, When::NotEqual, libc::IPPROTO_UDP, end);
    program.store_value(Width::Byte, R10, KEY + VERSION, 4);
    program.load(Width::Word, R1, R10, HEADER + 12).store(Width::Word, R10, KEY + SOURCE, R1);
    program.load(Width::Word, R1, R10, HEADER + 16).store(Width::Word, R10, KEY + DESTINATION, R1);
    program.load(Width::Half, R1, R10, HEADER + 2).to_big_endian(R1, 16).store(Width::Double, R10, LENGTH, R1);
    program.load(Width::Byte, R1, R10, HEADER).compute_value(Operation::And, R1, 15);
    program.compute_value(Operation::ShiftLeft, R1, 2).compute(Operation::Add, R8, R1);
    // Of a fragment that is not the first one, 13 bits say where it belongs.
    program.load(Width::Half, R1, R10, HEADER + 6).to_big_endian(R1, 16);
    program.jump_if(R1, When::AnyBit, 0x1fff, no_port).jump(has_port);
    program.place(ipv6).store_value(Width::Byte, R10, KEY + VERSION, 6);
    for at in [0, 8] {
        program.load(Width::Double, R1, R10, HEADER + 8 + at).store(Width::Double, R10, KEY + SOURCE + at, R1);
        program.load(Width::Double, R1, R10, HEADER + 24 + at).store(Width::Double, R10, KEY + DESTINATION + at, R1);
    }
    program.load(Width::Half, R1, R10, HEADER + 4).to_big_endian(R1, 16).compute_value(Operation::Add, R1, 40);
    program.store(Width::Double, R10, LENGTH, R1);
    program.load(Width::Byte, R1, R10, HEADER + 6).compute_value(Operation::Add, R8, 40);
    program.jump_if(R1, When::Equal, libc::IPPROTO_FRAGMENT, no_port);
    program.jump_if(R1, When::NotEqual, libc::IPPROTO_UDP, end).place(has_port);
    read(&mut program, (R8, 2), (WORD, 2));
    program.load(Width::Half, R1, R10, WORD).store(Width::Half, R10, KEY + PORT, R1);
    program.place(no_port);
    read(&mut program, (R6, places.kind), (WORD, 1));
    program.load(Width::Byte, R1, R10, WORD).compute_value(Operation::And, R1, 7);
    program.store(Width::Byte, R10, KEY + KIND, R1);
    read(&mut program, (R6, places.came_on), (KEY + INTERFACE, 4));
    // Its network namespace: of the socket where the kernel tells it, because UDP keeps something else in the place of
    // the device.
    if has_socket {
        program.load(Width::Double, R8, R7, 24).jump_if(R8, When::Equal, 0, of_device);
        read(&mut program, (R8, places.of_socket), (POINTER, 8));
        program.jump(named).place(of_device);
    }
    read(&mut program, (R6, places.device), (POINTER, 8));
    program.load(Width::Double, R8, R10, POINTER);
    read(&mut program, (R8, places.of_device), (POINTER, 8));
    program.place(named).load(Width::Double, R8, R10, POINTER);
    read(&mut program, (R8, places.number), (KEY + NAMESPACE, 4));
    // How many datagrams it is: what GRO or a sender has put together counts by its parts.
    read(&mut program, (R6, places.head), (POINTER, 8));
    read(&mut program, (R6, places.end), (WORD, 4));
    program.load(Width::Double, R8, R10, POINTER).load(Width::Word, R1, R10, WORD).compute(Operation::Add, R8, R1);
    read(&mut program, (R8, places.segments), (WORD, 2));
    let counted = program.label();
    program.set(R7, 0).load(Width::Half, R9, R10, WORD).jump_if(R9, When::NotEqual, 0, counted);
    program.set(R9, 1).load(Width::Double, R7, R10, LENGTH).place(counted);
    // Where the table is full the addresses are left out, so that what has been seen since keeps its reason and port.
    let without = program.label();
    count(&mut program, table, without, end);
    program.place(without).store_value(Width::Double, R10, KEY + SOURCE, 0);
    for at in [SOURCE + 8, DESTINATION, DESTINATION + 8] {
        program.store_value(Width::Double, R10, KEY + at, 0);
    }
    count(&mut program, table, end, end);
    program.place(end).set(R0, 0).exit();
    program.finish()
}

/// Adds to the entry of the key, which is made where it is missing; goes to `full` where it cannot be.
fn count(program: &mut Assembler, table: BorrowedFd<'_>, full: Label, end: Label) {
    const ONLY_NEW: i32 = 1; // BPF_NOEXIST
    let [missing, found] = std::array::from_fn(|_| program.label());
    program.look_up(table, KEY, missing).jump(found).place(missing);
    program.set_map(R1, table).copy(R2, R10).compute_value(Operation::Add, R2, KEY.into());
    program.copy(R3, R10).compute_value(Operation::Add, R3, VALUE.into()).set(R4, ONLY_NEW);
    program.call(helper::MAP_UPDATE).look_up(table, KEY, full).place(found);
    program.add_atomically(R0, 0, R9).load(Width::Double, R1, R0, 8);
    program.jump_if_register(R1, When::AtLeast, R7, end).store(Width::Double, R0, 8, R7).jump(end);
}

/// Copies kernel memory onto the stack; unreadable memory gives zeroes.
fn read(program: &mut Assembler, (base, offset): (Register, usize), (to, bytes): (i16, i32)) {
    let offset = i32::try_from(offset).expect("structures of the kernel are short");
    program.copy(R1, R10).compute_value(Operation::Add, R1, to.into()).set(R2, bytes);
    program.copy(R3, base).compute_value(Operation::Add, R3, offset).call(helper::READ_KERNEL);
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter has no kernel")]
    #[allow(clippy::print_stderr)]
    fn a_datagram_that_a_full_socket_does_not_take_is_counted_with_its_port_and_addresses() {
        let program = match DropProgram::attach() {
            Ok(program) => program,
            Err(error) => return eprintln!("NOT CHECKED: {error}"),
        };
        let (socket, sender) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
        let (socket, sender) = (socket.expect("a socket"), sender.expect("a socket"));
        let address = socket.local_addr().expect("an address");
        for _ in 0..5000 {
            sender.send_to(&[0; 100], address).expect("sent");
        }
        let drops = program.read().expect("a table");
        let own: Vec<_> = drops.iter().filter(|drop| drop.port == address.port()).collect();
        let [drop] = own.as_slice() else { panic!("{own:?}") };
        assert_eq!(
            (drop.reason.as_str(), drop.source, drop.destination),
            ("SOCKET_RCVBUFF", address.ip(), address.ip())
        );
        assert!(drop.count > 1000 && !drop.is_elsewhere && !drop.is_for_other_host, "{drop:?}");
        assert_eq!(drop.longest_bytes, 128);
        let (described, table) = (Types::of_kernel(), Map::hash("udpd_test", KEY_BYTES, VALUE_BYTES, 1));
        let (described, table) = (described.expect("as before"), table.expect("as before"));
        let types = Types::parse(&described).expect("as before");
        let places = Places::read(&types).expect("as before");
        attach(&places, &table, false).expect("the program for kernels before 6.11");
    }
}
