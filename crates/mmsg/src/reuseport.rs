//! Programs that choose the socket of a reuseport group for each datagram.
//!
//! They are classic BPF: a handful of instructions that need no privilege and no compiler, run in the softirq where the
//! datagram arrives, and return the index of a socket in the order in which the group was bound. For an index without a
//! socket the kernel falls back to its own choice, a hash over addresses and ports. So an unknown core or queue costs
//! placement, never a datagram.

use std::io;
use std::net::IpAddr;

use libc::sock_filter;

/// How the datagrams of a reuseport group are spread over its members, which are numbered from 0 in the order of
/// `bind`. When a member is closed the **last** one takes its number.
///
/// A table names the members of the largest group. A smaller group folds it: member `m` becomes `m mod n` in a group of
/// `n`.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSpread {
    /// By the kernel's own hash over addresses and ports, without a program.
    Flow,
    /// By the core on which the kernel handles the datagram: pairs of core and member.
    Cpu(Vec<(usize, u32)>),
    /// By the receive queue of the device, counted from 0: pairs of queue and member. Needs a device that records the
    /// queue; loopback and veth do not.
    Queue(Vec<(u32, u32)>),
    /// By the address that it was sent to: pairs of address and member, such as a multicast group and the member that
    /// joined it. Others are left to the hash.
    Destination(Vec<(IpAddr, u32)>),
    /// At random, each datagram for itself: for one heavy sender, which the hash would give to one member. Datagrams of
    /// one sender then overtake each other.
    Random,
}

/// What the kernel takes for "no such socket".
const NO_SOCKET: u32 = u32::MAX;

/// The kernel refuses longer programs (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// Two instructions for each pair, and two around them.
const MAX_PAIRS: usize = (MAX_INSTRUCTIONS - 2) / 2;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN_VALUE: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | BPF_A) as u16;
/// The accumulator as the source of a return (`BPF_A` of linux/bpf_common.h, which the crate libc lacks).
const BPF_A: u32 = 0x10;

/// The program of a spread over so many members; [`GroupSpread::Flow`] has none.
pub(crate) fn program(spread: &GroupSpread, members: u32) -> io::Result<Option<Vec<sock_filter>>> {
    if members == 0 {
        return Err(refuse("datagrams cannot be spread over 0 sockets: give at least 1".to_owned()));
    }
    Ok(Some(match spread {
        GroupSpread::Flow => return Ok(None),
        GroupSpread::Cpu(pairs) => {
            check(pairs.len(), "core")?;
            let pair = |&(cpu, member): &(usize, u32)| {
                let cpu = u32::try_from(cpu).map_err(|_| refuse(format!("there is no core {cpu}: check the table")))?;
                Ok((cpu, member % members))
            };
            chain(libc::SKF_AD_CPU, &pairs.iter().map(pair).collect::<io::Result<Vec<_>>>()?)
        }
        GroupSpread::Queue(pairs) => {
            check(pairs.len(), "queue")?;
            // The kernel keeps queue + 1, so that 0 can mean "not recorded".
            let pair = |&(queue, member): &(u32, u32)| {
                let mapping = queue.checked_add(1).ok_or_else(|| refuse(format!("there is no queue {queue}")))?;
                Ok((mapping, member % members))
            };
            chain(libc::SKF_AD_QUEUE, &pairs.iter().map(pair).collect::<io::Result<Vec<_>>>()?)
        }
        GroupSpread::Destination(pairs) => {
            // An IPv6 address takes nine instructions, where a core takes two.
            check(pairs.len() * 9 / 2, "word")?;
            by_destination(pairs.iter().map(|&(address, member)| (address, member % members)))
        }
        GroupSpread::Random => vec![
            load(libc::SKF_AD_RANDOM),
            instruction(MODULO, 0, 0, members),
            instruction(RETURN_ACCUMULATOR, 0, 0, 0),
        ],
    }))
}

