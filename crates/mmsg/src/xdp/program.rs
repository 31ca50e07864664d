//! The program at the interface: which frames go past the kernel's stack, and that all others do not.
//!
//! It hands over what the stack would have brought to the listener's socket, and nothing else: a whole UDP datagram, in
//! a frame to this interface, to one of the addresses and to the port. Whatever is unusual about a frame is left to the
//! stack: fragments, IP options, extension headers, two tags, broadcast, a sender that cannot be one. What the stack
//! makes of it reaches the ordinary socket that is bound beside.
//!
//! Lengths are not compared with the frame here: the verifier permits that to nobody without `CAP_PERFMON`. `frame.rs`
//! does it, and the checksums.
//!
//! Pure: it makes instructions, and asks the kernel nothing.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::bpf::assembler::{Assembler, Instruction, Label, Operation, Register, When, Width};

use super::frame::{ETHERNET_BYTES, MAY_NOT_BE_CUT, PROTOCOL_UDP, TAG_BYTES, TYPE_TAG, TYPE_V4, TYPE_V6};
use super::frame::{UDP_BYTES, V4_BYTES, V6_BYTES};

// Verdicts and helpers, each with its name in linux/bpf.h.
/// `XDP_PASS`
pub(super) const PASS: u32 = 2;
/// `BPF_FUNC_map_lookup_elem`
const LOOK_UP: i32 = 1;
/// `BPF_FUNC_redirect_map`
const REDIRECT: i32 = 51;

// Where `struct xdp_md` has what is asked of it.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RECEIVE_QUEUE: i16 = 16;

/// How many words of a key are the address.
const ADDRESS_WORDS: usize = 4;

/// The keys of the map of addresses: IPv6, or IPv4 in IPv6 clothes, and the card's own Ethernet address. That stands in
/// a map and not in the program, because a card may get another one, and so does one that is removed and comes back.
pub(super) const KEY_BYTES: usize = 4 * (ADDRESS_WORDS + 2);

/// An address of a card as a key.
pub(super) type Key = [u8; KEY_BYTES];

/// The key of an address of this card.
pub(super) fn key(card: [u8; 6], address: IpAddr) -> Key {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&address);
    key[16..20].copy_from_slice(&card[..4]);
    // The program stores the two bytes that are left as a word.
    key[20..].copy_from_slice(&u32::from(u16::from_ne_bytes([card[4], card[5]])).to_ne_bytes());
    key
}

/// What the program is made for, besides the addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    pub(super) port: u16,
    /// Whether a frame with a VLAN tag is taken, whichever VLAN it is of.
    pub(super) tagged: bool,
    /// The verdict on a frame of a queue that has no socket.
    pub(super) otherwise: u32,
}

const FRAME: Register = Register::R7;
const END: Register = Register::R8;
const KIND: Register = Register::R9;
const VALUE: Register = Register::R3;

/// A field of a frame. Frames are read from register 7 on, which is moved on by a tag.
struct Field(Width, usize);

const TYPE: Field = Field(Width::Half, ETHERNET_BYTES - 2);
const V4: usize = ETHERNET_BYTES;
const V6: usize = ETHERNET_BYTES;

/// The words of a frame, compared as they lie in memory.
fn big(value: u16) -> i32 {
    i32::from(u16::from_ne_bytes(value.to_be_bytes()))
}

/// The steps of the program; all of them leave by the same door when a frame is not what is looked for.
struct Steps {
    assembler: Assembler,
    pass: Label,
    look_up: Label,
}

impl Steps {
    fn load(&mut self, to: Register, field: &Field) {
        let offset = i16::try_from(field.1).expect("headers are short");
        self.assembler.load(field.0, to, FRAME, offset);
    }

    /// Goes on only if the frame has so many bytes.
    fn need(&mut self, bytes: usize) {
        let bytes = i32::try_from(bytes).expect("headers are short");
        self.assembler.copy(Register::R2, FRAME).compute_value(Operation::Add, Register::R2, bytes);
        self.assembler.jump_if_register(Register::R2, When::Above, END, self.pass);
    }

    /// Goes on only if a field has this value, as it lies in memory.
    fn want(&mut self, field: &Field, value: i32) {
        self.load(VALUE, field);
        self.assembler.jump_if_word(VALUE, When::NotEqual, value, self.pass);
    }

    /// Leaves if a field is such.
    fn leave(&mut self, field: &Field, when: When, value: i32) {
        self.load(VALUE, field);
        self.assembler.jump_if_word(VALUE, when, value, self.pass);
    }

    /// Leaves if the ends of both addresses are equal: nobody sends to himself over a cable.
    fn leave_if_equal(&mut self, source: usize, destination: usize) {
        self.load(VALUE, &Field(Width::Word, source));
        self.load(Register::R4, &Field(Width::Word, destination));
        self.assembler.jump_if_register(VALUE, When::Equal, Register::R4, self.pass);
    }

    /// Copies a field of the frame into a word of the key, which lies on the stack below register 10.
    fn key_word(&mut self, word: usize, field: &Field) {
        self.load(VALUE, field);
        self.assembler.store(Width::Word, Register::R10, key_place(word), VALUE);
    }

