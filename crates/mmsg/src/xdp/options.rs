//! What is asked of AF_XDP, and what the engine counts.

use crate::shape::{Control, setters};

/// Where a program runs at an interface.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel has processed a frame (`XDP_FLAGS_DRV_MODE`).
    #[default]
    Native,
    /// Above the driver, with every driver and slower (`XDP_FLAGS_SKB_MODE`). There a train, of a sender on this host
    /// or made by the kernel (GRO), is one frame with one UDP header. The kernel tells which frames are trains
    /// (`CAP_PERFMON`, a kernel that describes its types); where it cannot, every frame whose checksum was left to the
    /// device counts as one. Trains pass to the stack, which cuts them.
    Generic,
}

/// What is to be handed over at an interface: whole UDP datagrams to one port.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the interface.
    pub interface: String,
    /// The port.
    pub port: u16,
    /// Where the program runs.
    pub mode: Mode,
    /// Whether frames with a VLAN tag are taken too, of whichever VLAN. The kernel would have given them to the
    /// interface of that VLAN; so this is for hosts where the addresses are those of all VLANs.
    ///
    /// Where the device takes tags off (`ethtool -K INTERFACE rxvlan`) and on a virtual cable, the driver or the kernel
    /// is asked for them; see [`Redirect::unseen_tags`](super::Redirect::unseen_tags) for where that cannot be.
    pub tagged: bool,
}

impl Wanted {
    /// What comes to a port of an interface, by a native program and without a VLAN tag.
    pub fn new(interface: &str, port: u16) -> Wanted {
        Wanted { interface: interface.to_owned(), port, mode: Mode::Native, tagged: false }
    }

    /// The same in another mode.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Wanted {
        Wanted { mode, ..self }
    }

    /// The same with frames that have one VLAN tag, or without.
    #[must_use]
    pub fn tagged(self, on: bool) -> Wanted {
        Wanted { tagged: on, ..self }
    }
}

/// How UDP checksums are treated. The device has verified most of them, but an AF_XDP socket is not told which. The
/// checksum of an IPv4 header is always verified, and IPv4 without a UDP checksum is always legal.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// They are not looked at.
    Unverified,
    /// A wrong one is refused, unless it is the sum of addresses and length alone: a sender on this host leaves the
    /// rest to the device, and a virtual cable has none. One wrong checksum in 65,536 looks like that by chance.
    #[default]
    VerifiedOrLeftToDevice,
    /// Every wrong one is refused, which is right for what came over a wire. That includes senders on this host whose
    /// checksums no device has completed.
    Verified,
}

/// How one queue of an interface is received.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The receive queue, from 0.
    pub queue: u32,
    /// Payloads of up to so many bytes are copied into the batch's own memory, longer ones change places with it.
    pub copy_up_to: usize,
    /// How UDP checksums are treated.
    pub checksums: Checksums,
    /// Whether the device may write into the memory by itself, where its driver can; otherwise the kernel copies. It
    /// wants reserved [huge pages](crate::BatchShape::huge_pages): of ordinary ones it can use only the blocks that lie
    /// within a page, which is every other one.
    pub zero_copy: bool,
    /// What to note with each datagram: packet information, time, traffic class and hop limit. The batch needs the room
    /// for it. The time is when the batch was begun, the same for all in it.
    pub control: Control,
}

impl Options {
    /// A queue, copied by the kernel, with checksums verified or left to the device, without notes. Short payloads are
    /// copied.
    #[must_use]
    pub const fn new(queue: u32) -> Options {
        let checksums = Checksums::VerifiedOrLeftToDevice;
        Options { queue, copy_up_to: 256, checksums, zero_copy: false, control: Control::new() }
    }
}

setters!(Options {
    /// The same with payloads of up to so many bytes copied.
    copy_up_to: usize,
    /// The same with checksums treated so.
    checksums: Checksums,
    /// The same written by the device itself, where that can be.
    zero_copy: bool,
    /// The same with these notes.
    control: Control,
});

/// What became of the frames that an engine has taken out of its ring, as it counts them itself. `frames` is the sum of
/// the datagrams in batches and of [`refused`](Self::refused).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames taken out of the ring.
    pub frames: u64,
    /// Of these: with lengths that contradict each other.
    pub malformed: u64,
    /// Of these: with a wrong checksum of the IPv4 header.
    pub header_checksum: u64,
    /// Of these: with a wrong UDP checksum. 0 where it is not verified.
    pub checksum: u64,
    /// Of these: IPv6 without a UDP checksum. 0 where it is not verified.
    pub no_checksum: u64,
    /// Datagrams that were delivered although their checksum covers addresses and length only, see
    /// [`Checksums::VerifiedOrLeftToDevice`].
    pub left_to_device: u64,
    /// Frames that the last receive call has left in the ring.
    pub waiting: u32,
}

impl Tally {
    /// Frames that were taken out of the ring and are no datagrams; the kernel would have dropped them too.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.malformed + self.header_checksum + self.checksum + self.no_checksum
    }
}
