//! What `engine = "af_xdp"` requires of the other keys of a listener, and of other listeners on its interface.
//!
//! A program at an interface knows one port, a queue has one engine, and an interface one program. What the engine
//! cannot do is refused here with the key that asks for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mmsg::xdp::{Checksums, Mode};

use crate::config::listener::{Lanes, ListenerConfig, Spread};
use udpd_base::settings::{Findings, Section};

/// The shortest slot that the kernel accepts for a frame.
pub const SLOT_BYTES_MIN: usize = 2048;

/// Checks all listeners.
pub(super) fn check(sections: &[Section<'_, ListenerConfig>], findings: &mut Findings<'_>) {
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

/// Refuses keys of AF_XDP with another engine.
fn check_idle_keys(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
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

fn check_interface(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Some(place) = section.written.place("engine") else { return };
    if section.settings.interface.is_none() && !section.written.is_wrong("interface") {
        let cure = "write interface = \"eth0\", whose receive queues it takes, or engine = \"auto\"";
        findings.say(&place, "AF_XDP receives from an interface, and none is named", cure);
    }
}

/// The program compares the port of a frame with one port only.
fn check_ports(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Some(place) = section.written.place("address") else { return };
    let ports: Vec<u16> = section.settings.addresses.iter().map(SocketAddr::port).collect();
    let Some(&first) = ports.first() else { return };
    if let Some(other) = ports.iter().find(|port| **port != first) {
        let what = format!("AF_XDP looks for one port, and these are {first} and {other}");
        findings.say(&place, what, "write one port, or a listener without AF_XDP for the other");
    }
}

fn check_others(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
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
    refuse("gro", listener.gro.is_on(), what, "write gro = \"off\"");
    let what = "AF_XDP receives frames where they are to stay, into slots of 2 KiB or more";
    refuse("max_length", listener.max_length_bytes < SLOT_BYTES_MIN, what, "write max_length = \"2KiB\"");
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, HostView};

    /// What is wrong with listeners on eth0 that have these lines besides.
    fn problems(listeners: &[&str]) -> Vec<String> {
        let mut text = String::from("[sink.out]\ntype = \"null\"\n");
        for (number, lines) in listeners.iter().enumerate() {
            let port = if lines.contains("address") {
                String::new()
            } else {
                format!("address = \"0.0.0.0:{}\"", 5140 + number)
            };
            text.push_str(&format!("[[listener]]\nname = \"l{number}\"\n{port}\nsinks = [\"out\"]\n{lines}\n"));
        }
        // A host without /sys names no interfaces that it lacks.
        let host = HostView { sys_root: "/nonexistent".into(), ..HostView::default() };
        let parsed = Config::parse(&text, "f", &host);
        parsed.map_or_else(|problems| problems.list().iter().map(ToString::to_string).collect(), |_| Vec::new())
    }

    const AF_XDP: &str = "engine = \"af_xdp\"\ninterface = \"eth0\"";

    #[test]
    fn what_the_engine_cannot_do_is_refused_with_its_key() {
        assert_eq!(problems(&[AF_XDP]), Vec::<String>::new());
        assert_eq!(problems(&[&format!("{AF_XDP}\nsequence = \"netflow9\"")]), Vec::<String>::new());
        let both = format!("{AF_XDP}\naddress = [\"0.0.0.0:514\", \"[::1]:514\"]\nxdp_mode = \"generic\"");
        assert_eq!(problems(&[&both]), Vec::<String>::new());
        for (lines, key, words) in [
            ("lanes = 2", "lanes", "one lane for each receive queue"),
            ("spread = \"cpu\"", "spread", "the card chooses"),
            ("gro = \"on\"", "gro", "no trains"),
            ("max_length = \"1KiB\"", "max_length", "2 KiB"),
            ("address = [\"127.0.0.1:514\", \"[::1]:515\"]", "address", "these are 514 and 515"),
        ] {
            let [problem] = problems(&[&format!("{AF_XDP}\n{lines}")]).try_into().expect("one");
            let problem: String = problem;
            assert!(problem.contains(key) && problem.contains(words), "{lines}: {problem}");
        }
    }

    #[test]
    fn an_interface_has_one_program_and_without_one_the_keys_of_it_mean_nothing() {
        let two = problems(&[AF_XDP, AF_XDP]);
        assert!(two.len() == 1 && two[0].contains("an interface has one"), "{two:?}");
        let other = AF_XDP.replace("eth0", "eth1");
        assert_eq!(problems(&[AF_XDP, &other]), Vec::<String>::new());
        let nowhere = problems(&["engine = \"af_xdp\""]);
        assert!(nowhere.len() == 1 && nowhere[0].contains("none is named"), "{nowhere:?}");
        let idle = problems(&["xdp_checksums = \"strict\""]);
        assert!(idle.len() == 1 && idle[0].contains("means nothing to this engine"), "{idle:?}");
    }
}
