//! What `engine = "af_xdp"` asks of the other keys of a listener, and of the other listeners of its interface.
//!
//! A program at an interface knows one port, a queue has one engine, and an interface one program. What the engine
//! cannot do is refused here with the key that asks for it, so that nothing is left out without a word.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mmsg::xdp::{Checksums, Mode};

use crate::config::listener::{Lanes, Listener, Spread};
use crate::settings::{Findings, Section};

/// The shortest slot that a frame of the kernel's can lie in.
const SLOT_BYTES_MIN: usize = 2048;

/// Checks all listeners.
pub(crate) fn check(sections: &[Section<'_, Listener>], findings: &mut Findings<'_>) {
    let mut programs: BTreeMap<String, usize> = BTreeMap::new();
    for section in sections {
        if !section.settings.is_past_the_stack() {
            check_idle_keys(section, findings);
            continue;
        }
        check_interface(section, findings);
        check_ports(section, findings);
        check_others(section, findings);
        let Some(interface) = section.written.text("interface").filter(|found| !found.value.is_empty()) else {
            continue;
        };
        let (line, _) = findings.position(interface.place.offset);
        if let Some(first) = programs.get(&interface.value) {
            let what = format!("the listener at line {first} has the AF_XDP program of {}", interface.value);
            findings.say(&interface.place, what, "an interface has one: write engine = \"auto\" for one of the two");
        } else {
            programs.insert(interface.value, line);
        }
    }
}

/// Keys of the engine without it.
fn check_idle_keys(section: &Section<'_, Listener>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let is_written = [
        ("xdp_mode", listener.xdp_mode != Mode::default()),
        ("xdp_checksums", listener.xdp_checksums != Checksums::default()),
    ];
    for (key, _) in is_written.into_iter().filter(|(_, differs)| *differs) {
        let Some(place) = written.place(key).filter(|_| !written.is_wrong("engine")) else { continue };
        findings.say(&place, "it means nothing to this engine", "write engine = \"af_xdp\", or remove the key");
    }
}

fn check_interface(section: &Section<'_, Listener>, findings: &mut Findings<'_>) {
    let Some(place) = section.written.place("engine") else { return };
    if section.settings.interface.is_none() && !section.written.is_wrong("interface") {
        let cure = "write interface = \"eth0\", whose receive queues it takes, or engine = \"auto\"";
        findings.say(&place, "AF_XDP receives from an interface, and none is named", cure);
    }
}

/// The program compares the port of a frame with one.
fn check_ports(section: &Section<'_, Listener>, findings: &mut Findings<'_>) {
    let Some(place) = section.written.place("address") else { return };
    let ports: Vec<u16> = section.settings.addresses.iter().map(SocketAddr::port).collect();
    let Some(&first) = ports.first() else { return };
    if ports.contains(&0) {
        findings.say(&place, "AF_XDP looks for a port, and 0 is none", "write the port");
    } else if let Some(other) = ports.iter().find(|port| **port != first) {
        let what = format!("AF_XDP looks for one port, and these are {first} and {other}");
        findings.say(&place, what, "write one port, or a listener without AF_XDP for the other");
    }
}

fn check_others(section: &Section<'_, Listener>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let mut refuse = |key: &str, is_so: bool, what: &str, cure: &str| {
        if let Some(place) = written.place(key).filter(|_| is_so && !written.is_wrong(key)) {
            findings.say(&place, what, cure);
        }
    };
    let what = "AF_XDP has one lane for each receive queue, and one for each address";
    refuse("lanes", listener.lanes != Lanes::Auto, what, "write lanes = \"auto\"");
    let what = "with AF_XDP the card chooses the lane of a datagram, by its receive queue";
    refuse("spread", listener.spread != Spread::Flow, what, "write spread = \"flow\", and set up the card's hash");
    let what = "with AF_XDP each frame is a datagram, and there are no trains";
    refuse("gro", listener.gro, what, "write gro = \"off\"");
    let what = "AF_XDP does not tell which datagram came after a loss, so gaps in numbers would have no owner";
    refuse("sequence", listener.sequence.is_some(), what, "write another engine, or no sequence");
    let what = "AF_XDP receives frames where they are to stay, into slots of 2 KiB or more";
    refuse("max_length", listener.max_length_bytes < SLOT_BYTES_MIN, what, "write max_length = \"2KiB\"");
}
