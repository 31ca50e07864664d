//! The program at the interface, which decides what goes past the kernel's stack.
//!
//! It hands over what the stack would have brought to the listener's socket, and nothing else: a whole UDP datagram, in
//! a frame to this interface, to one of the addresses and to the port. It leaves every unusual frame to the stack:
//! fragments, IP options, extension headers, two tags, broadcast, an impossible sender, what is longer than a chunk.
//! What the stack makes of those reaches the ordinary socket on the same port.
//!
//! A frame may also hide something: a VLAN tag that was taken off it, or that it is a train of datagrams which a sender
//! or the kernel has made one. Those are left to the stack too, as far as the program can learn of them, see
//! [`HiddenState`].
//!
//! Lengths in headers are not compared with the frame here, because the verifier permits that only with `CAP_PERFMON`.
//! `frame.rs` does it, and verifies the checksums.
//!
//! Pure: it makes instructions and does not call the kernel.

use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use bpf::{Assembler, Instruction, Label, Operation, Register, When, Width, helper};

use super::frame::{ETHERNET_BYTES, MAY_NOT_BE_CUT, PROTOCOL_UDP, TAG_BYTES, TYPE_TAG, TYPE_V4, TYPE_V6};
use super::frame::{UDP_BYTES, V4_BYTES, V6_BYTES};

/// The licence that permits calling functions of the kernel.
pub(super) const LICENSE: &CStr = c"Dual MIT/GPL";

/// `XDP_PASS`, the verdict that leaves a frame to the stack.
pub(super) const PASS: u32 = 2;

// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RECEIVE_QUEUE: i16 = 16;

/// How many words of a key are the address.
const ADDRESS_WORDS: usize = 4;

/// The keys of the map of addresses: IPv6 or mapped IPv4, and the Ethernet address of the interface. That is in the key
/// and not in the program, because it may change, also when an interface is removed and comes back.
pub(super) const KEY_BYTES: usize = 4 * (ADDRESS_WORDS + 2);

/// An address of an interface as a key.
pub(super) type Key = [u8; KEY_BYTES];

/// The key of an address of the interface with this Ethernet address.
pub(super) fn key(card: [u8; 6], address: IpAddr) -> Key {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&address);
    key[16..20].copy_from_slice(&card[..4]);
    // The program stores the last two bytes as a word.
    key[20..].copy_from_slice(&u32::from(u16::from_ne_bytes([card[4], card[5]])).to_ne_bytes());
    key
}

/// What a program is assembled for, besides the addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter<'a> {
    pub(super) port: u16,
    /// Whether a frame with a VLAN tag is taken, of whichever VLAN.
    pub(super) tagged: bool,
    /// The verdict on a frame of a queue that has no socket.
    pub(super) otherwise: u32,
    /// Whether the kernel tells the length of a frame, which Linux 5.18 does. Otherwise everything longer than an
    /// ordinary frame passes: without `CAP_PERFMON` the verifier permits comparisons only with constants.
    pub(super) asks_length: bool,
    pub(super) hidden: HiddenState<'a>,
}

/// How the program learns what a frame does not show.
#[derive(Clone, Copy, Debug)]
pub(super) enum HiddenState<'a> {
    /// It asks the driver for the tag, by the kernel function of this number. In the driver there are no trains.
    Asked(u32),
    /// A [`HiddenStateProgram`](super::frame_metadata::HiddenStateProgram) notes it in this map before.
    Noted(BorrowedFd<'a>),
    /// Above the driver without such notes: a train has an unfinished checksum, so every frame with one is taken for a
    /// train. Tags are not seen.
    Guessed,
    /// In the driver without asking: tags are not seen.
    Unseen,
}

/// What a note says of a frame.
pub(super) const HAS_TAG: i32 = 1;
pub(super) const IS_TRAIN: i32 = 2;

/// The maps that the program reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramMaps<'a> {
    /// Its keys are the addresses.
    pub(super) addresses: BorrowedFd<'a>,
    /// The sockets by queue.
    pub(super) sockets: BorrowedFd<'a>,
    /// The longest frame that a chunk of each queue has room for.
    pub(super) longest: BorrowedFd<'a>,
}

/// The longest ordinary frame, with a tag. A chunk has room for it.
pub(super) const ORDINARY_BYTES: usize = ETHERNET_BYTES + TAG_BYTES + 1500;

