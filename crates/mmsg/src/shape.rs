//! How large a batch is: its slots, their size, and the room for control messages.
//!
//! These numbers make a memory budget: they can be computed and shown before anything is allocated.

use std::io;

use crate::cmsg;
use crate::region::Layout;

/// Slots of a batch that takes GRO trains: the longest train there is. A shorter slot would lose the tail of a train.
const GRO_SLOT_BYTES: usize = 65_536;

/// More slots per call gain nothing and spoil the cache.
const MAX_SLOTS: usize = 65_536;

/// No UDP datagram is longer than 64 KiB; the rest is a margin for round numbers.
const MAX_SLOT_BYTES: usize = 1 << 20;

/// The control messages of one datagram never come near it.
const MAX_OTHER_BYTES: usize = 4096;

/// Methods that return the same structure with one field changed: others cannot write these structures as literals.
macro_rules! setters {
    ($name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        impl $name {
            $(
                $(#[$doc])*
                #[must_use]
                pub const fn $field(self, $field: $kind) -> $name {
                    $name { $field, ..self }
                }
            )*
        }
    };
}
pub(crate) use setters;

/// Which control messages a batch has room for. Ask for what the socket has switched on: the kernel cuts off what has
/// no room, and with GRO a cut message makes its train unreadable.
///
/// ```
/// let control = mmsg::Control::new().timestamps(true).gro(true);
/// assert!(control.timestamps && !control.packet_info);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Destination address and interface.
    pub packet_info: bool,
    /// Kernel arrival time.
    pub timestamps: bool,
    /// Segment size of GRO trains; raises the room of the slots to 64 KiB.
    pub gro: bool,
    /// The socket's drop counter.
    pub drop_overflow: bool,
    /// Traffic class, with ECN in it.
    pub traffic_class: bool,
    /// Hop limit, or TTL with IPv4.
    pub hop_limit: bool,
    /// Arrival time by the device.
    pub hardware_timestamps: bool,
    /// Bytes for control messages that this crate does not name, headers and padding included; 4096 at most.
    pub other_bytes: usize,
}

impl Control {
    /// Room for none.
    #[must_use]
    pub const fn new() -> Control {
        Control {
            packet_info: false,
            timestamps: false,
            gro: false,
            drop_overflow: false,
            traffic_class: false,
            hop_limit: false,
            hardware_timestamps: false,
            other_bytes: 0,
        }
    }

    /// The bytes of those that come with every datagram.
    pub(crate) fn bytes_of_every_datagram(self, is_ipv6: bool) -> usize {
        let every = Control { gro: false, drop_overflow: false, hardware_timestamps: false, ..self };
        let packet_info = if is_ipv6 || !self.packet_info { 0 } else { cmsg::PACKET_INFO_V6_EXTRA };
        every.bytes() - packet_info
    }

    fn bytes(self) -> usize {
        // One line per message that can come with a datagram.
        let named: usize = [
            (self.packet_info, cmsg::PACKET_INFO_SPACE),
            (self.timestamps, cmsg::TIMESTAMP_SPACE),
            (self.gro, cmsg::GRO_SPACE),
            (self.drop_overflow, cmsg::DROP_OVERFLOW_SPACE),
            (self.traffic_class, cmsg::TRAFFIC_CLASS_SPACE),
            (self.hop_limit, cmsg::HOP_LIMIT_SPACE),
            (self.hardware_timestamps, cmsg::HARDWARE_TIMESTAMP_SPACE),
        ]
        .iter()
        .map(|(wanted, space)| if *wanted { *space } else { 0 })
        .sum();
        named.saturating_add(self.other_bytes)
    }
}

setters!(Control {
    /// Room for destination address and interface, or none.
    packet_info: bool,
    /// Room for the kernel's arrival time, or none.
    timestamps: bool,
    /// Room for the segment size of trains, and slots of 64 KiB for them, or none.
    gro: bool,
    /// Room for the socket's drop counter, or none.
    drop_overflow: bool,
    /// Room for the traffic class, or none.
    traffic_class: bool,
    /// Room for the hop limit, or none.
    hop_limit: bool,
    /// Room for the device's arrival time, or none.
    hardware_timestamps: bool,
    /// So much room for other control messages: the sum of `CMSG_SPACE` of C over them.
    other_bytes: usize,
});

/// The shape of a batch.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// How many messages one call can take; from 1 to 65,536. Beyond a few dozen the gain is small.
    pub slots: usize,
    /// The longest datagram kept whole, in bytes: a longer one is cut to its beginning and marked. With `control.gro` a
    /// slot has room for a train of 64 KiB, and this holds for each datagram of it.
    pub slot_bytes: usize,
    /// What else to receive besides the payload.
    pub control: Control,
    /// Ask for huge pages. Not getting them is no error; [`Backing`](crate::Backing) says why.
    pub huge_pages: bool,
}