    fn v4(&mut self, port: u16) {
        self.need(V4 + V4_BYTES + UDP_BYTES);
        // Version 4, and five words of header: no options.
        self.want(&Field(Width::Byte, V4), 0x45);
        self.leave(&Field(Width::Half, V4 + 6), When::AnyBit, big(!MAY_NOT_BE_CUT));
        self.want(&Field(Width::Byte, V4 + 9), i32::from(PROTOCOL_UDP));
        // No sender is called 0.x, 127.x, or as groups and everybody are; the stack knows what to do with them.
        self.load(VALUE, &Field(Width::Byte, V4 + 12));
        self.assembler.jump_if_word(VALUE, When::Equal, 0, self.pass);
        self.assembler.jump_if_word(VALUE, When::Equal, 127, self.pass);
        self.assembler.jump_if_word(VALUE, When::AtLeast, 224, self.pass);
        self.leave_if_equal(V4 + 12, V4 + 16);
        self.want(&Field(Width::Half, V4 + V4_BYTES + 2), big(port));
        // What stands before an IPv4 address that wears them.
        let clothes = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
        for (word, value) in [0, 0, clothes].into_iter().enumerate() {
            self.assembler.store_value(Width::Word, Register::R10, key_place(word), value);
        }
        self.key_word(3, &Field(Width::Word, V4 + 16));
        self.assembler.jump(self.look_up);
    }

    fn v6(&mut self, port: u16) {
        self.need(V6 + V6_BYTES + UDP_BYTES);
        self.load(VALUE, &Field(Width::Byte, V6));
        self.assembler.compute_value(Operation::And, VALUE, 0xf0).jump_if_word(VALUE, When::NotEqual, 0x60, self.pass);
        self.want(&Field(Width::Byte, V6 + 6), i32::from(PROTOCOL_UDP));
        // No sender is a group, or one of those that begin with 64 zeroes: no address, this host, IPv4 in clothes.
        self.leave(&Field(Width::Byte, V6 + 8), When::Equal, 0xff);
        self.load(VALUE, &Field(Width::Word, V6 + 8));
        self.load(Register::R4, &Field(Width::Word, V6 + 12));
        self.assembler.compute(Operation::Or, VALUE, Register::R4);
        self.assembler.jump_if_word(VALUE, When::Equal, 0, self.pass);
        // Nor is a receiver, whose key would be that of an IPv4 address.
        self.load(VALUE, &Field(Width::Word, V6 + 24));
        self.load(Register::R4, &Field(Width::Word, V6 + 28));
        self.assembler.compute(Operation::Or, VALUE, Register::R4);
        self.assembler.jump_if_word(VALUE, When::Equal, 0, self.pass);
        self.leave_if_equal(V6 + 20, V6 + 36);
        self.want(&Field(Width::Half, V6 + V6_BYTES + 2), big(port));
        // A length of 0 stands for one that needs more bits, which is the stack's business.
        self.leave(&Field(Width::Half, V6 + V6_BYTES + 4), When::Equal, 0);
        for word in 0..ADDRESS_WORDS {
            self.key_word(word, &Field(Width::Word, V6 + 24 + 4 * word));
        }
    }
}

fn key_place(word: usize) -> i16 {
    (4 * word) as i16 - KEY_BYTES as i16
}

/// The program, over a map that has the addresses as its keys and one of the sockets by queue.
pub(super) fn assemble(filter: &Filter, addresses: BorrowedFd<'_>, sockets: BorrowedFd<'_>) -> Vec<Instruction> {
    let mut assembler = Assembler::new();
    let (pass, look_up, untagged, v4) = (assembler.label(), assembler.label(), assembler.label(), assembler.label());
    let mut steps = Steps { assembler, pass, look_up };
    let context = Register::R6;
    steps.assembler.copy(context, Register::R1);
    steps.assembler.load(Width::Word, FRAME, context, DATA).load(Width::Word, END, context, DATA_END);
    steps.need(ETHERNET_BYTES + TAG_BYTES);
    // Whom it is sent to, before a tag moves the frame on.
    steps.key_word(ADDRESS_WORDS, &Field(Width::Word, 0));
    steps.key_word(ADDRESS_WORDS + 1, &Field(Width::Half, 4));
    steps.load(KIND, &TYPE);
    if filter.tagged {
        steps.assembler.jump_if_word(KIND, When::NotEqual, big(TYPE_TAG), untagged);
        steps.load(KIND, &Field(Width::Half, TYPE.1 + TAG_BYTES));
        steps.assembler.compute_value(Operation::Add, FRAME, TAG_BYTES as i32);
    }
    steps.assembler.place(untagged);
    steps.assembler.jump_if_word(KIND, When::Equal, big(TYPE_V4), v4);
    steps.assembler.jump_if_word(KIND, When::NotEqual, big(TYPE_V6), pass);
    steps.v6(filter.port);
    steps.assembler.jump(look_up);
    steps.assembler.place(v4);
    steps.v4(filter.port);
    steps.assembler.place(look_up);
    steps.assembler.copy(Register::R2, Register::R10);
    steps.assembler.compute_value(Operation::Add, Register::R2, -(KEY_BYTES as i32));
    steps.assembler.set_map(Register::R1, addresses).call(LOOK_UP);
    steps.assembler.jump_if(Register::R0, When::Equal, 0, pass);
    steps.assembler.load(Width::Word, Register::R2, context, RECEIVE_QUEUE);
    steps.assembler.set_map(Register::R1, sockets).set(Register::R3, filter.otherwise.cast_signed());
    steps.assembler.call(REDIRECT).exit();
    steps.assembler.place(pass);
    steps.assembler.set(Register::R0, PASS.cast_signed()).exit();
    steps.assembler.finish()
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
