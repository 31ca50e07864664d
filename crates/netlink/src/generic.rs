//! The families of generic netlink. Each boot gives them other numbers, so a family is asked for by its name.

use crate::message::{Attributes, NetlinkMessage, NetlinkRequest};
use crate::socket::{NetlinkSocket, Result};

/// The length of the fixed structure of every message (`struct genlmsghdr`): attributes follow it.
pub const HEADER_BYTES: usize = 4; // GENL_HDRLEN

// Each number with its name in linux/genetlink.h.
const CONTROL_FAMILY: u16 = 0x10; // GENL_ID_CTRL
const GET_FAMILY: u8 = 3; // CTRL_CMD_GETFAMILY
const FAMILY_ID: u16 = 1; // CTRL_ATTR_FAMILY_ID
const FAMILY_NAME: u16 = 2; // CTRL_ATTR_FAMILY_NAME
const FAMILY_GROUPS: u16 = 7; // CTRL_ATTR_MCAST_GROUPS
const GROUP_NAME: u16 = 1; // CTRL_ATTR_MCAST_GRP_NAME
const GROUP_ID: u16 = 2; // CTRL_ATTR_MCAST_GRP_ID
const VERSION: u8 = 1; // NETDEV_FAMILY_VERSION, ETHTOOL_GENL_VERSION, and what the control family takes as well

/// The numbers that this boot gave to a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenericFamily {
    /// The kind of its messages.
    pub id: u16,
    /// Its multicast groups, each by its name.
    groups: Vec<(String, u32)>,
}

impl GenericFamily {
    /// Asks for a family on a socket of [`NetlinkProtocol::Generic`](crate::NetlinkProtocol::Generic); `None` where the
    /// kernel does not have it.
    pub fn find(socket: &mut NetlinkSocket, name: &str) -> Result<Option<Self>> {
        let name = [name.as_bytes(), &[0]].concat();
        let mut found = None;
        let request = request(CONTROL_FAMILY, GET_FAMILY).attribute(FAMILY_NAME, &name);
        match socket.ask(request, |answer| found = Self::read(answer)) {
            Err(error) if error.errno() == Some(nix::libc::ENOENT) => Ok(None),
            outcome => outcome.map(|()| found),
        }
    }

    /// The number of a multicast group of this family.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(own, _)| own == name).map(|(_, id)| *id)
    }

    /// A request for one of its commands.
    pub fn request(&self, command: u8) -> NetlinkRequest {
        request(self.id, command)
    }

    pub(crate) fn read(answer: NetlinkMessage<'_>) -> Option<Self> {
        let attributes = answer.attributes(HEADER_BYTES);
        let id = u16::try_from(attributes.number(FAMILY_ID)?).ok()?;
        let group = |(_, bytes)| {
            let group = Attributes::new(bytes);
            Some((group.text(GROUP_NAME)?, group.number(GROUP_ID)?))
        };
        Some(Self { id, groups: attributes.nested(FAMILY_GROUPS).each().filter_map(group).collect() })
    }
}

fn request(family: u16, command: u8) -> NetlinkRequest {
    NetlinkRequest::new(family).bytes(&[command, VERSION, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::messages;
    use crate::socket::NetlinkProtocol;
    use crate::testing::{mutate, recorded};

    /// What Linux 6.18 answers about its control family.
    const NLCTRL: &str = "88000000100000000700000070610000 01020000 0b0002006e6c6374726c0000 0600010010000000
        080003000200000008000400000000000800050000000000
        2c000600140001000800010003000000080002000e00000014000200080001000a000000080002000c000000
        1c0007001800010008000200100000000b0001006e6f746966790000";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_family_is_read_with_its_groups() {
        let family = messages(&recorded(NLCTRL)).find_map(GenericFamily::read).expect("a family");
        assert_eq!((family.id, family.group("notify"), family.group("none")), (0x10, Some(16), None));
    }

    #[test]
    fn the_running_kernel_tells_its_control_family_and_that_it_lacks_another() {
        let mut socket = NetlinkSocket::open(NetlinkProtocol::Generic).expect("generic netlink");
        let control = GenericFamily::find(&mut socket, "nlctrl").expect("an answer").expect("every kernel has it");
        assert_eq!(control.id, CONTROL_FAMILY);
        assert!(control.group("notify").is_some(), "{control:?}");
        assert_eq!(GenericFamily::find(&mut socket, "no-such-family").expect("an answer"), None);
    }

    #[test]
    fn no_answer_makes_the_reader_panic() {
        mutate(&recorded(NLCTRL), |bytes| assert!(messages(bytes).filter_map(GenericFamily::read).count() <= 9));
    }
}