/// Compares the destination in the header of the packet with each address in turn, of its own family only.
fn by_destination(pairs: impl Iterator<Item = (IpAddr, u32)>) -> Vec<sock_filter> {
    let network = |offset: i32| instruction(LOAD_WORD, 0, 0, (libc::SKF_NET_OFF + offset).cast_unsigned());
    let (mut v4, mut v6) = (vec![network(16)], Vec::new());
    for (address, member) in pairs {
        match address {
            IpAddr::V4(v4_address) => {
                v4.push(instruction(JUMP_IF_EQUAL, 0, 1, v4_address.to_bits()));
                v4.push(instruction(RETURN_VALUE, 0, 0, member));
            }
            IpAddr::V6(v6_address) => {
                for (place, word) in (0_u8..).zip(v6_address.octets().as_chunks::<4>().0) {
                    v6.push(network(24 + 4 * i32::from(place)));
                    // Past the words that are left and the return.
                    v6.push(instruction(JUMP_IF_EQUAL, 0, 7 - 2 * place, u32::from_be_bytes(*word)));
                }
                v6.push(instruction(RETURN_VALUE, 0, 0, member));
            }
        }
    }
    let otherwise = instruction(RETURN_VALUE, 0, 0, NO_SOCKET);
    v4.push(otherwise);
    v6.push(otherwise);
    // The first four bits of either header are the version.
    let begin = [
        network(0),
        instruction(SHIFT_RIGHT, 0, 0, 28),
        instruction(JUMP_IF_EQUAL, 1, 0, 4),
        instruction(JUMP, 0, 0, v4.len() as u32),
    ];
    [&begin[..], &v4, &v6].concat()
}

/// A socket filter that lets nothing pass.
pub(crate) fn refuse_everything() -> [sock_filter; 1] {
    [instruction(RETURN_VALUE, 0, 0, 0)]
}

/// Compares what `ancillary` loads with each key in turn. It is a chain and not a jump table, because classic BPF has
/// no indexed jump, and because keys may be sparse: core 3 and core 64 make a table of two.
fn chain(ancillary: libc::c_int, pairs: &[(u32, u32)]) -> Vec<sock_filter> {
    let mut program = Vec::with_capacity(2 * pairs.len() + 2);
    program.push(load(ancillary));
    for (key, socket) in pairs {
        program.push(instruction(JUMP_IF_EQUAL, 0, 1, *key));
        program.push(instruction(RETURN_VALUE, 0, 0, *socket));
    }
    program.push(instruction(RETURN_VALUE, 0, 0, NO_SOCKET));
    program
}

