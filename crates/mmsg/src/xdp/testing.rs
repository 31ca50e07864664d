//! Frames for the tests of AF_XDP, built field by field in the order of the wire. Each field can be made to lie.

use std::net::IpAddr;

/// What a frame is made of.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) payload: Vec<u8>,
    pub(super) tag: Option<u16>,
    /// The fragment field of IPv4.
    pub(super) fragment: u16,
    /// What the UDP header says of its length, if not the truth.
    pub(super) udp_bytes: Option<u16>,
    /// What it says of its checksum.
    pub(super) checksum: Option<u16>,
    /// Add up no more than addresses and length.
    pub(super) leave_checksum: bool,
}

impl Sample {
    pub(super) fn v4(payload: &[u8]) -> Sample {
        Sample::between("10.8.0.2", "10.8.0.1", payload)
    }

    pub(super) fn v6(payload: &[u8]) -> Sample {
        Sample::between("fd00::2", "fd00::1", payload)
    }

    /// Of either family, with up to `longest` bytes of payload.
    pub(super) fn random(random: &mut fastrand::Rng, longest: usize) -> Sample {
        let mut payload = vec![0; random.usize(..longest)];
        random.fill(&mut payload);
        if random.bool() { Sample::v4(&payload) } else { Sample::v6(&payload) }
    }

    fn between(source: &str, destination: &str, payload: &[u8]) -> Sample {
        Sample {
            source: source.parse().expect("valid"),
            destination: destination.parse().expect("valid"),
            payload: payload.to_vec(),
            tag: None,
            fragment: 0,
            udp_bytes: None,
            checksum: None,
            leave_checksum: false,
        }
    }

    pub(super) fn tagged(mut self, tag: u16) -> Sample {
        self.tag = Some(tag);
        self
    }

    /// The frame, from port 4444 to port 5140.
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if let Some(tag) = self.tag {
            frame.extend([0x81, 0x00]);
            frame.extend(tag.to_be_bytes());
        }
        let datagram = self.datagram();
        let bytes = datagram.len() as u16;
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([0x08, 0x00]);
                let mut header = vec![0x45, 0xb9];
                header.extend((20 + bytes).to_be_bytes());
                header.extend([0x12, 0x34]);
                header.extend(self.fragment.to_be_bytes());
                header.extend([64, 17, 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                let checksum = complement(&[&header]);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                frame.extend(header);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x6b, 0x90, 0, 0]);
                frame.extend(bytes.to_be_bytes());
                frame.extend([17, 64]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            _ => panic!("one family"),
        }
        frame.extend(datagram);
        frame
    }

    fn datagram(&self) -> Vec<u8> {
        let facts = self.udp_bytes.unwrap_or(8 + self.payload.len() as u16);
        let mut datagram = Vec::new();
        datagram.extend(4444_u16.to_be_bytes());
        datagram.extend(5140_u16.to_be_bytes());
        datagram.extend(facts.to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(&self.payload);
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let pseudo =
            [octets(self.source), octets(self.destination), facts.to_be_bytes().to_vec(), vec![0, 17]].concat();
        let covered = &datagram[..datagram.len().min(usize::from(facts))];
        let checksum = match self.checksum {
            Some(checksum) => checksum,
            None if self.leave_checksum => !complement(&[&pseudo]),
            // A sum of 0 is sent as its other form, because 0 means that there is none.
            None => Some(complement(&[&pseudo, covered])).filter(|sum| *sum != 0).unwrap_or(u16::MAX),
        };
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        datagram
    }
}

/// Overwrites up to two bytes at random places below `within`, and cuts some frames, but not to less than `least`.
pub(super) fn damage(frame: &mut Vec<u8>, random: &mut fastrand::Rng, within: usize, least: usize) {
    for _ in 0..random.usize(..3) {
        let at = random.usize(..within).min(frame.len() - 1);
        frame[at] = random.u8(..);
    }
    frame.truncate(random.usize(..frame.len() * 4).max(least));
}

/// The checksum of the Internet, as RFC 1071 writes it; each part begins on an even byte.
fn complement(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
