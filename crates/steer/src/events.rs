//! Notifications of the kernel about interfaces: one came, went, was renamed, went up or down (rtnetlink), or its
//! queues, rings or hash were changed (the `ethtool` family of generic netlink, from Linux 5.6 on).
//!
//! A notification is a reason to read the settings again, and not enough: much of what undoes steering sends none, a
//! moved interrupt first of all, and a socket that overflows has lost some. So a program that listens also reads the
//! settings from time to time, and all of them after [`LinkEvent::Missed`].

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink::generic::{self, GenericFamily};
use netlink::{NetlinkMessage, NetlinkProtocol, NetlinkSocket, field};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

// Each number with its name in the kernel's headers: linux/rtnetlink.h, linux/if_link.h, linux/ethtool_netlink.h.
const LINK_GROUP: u32 = 1; // RTNLGRP_LINK
const NEW_LINK: u16 = 16; // RTM_NEWLINK
const DELETED_LINK: u16 = 17; // RTM_DELLINK
const LINK_HEADER_BYTES: usize = 16; // sizeof(struct ifinfomsg)
const LINK_INDEX_AT: usize = 4; // offsetof(struct ifinfomsg, ifi_index)
const ANY_FAMILY: u8 = 0; // AF_UNSPEC
const LINK_NAME: u16 = 3; // IFLA_IFNAME
const SETTINGS_FAMILY: &str = "ethtool"; // ETHTOOL_GENL_NAME
const SETTINGS_GROUP: &str = "monitor"; // ETHTOOL_MCGRP_MONITOR_NAME
const SETTINGS_HEADER: u16 = 1; // ETHTOOL_A_CHANNELS_HEADER, and the same of every other kind
const HEADER_INDEX: u16 = 1; // ETHTOOL_A_HEADER_DEV_INDEX
const HEADER_NAME: u16 = 2; // ETHTOOL_A_HEADER_DEV_NAME
const FEATURES: u8 = 13; // ETHTOOL_MSG_FEATURES_NTF
const RINGS: u8 = 17; // ETHTOOL_MSG_RINGS_NTF
const CHANNELS: u8 = 19; // ETHTOOL_MSG_CHANNELS_NTF
const COALESCING: u8 = 21; // ETHTOOL_MSG_COALESCE_NTF
const HASH: u8 = 50; // ETHTOOL_MSG_RSS_NTF

/// One notification.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// Something of an interface has changed, or may have.
    Changed {
        /// Its `ifindex`.
        index: u32,
        /// Its name, as the kernel said it with the notification.
        interface: String,
        /// What of it.
        what: LinkChange,
    },
    /// The kernel had more to say than there was room for: anything may have changed.
    Missed,
}

/// What of an interface has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LinkChange {
    /// It came, was renamed, went up or down, or its link did.
    State,
    /// It is gone.
    Gone,
    /// Its counts of queues.
    Channels,
    /// The lengths of its rings.
    Rings,
    /// Its hash or its indirection table.
    Hash,
    /// When its interrupts fire.
    Coalescing,
    /// Its offloads.
    Features,
    /// Another setting that ethtool knows.
    Other,
}

impl fmt::Display for LinkEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { interface, what, .. } => write!(formatter, "{what} of {interface} changed"),
            Self::Missed => formatter.write_str("notifications were lost"),
        }
    }
}

impl fmt::Display for LinkChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::State => "the state",
            Self::Gone => "the presence",
            Self::Channels => "the channels",
            Self::Rings => "the rings",
            Self::Hash => "the hash or the indirection table",
            Self::Coalescing => "the coalescing",
            Self::Features => "the offloads",
            Self::Other => "a setting",
        })
    }
}

/// Listens for notifications. Needs no privileges.
#[derive(Debug)]
pub struct LinkEvents {
    links: NetlinkSocket,
    /// `None` where the kernel tells nothing of changed settings.
    settings: Option<NetlinkSocket>,
    settings_error: Option<String>,
}

impl LinkEvents {
    /// Begins to listen. An error when not even links are heard of.
    pub fn open() -> io::Result<Self> {
        let links = NetlinkSocket::open(NetlinkProtocol::Route)?;
        links.join(LINK_GROUP)?;
        let (settings, settings_error) = match listen_for_settings() {
            Ok(settings) => (Some(settings), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self { links, settings, settings_error })
    }

    /// Why nothing is heard of changed queues, rings and hashes, where that is so.
    pub fn settings_error(&self) -> Option<&str> {
        self.settings_error.as_deref()
    }

    /// Waits for notifications, for as long as it takes when no `limit` is given. Nothing is returned when the limit
    /// has passed, and may be returned before that.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<Vec<LinkEvent>> {
        let limit = limit.map_or(PollTimeout::NONE, |limit| PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
        let sockets = std::iter::once(&self.links).chain(&self.settings);
        let mut asked: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut asked, limit) {
            Err(Errno::EINTR) => return Ok(Vec::new()),
            outcome => outcome?,
        };
        // An overflow is an error of the socket, and not data.
        let ready: Vec<bool> = asked.iter().map(|asked| asked.any().unwrap_or(true)).collect();
        let mut found = Vec::new();
        let readers = [(Some(&mut self.links), link_in as Reader), (self.settings.as_mut(), setting_in as Reader)];
        for ((socket, read), _) in readers.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            let Some(socket) = socket else { continue };
            if !socket.read_notifications(|message| found.extend(read(message)))? {
                found.push(LinkEvent::Missed);
            }
        }
        Ok(found)
    }
}