const CONTEXT: Register = Register::R6;
const FRAME: Register = Register::R7;
const END: Register = Register::R8;
const KIND: Register = Register::R9;
const VALUE: Register = Register::R3;

/// A field of a frame, read from register 7 on, which a tag moves.
struct FrameField(Width, usize);

const TYPE: FrameField = FrameField(Width::Half, ETHERNET_BYTES - 2);
const V4: usize = ETHERNET_BYTES;
const V6: usize = ETHERNET_BYTES;

/// A number of a header as it lies in memory.
fn big(value: u16) -> i32 {
    i32::from(u16::from_ne_bytes(value.to_be_bytes()))
}

/// Writes the program. Each step jumps to `pass` when the frame is not one to hand over.
struct ProgramWriter {
    assembler: Assembler,
    pass: Label,
    look_up: Label,
}

impl ProgramWriter {
    fn load(&mut self, to: Register, field: &FrameField) {
        let offset = i16::try_from(field.1).expect("headers are short");
        self.assembler.load(field.0, to, FRAME, offset);
    }

    /// Requires the frame to have so many bytes.
    fn need(&mut self, bytes: usize) {
        let bytes = i32::try_from(bytes).expect("headers are short");
        self.assembler.copy(Register::R2, FRAME).compute_value(Operation::Add, Register::R2, bytes);
        self.assembler.jump_if_register(Register::R2, When::Above, END, self.pass);
    }

    /// Requires a field to have this value, as it lies in memory.
    fn want(&mut self, field: &FrameField, value: i32) {
        self.load(VALUE, field);
        self.assembler.jump_if_word(VALUE, When::NotEqual, value, self.pass);
    }

    /// Passes if a field is such.
    fn leave(&mut self, field: &FrameField, when: When, value: i32) {
        self.load(VALUE, field);
        self.assembler.jump_if_word(VALUE, when, value, self.pass);
    }

    /// Passes if both addresses of so many words are equal: no host sends to itself over a cable.
    fn leave_if_equal(&mut self, source: usize, destination: usize, words: usize) {
        let differ = self.assembler.label();
        for word in 0..words {
            self.load(VALUE, &FrameField(Width::Word, source + 4 * word));
            self.load(Register::R4, &FrameField(Width::Word, destination + 4 * word));
            self.assembler.jump_if_register(VALUE, When::NotEqual, Register::R4, differ);
        }
        self.assembler.jump(self.pass).place(differ);
    }

    /// Passes if the checksum of a datagram covers addresses, length and protocol alone. The addresses are so many
    /// words from `addresses` on; the UDP header is at `udp`.
    fn leave_if_unfinished(&mut self, addresses: usize, words: usize, udp: usize) {
        self.load(VALUE, &FrameField(Width::Half, udp + 4));
        self.assembler.compute_value(Operation::Add, VALUE, big(PROTOCOL_UDP.into()));
        for word in 0..words {
            self.load(Register::R4, &FrameField(Width::Word, addresses + 4 * word));
            self.assembler.compute(Operation::Add, VALUE, Register::R4);
        }
        // Nine words and two halves: folded to 32 bits and a carry, 17 bits, 16 bits and a carry, 16 bits.
        for bits in [32, 16, 16, 16] {
            self.assembler.copy(Register::R4, VALUE).compute_value(Operation::ShiftRight, Register::R4, bits);
            if bits == 32 {
                self.assembler.compute_word(Operation::Set, VALUE, VALUE);
            } else {
                self.assembler.compute_value(Operation::And, VALUE, 0xffff);
            }
            self.assembler.compute(Operation::Add, VALUE, Register::R4);
        }
        self.load(Register::R4, &FrameField(Width::Half, udp + 6));
        self.assembler.jump_if_register(VALUE, When::Equal, Register::R4, self.pass);
    }

    /// Copies a field of the frame into a word of the key, which lies on the stack below register 10.
    fn key_word(&mut self, word: usize, field: &FrameField) {
        self.load(VALUE, field);
        self.assembler.store(Width::Word, Register::R10, key_place(word), VALUE);
    }

