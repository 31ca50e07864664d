//! The command that an administrator would type for each change. It is printed beside every change that is made, so
//! that an administrator can check, repeat or undo it without this program.

use super::{Channels, Coalescing, Family, FlowHash, Rings, Rule};

/// Sets the counts that are in use and leaves out the kinds that the device does not have.
pub(crate) fn set_channels(interface: &str, channels: &Channels) -> String {
    let kinds = [
        ("rx", channels.rx, channels.rx_max),
        ("tx", channels.tx, channels.tx_max),
        ("combined", channels.combined, channels.combined_max),
    ];
    let wanted: String =
        kinds.iter().filter(|(_, _, most)| *most > 0).map(|(kind, count, _)| format!(" {kind} {count}")).collect();
    format!("ethtool -L {interface}{wanted}")
}

/// Sets the length of the receive ring.
pub(crate) fn set_rings(interface: &str, rings: &Rings) -> String {
    format!("ethtool -G {interface} rx {}", rings.rx)
}

/// Sets the indirection table.
pub(crate) fn set_indirection(interface: &str, table: &[u32]) -> String {
    let queues = table.iter().max().map_or(0, |highest| highest + 1);
    // What "equal" means to ethtool: entry i gets queue i mod N.
    if (0..queues).cycle().zip(table).all(|(queue, &entry)| queue == entry) {
        return format!("ethtool -X {interface} equal {queues}");
    }
    let weights: String =
        (0..queues).map(|queue| format!(" {}", table.iter().filter(|&&entry| entry == queue).count())).collect();
    format!("ethtool -X {interface} weight{weights}")
}

/// Sets what is hashed of UDP.
pub(crate) fn set_flow_hash(interface: &str, family: Family, hash: FlowHash) -> String {
    let letters = hash.letters();
    let letters = if letters.is_empty() { "r" } else { &letters };
    format!("ethtool -N {interface} rx-flow-hash {} {letters}", family.flow())
}

/// Sets when the device announces.
pub(crate) fn set_coalescing(interface: &str, coalescing: &Coalescing) -> String {
    let Coalescing { rx_usecs, rx_frames, adaptive_rx } = coalescing;
    let adaptive = if *adaptive_rx { "on" } else { "off" };
    format!("ethtool -C {interface} adaptive-rx {adaptive} rx-usecs {rx_usecs} rx-frames {rx_frames}")
}

/// Sends the datagrams of a rule to its queue.
pub(crate) fn insert_rule(interface: &str, rule: &Rule) -> String {
    let flow = rule.family.flow();
    let address = rule.destination.map_or(String::new(), |address| format!(" dst-ip {address}"));
    format!("ethtool -N {interface} flow-type {flow}{address} dst-port {} action {}", rule.port, rule.queue)
}

/// Deletes the rule at a place.
pub(crate) fn delete_rule(interface: &str, place: u32) -> String {
    format!("ethtool -N {interface} delete {place}")
}

/// Writes a file below /sys or /proc.
pub(crate) fn write_file(path: &str, value: &str) -> String {
    format!("echo {value} > {path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_said_in_the_words_of_ethtool() {
        let combined = Channels { combined: 4, combined_max: 8, other: 1, other_max: 1, ..Channels::default() };
        let split = Channels { rx: 2, rx_max: 4, tx: 3, tx_max: 4, ..Channels::default() };
        let rule = Rule { family: Family::V4, destination: None, port: 514, queue: 7 };
        let to_one = Rule { family: Family::V6, destination: "2001:db8::1".parse().ok(), ..rule.clone() };
        let coalescing = Coalescing { rx_usecs: 50, rx_frames: 0, adaptive_rx: false };
        for (command, expected) in [
            (set_channels("eth0", &combined), "-L eth0 combined 4"),
            (set_channels("eth0", &split), "-L eth0 rx 2 tx 3"),
            (set_indirection("eth0", &[0, 1, 2, 0, 1, 2]), "-X eth0 equal 3"),
            (set_indirection("eth0", &[0, 0, 1, 0]), "-X eth0 weight 3 1"),
            (set_flow_hash("eth0", Family::V6, FlowHash::ADDRESSES_AND_PORTS), "-N eth0 rx-flow-hash udp6 sdfn"),
            (set_flow_hash("eth0", Family::V4, FlowHash::ADDRESSES), "-N eth0 rx-flow-hash udp4 sd"),
            (insert_rule("eth0", &rule), "-N eth0 flow-type udp4 dst-port 514 action 7"),
            (insert_rule("eth0", &to_one), "-N eth0 flow-type udp6 dst-ip 2001:db8::1 dst-port 514 action 7"),
            (delete_rule("eth0", 1021), "-N eth0 delete 1021"),
            (set_coalescing("eth0", &coalescing), "-C eth0 adaptive-rx off rx-usecs 50 rx-frames 0"),
        ] {
            assert_eq!(command, format!("ethtool {expected}"));
        }
    }
}
