//! No socket has the port: nobody listens, on another address only, or in another network namespace.
//!
//! The kernel counts this for all ports together. So it is a loss of the port that was asked about only where nobody
//! here has that port; elsewhere it is told without a number of its own.

use crate::explain::evidence::Evidence;
use crate::explain::finding::{Cure, Finding, Layer};
use udpd_base::text::tables::grouped;

pub fn no_listener(evidence: &Evidence) -> Vec<Finding> {
    let Some(lost) = evidence.stack.no_ports.filter(|count| *count > 0) else { return Vec::new() };
    let asked = evidence.asked_port;
    let sockets = evidence.ports.iter().find(|port| Some(port.port) == asked).map(|port| port.sockets.as_slice());
    if sockets.is_some_and(|sockets| !sockets.is_empty()) || (asked.is_none() && !evidence.listeners.is_empty()) {
        return vec![of_others(evidence, lost)];
    }
    let name = asked.map_or("ports without a socket".to_owned(), |port| format!("port {port}"));
    let on = asked.map_or("a port".to_owned(), |port| format!("port {port}"));
    let finding = Finding::new("no_listener", Layer::Udp, name, (lost, "datagrams"));
    if let Some((found, port)) = evidence.elsewhere.first().zip(asked) {
        let cause = format!(
            "they came for {on} of this network namespace, where no socket has it; {} (pid {}) listens in another one",
            found.command, found.pid
        );
        let command = format!("nsenter --target {} --net udpd explain --port {port}", found.pid);
        let note = "shows that namespace; publish the container's port, run it in the host's network, or send there";
        return vec![finding.because(cause).cured_by([Cure::command(command, note)])];
    }
    let cause = format!("nobody listens on {on}: the kernel answers with an ICMP error and drops");
    let cure = match asked {
        Some(port) => Cure::command(
            format!("udpd run --listen 0.0.0.0:{port} --to null:"),
            "or start whoever should listen there; ss -ulpn shows who listens where",
        ),
        None => Cure::command(
            "ss -ulpn",
            "shows who listens where; the kernel does not count the ports: tcpdump -n icmp shows its answers with them",
        ),
    };
    vec![finding.because(cause).cured_by([cure])]
}

/// Somebody listens where it matters, and the kernel counts all ports together.
fn of_others(evidence: &Evidence, lost: u64) -> Finding {
    let addresses = evidence.ports.iter().flat_map(|port| &port.sockets).map(|socket| socket.address.as_str());
    let mut specific: Vec<&str> =
        addresses.filter(|it| !it.starts_with("0.0.0.0:") && !it.starts_with("[::]:")).collect();
    specific.sort_unstable();
    specific.dedup();
    let only = match specific.as_slice() {
        [] => String::new(),
        some => format!("; a socket that is bound to {} takes only what is sent to that address", some.join(" or ")),
    };
    let cause = format!(
        "{} datagrams of this network namespace came for a port or an address that no socket has: the kernel counts \
         them all together{only}",
        grouped(lost)
    );
    let note = "tcpdump -n icmp shows the kernel's answers with their ports; udpd explain --port N says who has one";
    Finding::new("other_ports", Layer::Udp, "ports without a socket", (0, "datagrams"))
        .because(cause)
        .cured_by([Cure::elsewhere(note)])
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::testing::{first, told};
    use crate::explain::evidence::{Elsewhere, Evidence, Port, Socket, Stack};

    fn unheard() -> Evidence {
        let stack = Stack { no_ports: Some(50), ..Stack::default() };
        Evidence { seconds: 5.0, stack, asked_port: Some(514), ..Evidence::default() }
    }

    #[test]
    fn a_port_without_a_listener_gets_one() {
        let command = "udpd run --listen 0.0.0.0:514 --to null:".to_owned();
        assert_eq!(told(&unheard()), ("no_listener", 50, command));
        let nobody_asked = Evidence { asked_port: None, ..unheard() };
        assert_eq!(told(&nobody_asked), ("no_listener", 50, "ss -ulpn".to_owned()));
    }

    #[test]
    fn a_listener_in_another_namespace_is_named() {
        let mut evidence = unheard();
        evidence.elsewhere.push(Elsewhere { pid: 77, command: "rsyslogd".into() });
        assert!(told(&evidence).2.starts_with("nsenter --target 77 --net "), "{:?}", told(&evidence));
        assert!(first(&evidence).cause.contains("rsyslogd (pid 77) listens in another one"));
    }

    #[test]
    fn what_is_known_of_all_ports_alone_is_no_loss_of_one_that_is_read() {
        let mut evidence = unheard();
        let socket = Socket { address: "127.0.0.1:514".into(), ..Socket::default() };
        evidence.ports.push(Port { port: 514, sockets: vec![socket], reader: None });
        assert_eq!((first(&evidence).case, first(&evidence).lost), ("other_ports", 0));
        assert!(first(&evidence).cause.contains("bound to 127.0.0.1:514"), "{:?}", first(&evidence));
    }
}