    fn v4(&mut self, filter: &Filter<'_>) {
        self.need(V4 + V4_BYTES + UDP_BYTES);
        // Version 4, and five words of header: no options.
        self.want(&FrameField(Width::Byte, V4), 0x45);
        self.leave(&FrameField(Width::Half, V4 + 6), When::AnyBit, big(!MAY_NOT_BE_CUT));
        self.want(&FrameField(Width::Byte, V4 + 9), i32::from(PROTOCOL_UDP));
        // No sender has an address of 0.x, 127.x, a group or broadcast; the stack knows what to do with them.
        self.load(VALUE, &FrameField(Width::Byte, V4 + 12));
        self.assembler.jump_if_word(VALUE, When::Equal, 0, self.pass);
        self.assembler.jump_if_word(VALUE, When::Equal, 127, self.pass);
        self.assembler.jump_if_word(VALUE, When::AtLeast, 224, self.pass);
        self.leave_if_equal(V4 + 12, V4 + 16, 1);
        self.want(&FrameField(Width::Half, V4 + V4_BYTES + 2), big(filter.port));
        if matches!(filter.hidden, HiddenState::Guessed) {
            self.leave_if_unfinished(V4 + 12, 2, V4 + V4_BYTES);
        }
        // The words before a mapped IPv4 address.
        let clothes = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
        for (word, value) in [0, 0, clothes].into_iter().enumerate() {
            self.assembler.store_value(Width::Word, Register::R10, key_place(word), value);
        }
        self.key_word(3, &FrameField(Width::Word, V4 + 16));
        self.assembler.jump(self.look_up);
    }

    fn v6(&mut self, filter: &Filter<'_>) {
        self.need(V6 + V6_BYTES + UDP_BYTES);
        self.load(VALUE, &FrameField(Width::Byte, V6));
        self.assembler.compute_value(Operation::And, VALUE, 0xf0).jump_if_word(VALUE, When::NotEqual, 0x60, self.pass);
        self.want(&FrameField(Width::Byte, V6 + 6), i32::from(PROTOCOL_UDP));
        // No sender has a group address, or one that begins with 64 zeroes: unspecified, loopback, mapped IPv4.
        self.leave(&FrameField(Width::Byte, V6 + 8), When::Equal, 0xff);
        self.load(VALUE, &FrameField(Width::Word, V6 + 8));
        self.load(Register::R4, &FrameField(Width::Word, V6 + 12));
        self.assembler.compute(Operation::Or, VALUE, Register::R4);
        self.assembler.jump_if_word(VALUE, When::Equal, 0, self.pass);
        // Nor does a receiver, whose key would be that of an IPv4 address.
        self.load(VALUE, &FrameField(Width::Word, V6 + 24));
        self.load(Register::R4, &FrameField(Width::Word, V6 + 28));
        self.assembler.compute(Operation::Or, VALUE, Register::R4);
        self.assembler.jump_if_word(VALUE, When::Equal, 0, self.pass);
        self.leave_if_equal(V6 + 8, V6 + 24, ADDRESS_WORDS);
        self.want(&FrameField(Width::Half, V6 + V6_BYTES + 2), big(filter.port));
        // A length of 0 means one that needs more bits, which the stack handles.
        self.leave(&FrameField(Width::Half, V6 + V6_BYTES + 4), When::Equal, 0);
        if matches!(filter.hidden, HiddenState::Guessed) {
            self.leave_if_unfinished(V6 + 8, 2 * ADDRESS_WORDS, V6 + V6_BYTES);
        }
        for word in 0..ADDRESS_WORDS {
            self.key_word(word, &FrameField(Width::Word, V6 + 24 + 4 * word));
        }
    }
}

fn key_place(word: usize) -> i16 {
    (4 * word) as i16 - KEY_BYTES as i16
}

/// Where the key of the other maps and the answers of the driver lie: below the first key.
const SMALL_KEY: i16 = key_end(1);
const TAG_KIND: i16 = key_end(2);
const TAG: i16 = key_end(3);

const fn key_end(words: usize) -> i16 {
    -((KEY_BYTES + 4 * words) as i16)
}