fn load(ancillary: libc::c_int) -> sock_filter {
    instruction(LOAD_WORD, 0, 0, (libc::SKF_AD_OFF + ancillary).cast_unsigned())
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn check(pairs: usize, what: &str) -> io::Result<()> {
    if pairs > MAX_PAIRS {
        let text = format!("a table of {pairs} {what}s is too long for one program: {MAX_PAIRS} is the most");
        return Err(refuse(text));
    }
    Ok(())
}

fn refuse(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on a packet that begins with its network header.
    fn run_on(program: &[sock_filter], packet: &[u8]) -> u32 {
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD_WORD => {
                    let from = k.wrapping_sub(libc::SKF_NET_OFF.cast_unsigned()) as usize;
                    accumulator = u32::from_be_bytes(packet[from..from + 4].try_into().expect("four"));
                }
                JUMP_IF_EQUAL => at += usize::from(if accumulator == k { jt } else { jf }),
                RETURN_VALUE => return k,
                SHIFT_RIGHT => accumulator >>= k,
                JUMP => at += k as usize,
                code => panic!("unexpected instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn a_destination_of_either_family_has_its_member_and_any_other_is_left_to_the_kernel() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let packet = |to: IpAddr| match to {
            IpAddr::V4(to) => [&[0x45; 16][..], &to.octets()].concat(),
            // Where an IPv4 header has its destination stands that of a group.
            IpAddr::V6(to) => [&[0x60; 16][..], &[239, 1, 1, 1], &[0; 4], &to.octets()].concat(),
        };
        let groups = ["239.1.1.1", "ff02::1:5", "239.1.1.2", "ff02::1:6", "ff05::1:5"].map(address);
        let program = of(GroupSpread::Destination(groups.into_iter().zip(0..).collect()));
        for (group, member) in groups.into_iter().zip(0..) {
            assert_eq!(run_on(&program, &packet(group)), member, "{group}");
        }
        for other in ["239.1.1.3", "10.0.0.1", "ff02::1:7", "ff02:1::1:5", "::"].map(address) {
            assert_eq!(run_on(&program, &packet(other)), NO_SOCKET, "{other}");
        }
        assert_eq!(run_on(&of(GroupSpread::Destination(Vec::new())), &packet(groups[1])), NO_SOCKET);
        let many = |groups: usize| super::program(&GroupSpread::Destination(vec![(address("ff02::1"), 0); groups]), 1);
        assert!(many(456).is_err() && many(200).is_ok());
    }

    /// Runs a program as the kernel does, with `loaded` as what its one load instruction finds.
    fn run(program: &[sock_filter], ancillary: libc::c_int, loaded: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD_WORD => {
                    assert_eq!(k, (libc::SKF_AD_OFF + ancillary).cast_unsigned());
                    accumulator = loaded;
                }
                JUMP_IF_EQUAL => at += usize::from(if accumulator == k { jt } else { jf }),
                MODULO => accumulator %= k,
                RETURN_VALUE => return k,
                RETURN_ACCUMULATOR => return accumulator,
                code => panic!("unexpected instruction {code:#x}"),
            }
        }
    }

    /// The program of a spread that has one, over so many members that no table is folded.
    fn of(spread: GroupSpread) -> Vec<sock_filter> {
        program(&spread, 1000).expect("short enough").expect("it has a program")
    }

    #[test]
    fn a_core_finds_its_socket_and_an_unknown_core_finds_none() {
        let program = of(GroupSpread::Cpu(vec![(3, 0), (64, 1), (0, 2)]));
        for (cpu, socket) in [(3, 0), (64, 1), (0, 2), (1, NO_SOCKET)] {
            assert_eq!(run(&program, libc::SKF_AD_CPU, cpu), socket, "core {cpu}");
        }
    }

    #[test]
    fn queues_are_counted_from_zero_and_an_unrecorded_queue_finds_no_socket() {
        let program = of(GroupSpread::Queue(vec![(0, 5), (7, 6)]));
        for (mapping, socket) in [(1, 5), (8, 6), (0, NO_SOCKET), (7, NO_SOCKET)] {
            assert_eq!(run(&program, libc::SKF_AD_QUEUE, mapping), socket, "queue mapping {mapping}");
        }
    }

    #[test]
    fn random_stays_below_the_number_of_sockets() {
        let program = program(&GroupSpread::Random, 3).expect("short").expect("a program");
        for random in [0, 1, 2, 3, u32::MAX] {
            assert_eq!(run(&program, libc::SKF_AD_RANDOM, random), random % 3);
        }
    }

    #[test]
    fn a_table_for_more_members_than_there_are_is_folded() {
        let program = program(&GroupSpread::Cpu(vec![(0, 0), (1, 5)]), 4).expect("short").expect("a program");
        assert_eq!(run(&program, libc::SKF_AD_CPU, 1), 1);
    }

    #[test]
    fn an_empty_table_leaves_everything_to_the_kernel() {
        assert_eq!(run(&of(GroupSpread::Cpu(vec![])), libc::SKF_AD_CPU, 0), NO_SOCKET);
    }

    #[test]
    fn the_longest_table_fits_and_one_more_is_refused_with_the_limit() {
        let table = |pairs: usize| GroupSpread::Queue((0..u32::try_from(pairs).expect("small")).zip(0..).collect());
        assert!(of(table(MAX_PAIRS)).len() <= MAX_INSTRUCTIONS);
        let error = program(&table(MAX_PAIRS + 1), 1).expect_err("refused");
        assert!(error.to_string().contains("2047 is the most"), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(program(&GroupSpread::Random, 0).is_err());
        assert!(program(&GroupSpread::Queue(vec![(u32::MAX, 0)]), 1).is_err());
    }
}
