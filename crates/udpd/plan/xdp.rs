//! Lanes that take a receive queue past the kernel's stack: how much may wait for each, and what a refusal means.
//!
//! Frames that have arrived and are not received yet lie in the engine's own batches, which is all the room there is.
//! `absorb` says how many that are, where it is written.

use std::net::{IpAddr, SocketAddr};

use mmsg::xdp::{Mode, Obstacle, Refusal};

use super::engine::Choice;
use super::lane::{LanePlan, XdpPlan};
use crate::config::{Config, Listener};
use crate::exit::{ExitCode, Failure};

/// The room for frames of a queue unless `absorb` is written: 20 ms of 200,000 a second, and 1 ms of four million.
const FRAMES: u64 = 4096;

/// The most that are asked for: some seconds of four million a second.
const FRAMES_MAX: u64 = 1 << 24;

/// Makes a plan one of a lane that takes a receive queue at this rate.
pub(super) fn past_the_stack(plan: LanePlan, queue: usize, rate: u64, engine: Choice) -> LanePlan {
    let frames = match plan.asked_stall.as_nanos() {
        0 => FRAMES,
        _ => (rate as f64 * plan.asked_stall.as_secs_f64()).ceil() as u64,
    };
    let batches = (frames.min(FRAMES_MAX) as usize).div_ceil(plan.shape.slots).max(2);
    LanePlan {
        shares: false,
        queues: vec![queue],
        receive_buffer_bytes: 0,
        rate,
        queue_rate: rate,
        engine,
        xdp: Some(XdpPlan { queue: u32::try_from(queue).unwrap_or(u32::MAX), batches }),
        ..plan
    }
}

/// The address that is shown of a lane that takes whatever the listener takes: the widest.
pub(super) fn address_shown(listener: &Listener) -> SocketAddr {
    let v6 = listener.addresses.iter().find(|address| address.is_ipv6());
    *v6.unwrap_or(&listener.addresses[0])
}

/// What a wildcard address does not stand for: the kernel gives what comes to an address to the listener that names it,
/// and a program at the interface would take that away.
pub fn named_by_others(config: &Config, listener: &Listener) -> Vec<IpAddr> {
    let competes = |other: &&Listener| {
        // Two of one interface with one port are refused.
        other.name != listener.name && other.interface.is_none()
    };
    let others = config.listeners.iter().filter(competes).flat_map(|other| &other.addresses);
    let port = listener.addresses.first().map(SocketAddr::port);
    let named = others.filter(|address| Some(address.port()) == port && !address.ip().is_unspecified());
    named.map(SocketAddr::ip).collect()
}

/// How the program sits at the interface, as it is written.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Generic => "generic",
        _ => "native",
    }
}

/// The failure of a listener whose program or engine is refused.
pub fn refused(listener: &str, refusal: &Refusal) -> Failure {
    let code = match refusal.obstacle() {
        Obstacle::Forbidden => ExitCode::Permission,
        Obstacle::Unfit => ExitCode::Configuration,
        _ => ExitCode::Unavailable,
    };
    let message = format!("listener {listener}: {refusal}; or write engine = \"auto\", which uses recvmmsg");
    Failure::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmsg::xdp::{Redirect, Wanted};

    #[test]
    fn what_is_no_interface_for_it_is_a_wrong_configuration() {
        for (name, words) in [("nothing0", "no interface of that name"), ("lo", "no Ethernet interface")] {
            let refusal = Redirect::attach(&Wanted::new(name, 5140), &[]).expect_err("refused");
            let failure = refused("in", &refusal);
            assert_eq!(failure.code, ExitCode::Configuration, "{failure}");
            assert!(failure.message.starts_with("listener in: ") && failure.message.contains(words), "{failure}");
            assert!(failure.message.ends_with("write engine = \"auto\", which uses recvmmsg"), "{failure}");
        }
    }

    #[test]
    fn a_wildcard_leaves_others_the_addresses_that_they_name_at_its_port() {
        let of = |text: &str| {
            let host = crate::config::Host { sys_root: "/nonexistent".into(), ..crate::config::Host::default() };
            let all = "engine = \"af_xdp\"\ninterface = \"eth0\"\naddress = \"0.0.0.0:514\"\n";
            let listeners = [("all", all), ("one", text)]
                .map(|(name, lines)| format!("[[listener]]\nname = \"{name}\"\nsinks = [\"out\"]\n{lines}\n"));
            let text = format!("{}[sink.out]\ntype = \"null\"\n", listeners.concat());
            let config = Config::parse(&text, "f", &host).expect("valid");
            named_by_others(&config, &config.listeners[0])
        };
        let named: IpAddr = "10.0.0.1".parse().expect("valid");
        assert_eq!(of("address = \"10.0.0.1:514\""), [named]);
        let eth1 = "address = \"10.0.0.1:514\"\ninterface = \"eth1\"";
        for elsewhere in ["address = \"10.0.0.1:515\"", eth1, "address = \"[::]:514\""] {
            assert_eq!(of(elsewhere), Vec::<IpAddr>::new(), "{elsewhere}");
        }
    }
}