impl ProgramWriter {
    /// Passes if the frame, with all of its pieces, is longer than a chunk of its queue.
    fn leave_if_too_long(&mut self, filter: &Filter<'_>, maps: &ProgramMaps<'_>) {
        if filter.asks_length {
            self.assembler.load(Width::Word, VALUE, CONTEXT, RECEIVE_QUEUE);
            self.assembler.store(Width::Word, Register::R10, SMALL_KEY, VALUE);
            self.assembler.look_up(maps.longest, SMALL_KEY, self.pass);
            self.assembler.load(Width::Word, KIND, Register::R0, 0);
            self.assembler.copy(Register::R1, CONTEXT).call(helper::XDP_LENGTH);
            self.assembler.jump_if_register(Register::R0, When::Above, KIND, self.pass);
        } else {
            self.assembler.load(Width::Word, Register::R2, CONTEXT, DATA);
            self.assembler.compute_value(Operation::Add, Register::R2, ORDINARY_BYTES as i32);
            self.assembler.jump_if_register(Register::R2, When::Below, END, self.pass);
        }
    }

    /// Passes if the frame has a hidden tag or is a train.
    fn leave_if_hidden(&mut self, filter: &Filter<'_>) {
        match filter.hidden {
            HiddenState::Asked(function) if !filter.tagged => {
                for (place, argument) in [(TAG_KIND, Register::R2), (TAG, VALUE)] {
                    self.assembler.store_value(Width::Word, Register::R10, place, 0);
                    self.assembler.copy(argument, Register::R10);
                    self.assembler.compute_value(Operation::Add, argument, place.into());
                }
                self.assembler.copy(Register::R1, CONTEXT).call_kernel(function.cast_signed());
                // Any other answer is an error: there is no tag.
                self.assembler.jump_if_word(Register::R0, When::Equal, 0, self.pass);
            }
            HiddenState::Noted(notes) => {
                self.assembler.store_value(Width::Word, Register::R10, SMALL_KEY, 0);
                self.assembler.look_up(notes, SMALL_KEY, self.pass);
                self.assembler.load(Width::Word, VALUE, Register::R0, 0);
                let passes = if filter.tagged { IS_TRAIN } else { HAS_TAG | IS_TRAIN };
                self.assembler.jump_if_word(VALUE, When::AnyBit, passes, self.pass);
            }
            HiddenState::Asked(_) | HiddenState::Guessed | HiddenState::Unseen => {}
        }
    }
}

/// Assembles the program for its maps.
pub(super) fn assemble(filter: &Filter<'_>, maps: &ProgramMaps<'_>) -> Vec<Instruction> {
    let mut assembler = Assembler::new();
    let (pass, look_up, untagged, v4) = (assembler.label(), assembler.label(), assembler.label(), assembler.label());
    let mut steps = ProgramWriter { assembler, pass, look_up };
    steps.assembler.copy(CONTEXT, Register::R1);
    steps.assembler.load(Width::Word, FRAME, CONTEXT, DATA).load(Width::Word, END, CONTEXT, DATA_END);
    steps.need(ETHERNET_BYTES + TAG_BYTES);
    // The receiving Ethernet address, before a tag moves the frame on.
    steps.key_word(ADDRESS_WORDS, &FrameField(Width::Word, 0));
    steps.key_word(ADDRESS_WORDS + 1, &FrameField(Width::Half, 4));
    steps.load(KIND, &TYPE);
    if filter.tagged {
        steps.assembler.jump_if_word(KIND, When::NotEqual, big(TYPE_TAG), untagged);
        steps.load(KIND, &FrameField(Width::Half, TYPE.1 + TAG_BYTES));
        steps.assembler.compute_value(Operation::Add, FRAME, TAG_BYTES as i32);
    }
    steps.assembler.place(untagged);
    steps.assembler.jump_if_word(KIND, When::Equal, big(TYPE_V4), v4);
    steps.assembler.jump_if_word(KIND, When::NotEqual, big(TYPE_V6), pass);
    steps.v6(filter);
    steps.assembler.jump(look_up);
    steps.assembler.place(v4);
    steps.v4(filter);
    steps.assembler.place(look_up);
    steps.assembler.look_up(maps.addresses, key_place(0), pass);
    steps.leave_if_too_long(filter, maps);
    steps.leave_if_hidden(filter);
    steps.assembler.load(Width::Word, Register::R2, CONTEXT, RECEIVE_QUEUE);
    steps.assembler.set_map(Register::R1, maps.sockets).set(Register::R3, filter.otherwise.cast_signed());
    steps.assembler.call(helper::REDIRECT_MAP).exit();
    steps.assembler.place(pass);
    steps.assembler.set(Register::R0, PASS.cast_signed()).exit();
    steps.assembler.finish()
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