impl BatchShape {
    /// So many slots of so many bytes, without control messages, on ordinary pages.
    #[must_use]
    pub const fn new(slots: usize, slot_bytes: usize) -> BatchShape {
        BatchShape { slots, slot_bytes, control: Control::new(), huge_pages: false }
    }

    /// The memory of one batch in bytes, headers included. A pool of them rounds up to whole pages.
    pub fn bytes(&self) -> usize {
        let tables = size_of::<u128>() + if self.control.gro { size_of::<usize>() } else { 0 };
        self.layout().bytes().saturating_add(self.slots.saturating_mul(tables))
    }

    pub(crate) fn layout(&self) -> Layout {
        let slot_bytes = if self.control.gro { self.slot_bytes.max(GRO_SLOT_BYTES) } else { self.slot_bytes };
        Layout { slots: self.slots, slot_bytes, control_bytes: self.control.bytes() }
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        check_slots(self.slots, self.slot_bytes)?;
        let other_bytes = self.control.other_bytes;
        if other_bytes > MAX_OTHER_BYTES {
            let text = format!(
                "{other_bytes} bytes for other control messages are not possible: choose up to {MAX_OTHER_BYTES}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }
}

setters!(BatchShape {
    /// With room for these control messages.
    control: Control,
    /// On huge pages, or not.
    huge_pages: bool,
});

/// Refuses shapes that cannot work, before any memory is asked for.
pub(crate) fn check_slots(slots: usize, slot_bytes: usize) -> io::Result<()> {
    if slots == 0 || slots > MAX_SLOTS {
        let text = format!("a batch of {slots} slots is not possible: choose from 1 to {MAX_SLOTS}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if slot_bytes == 0 || slot_bytes > MAX_SLOT_BYTES {
        let text = format!("slots of {slot_bytes} bytes are not possible: choose from 1 to {MAX_SLOT_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: BatchShape = BatchShape::new(64, 2048);

    #[test]
    fn a_batch_without_control_has_no_control_space() {
        assert_eq!(PLAIN.layout().control_bytes, 0);
        assert_eq!(Control::default(), Control::new());
    }

    #[test]
    fn gro_raises_the_slots_to_the_longest_train() {
        let shape = PLAIN.control(Control::new().gro(true));
        assert_eq!(shape.layout().slot_bytes, 65_536);
        assert!(shape.bytes() > 64 * 65_536);
    }

    #[test]
    fn the_memory_of_a_batch_is_slots_headers_and_little_else() {
        let payload = 64 * (2048 + 64);
        assert!(PLAIN.bytes() > payload && PLAIN.bytes() < payload + 64 * 256 + 4096, "{}", PLAIN.bytes());
    }

    #[test]
    fn every_control_message_has_room_of_its_own() {
        let kinds: [fn(Control, bool) -> Control; 7] = [
            Control::packet_info,
            Control::timestamps,
            Control::gro,
            Control::drop_overflow,
            Control::traffic_class,
            Control::hop_limit,
            Control::hardware_timestamps,
        ];
        let alone: Vec<usize> = kinds.iter().map(|kind| kind(Control::new(), true).bytes()).collect();
        assert!(alone.iter().all(|bytes| *bytes >= cmsg::space(1)), "{alone:?}");
        let together = kinds.iter().fold(Control::new().other_bytes(100), |control, kind| kind(control, true));
        assert_eq!(together.bytes(), alone.iter().sum::<usize>() + 100);
        let error = PLAIN.control(Control::new().other_bytes(usize::MAX)).check().expect_err("refused");
        assert!(error.to_string().contains("up to 4096"), "{error}");
    }

    #[test]
    fn a_shape_of_exactly_the_limits_is_possible() {
        let longest = PLAIN.control(Control::new().other_bytes(MAX_OTHER_BYTES));
        BatchShape { slots: MAX_SLOTS, slot_bytes: MAX_SLOT_BYTES, ..longest }.check().expect("the limits themselves");
        BatchShape { slots: 1, slot_bytes: 1, ..PLAIN }.check().expect("the least");
    }

    #[test]
    fn the_tables_of_a_batch_are_a_mask_for_each_slot_and_with_gro_a_size() {
        let tables = |control: Control| {
            let shape = BatchShape::new(10, 65_536).control(control);
            shape.bytes() - shape.layout().bytes()
        };
        assert_eq!((tables(Control::new()), tables(Control::new().gro(true))), (160, 240));
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_limit() {
        for (slots, slot_bytes) in [(0, 1), (MAX_SLOTS + 1, 1), (1, 0), (1, MAX_SLOT_BYTES + 1), (usize::MAX, 1)] {
            let error = BatchShape { slots, slot_bytes, ..PLAIN }.check().expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("choose from 1 to"), "{error}");
        }
    }
}