fn listen_for_settings() -> io::Result<NetlinkSocket> {
    let missing = || io::Error::other("this kernel has no notifications of ethtool, which came with Linux 5.6");
    let mut generic = NetlinkSocket::open_with_timeout(NetlinkProtocol::Generic)?;
    let family = GenericFamily::find(&mut generic, SETTINGS_FAMILY)?.ok_or_else(missing)?;
    let socket = NetlinkSocket::open(NetlinkProtocol::Generic)?;
    socket.join(family.group(SETTINGS_GROUP).ok_or_else(missing)?)?;
    Ok(socket)
}

/// Reads one notification.
type Reader = fn(NetlinkMessage<'_>) -> Option<LinkEvent>;

/// A notification of rtnetlink. Bridges tell of their ports under a family of their own, which is nothing new.
pub(crate) fn link_in(message: NetlinkMessage<'_>) -> Option<LinkEvent> {
    let what = match message.kind {
        NEW_LINK => LinkChange::State,
        DELETED_LINK => LinkChange::Gone,
        _ => return None,
    };
    let index = field(message.payload, LINK_INDEX_AT).filter(|_| message.payload[0] == ANY_FAMILY)?;
    let interface = message.attributes(LINK_HEADER_BYTES).text(LINK_NAME)?;
    Some(LinkEvent::Changed { index: u32::from_ne_bytes(index), interface, what })
}

/// A notification of the ethtool family.
pub(crate) fn setting_in(message: NetlinkMessage<'_>) -> Option<LinkEvent> {
    let what = match *message.payload.first()? {
        FEATURES => LinkChange::Features,
        RINGS => LinkChange::Rings,
        CHANNELS => LinkChange::Channels,
        COALESCING => LinkChange::Coalescing,
        HASH => LinkChange::Hash,
        _ => LinkChange::Other,
    };
    let header = message.attributes(generic::HEADER_BYTES).nested(SETTINGS_HEADER);
    Some(LinkEvent::Changed { index: header.number(HEADER_INDEX)?, interface: header.text(HEADER_NAME)?, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mutate, numbers};
    use netlink::{NetlinkRequest, attribute, messages};

    fn links_in(datagram: &[u8]) -> Vec<LinkEvent> {
        messages(datagram).filter_map(link_in).collect()
    }

    fn settings_in(datagram: &[u8]) -> Vec<LinkEvent> {
        messages(datagram).filter_map(setting_in).collect()
    }

    fn changed(index: u32, interface: &str, what: LinkChange) -> LinkEvent {
        LinkEvent::Changed { index, interface: interface.to_owned(), what }
    }

    /// A notification of rtnetlink: the header with family and index, and the name.
    fn link(kind: u16, family: u8, index: u32, name: &[u8]) -> Vec<u8> {
        let mut payload = vec![0; LINK_HEADER_BYTES];
        payload[0] = family;
        payload[LINK_INDEX_AT..LINK_INDEX_AT + 4].copy_from_slice(&index.to_ne_bytes());
        payload.extend(numbers(&[(13, 1000)]));
        payload.extend(attribute(LINK_NAME, name));
        NetlinkRequest::new(kind).bytes(&payload).encode(0, 0)
    }

    /// A notification of ethtool.
    fn setting(command: u8, index: u32, name: &[u8]) -> Vec<u8> {
        let header = [numbers(&[(HEADER_INDEX, index)]), attribute(HEADER_NAME, name)].concat();
        // NLA_F_NESTED is set by the kernel.
        let payload = [vec![command, 1, 0, 0], attribute(0x8000 | SETTINGS_HEADER, &header), numbers(&[(2, 8)])];
        NetlinkRequest::new(21).bytes(&payload.concat()).encode(0, 0)
    }

    #[test]
    fn links_that_come_change_and_go_are_told_by_number_and_name() {
        let datagram = [link(NEW_LINK, 0, 2, b"eth0\0"), link(DELETED_LINK, 0, 300, b"a-long-name.123\0")].concat();
        let expected = [changed(2, "eth0", LinkChange::State), changed(300, "a-long-name.123", LinkChange::Gone)];
        assert_eq!(links_in(&datagram), expected);
        assert_eq!(expected[1].to_string(), "the presence of a-long-name.123 changed");
        let bridge = link(NEW_LINK, 7, 2, b"eth0\0");
        assert_eq!(links_in(&bridge), [], "a port of a bridge is told of under another family");
        assert_eq!(links_in(&link(20, 0, 2, b"eth0\0")), [], "an address is no link");
    }

    #[test]
    fn changed_settings_are_told_by_what_was_changed() {
        let kinds = [
            (FEATURES, LinkChange::Features),
            (RINGS, LinkChange::Rings),
            (CHANNELS, LinkChange::Channels),
            (COALESCING, LinkChange::Coalescing),
            (HASH, LinkChange::Hash),
            (5, LinkChange::Other),
        ];
        for (command, what) in kinds {
            assert_eq!(settings_in(&setting(command, 2, b"eth0\0")), [changed(2, "eth0", what)]);
        }
    }

    #[test]
    fn the_running_kernel_is_listened_to_without_privileges_and_a_wait_ends() {
        let mut events = LinkEvents::open().expect("a socket");
        // Whatever happens to the links of this machine meanwhile, both waits come back.
        events.wait(Some(Duration::ZERO)).expect("something or nothing");
        events.wait(Some(Duration::from_millis(1))).expect("something or nothing");
    }

    #[test]
    fn no_datagram_makes_a_reader_panic_or_hang() {
        let links = [link(NEW_LINK, 0, 2, b"eth0\0"), link(DELETED_LINK, 0, 3, b"eth1\0")].concat();
        mutate(&links, |bytes| assert!(links_in(bytes).len() <= 5));
        let settings = [setting(CHANNELS, 2, b"eth0\0"), setting(RINGS, 3, b"eth1\0")].concat();
        mutate(&settings, |bytes| assert!(settings_in(bytes).len() <= 5));
    }
}
