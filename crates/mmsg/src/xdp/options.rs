//! What is asked of AF_XDP, and what the engine counts.

use crate::shape::{Control, setters};

/// How a program sits at an interface.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel has made anything of a frame (`XDP_FLAGS_DRV_MODE`).
    #[default]
    Native,
    /// Above the driver, with every driver, and slower than that (`XDP_FLAGS_SKB_MODE`). There a train, of a sender on
    /// this host or made by the kernel (GRO), is one frame with one UDP header. The kernel is asked which ones are
    /// trains (`CAP_PERFMON`, a kernel that describes its types), and where that cannot be, whatever has a checksum
    /// that was left to the device is taken for one. They pass to the stack, which cuts them.
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
    /// How the program sits there.
    pub mode: Mode,
    /// Whether frames with a VLAN tag are taken too. Which VLAN it is of is not looked at. The kernel would have given
    /// them to the interface of that VLAN; so this is for hosts where the addresses are those of all VLANs.
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

    /// The same with a program that sits so.
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

/// What is made of UDP checksums. The device has verified them for most frames, but an AF_XDP socket is not told for
/// which. The checksum of an IPv4 header is always verified, and IPv4 without a UDP checksum is always legal.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// They are not looked at.
    Unverified,
    /// A wrong one is refused, but taken if it is the sum of addresses and length alone: a sender on this host leaves
    /// the rest to the device, and a virtual cable has none. One wrong checksum in 65,536 looks like that by chance.
    #[default]
    VerifiedOrLeftToDevice,
    /// Whatever is wrong is refused, which is right for what came over a wire. Senders on this host are then refused
    /// too, where nothing has completed their checksums.
    Verified,
}

/// How one queue of an interface is received.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The receive queue, from 0.
    pub queue: u32,
    /// Payloads of up to so many bytes are copied into the batch's own memory, longer ones change places with it; 0
    /// copies none.
    pub copy_up_to: usize,
    /// What is made of UDP checksums.
    pub checksums: Checksums,
    /// Whether the device may write into the memory by itself, where its driver can; otherwise the kernel copies. It
    /// wants memory on [huge pages](crate::BatchShape::huge_pages) that the administrator has set aside: on ordinary
    /// ones it can use only those blocks of the reserve that lie within a page, which is every other one.
    pub zero_copy: bool,
    /// What to note down with each datagram, of packet information, time, traffic class and hop limit: the batch needs
    /// the room for it. The time is that of the moment a batch was begun, the same for all in it.
    pub control: Control,
}

impl Options {
    /// A queue, copied by the kernel, with checksums verified or left to the device, and nothing noted down. Short
    /// payloads are copied.
    #[must_use]
    pub const fn new(queue: u32) -> Options {
        let checksums = Checksums::VerifiedOrLeftToDevice;
        Options { queue, copy_up_to: 256, checksums, zero_copy: false, control: Control::new() }
    }
}

setters!(Options {
    /// The same with payloads of up to so many bytes copied.
    copy_up_to: usize,
    /// The same with this made of checksums.
    checksums: Checksums,
    /// The same by the device itself, where that can be.
    zero_copy: bool,
    /// The same with this noted down.
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
