//! Lanes that take a receive queue past the kernel's stack: how much may wait for each, what is said of them before they
//! are there, and what a refusal means.
//!
//! Frames that have arrived and are not received yet lie in the engine's own batches, which is all the room there is.
//! `absorb` says how many that are, where it is written.

use std::net::SocketAddr;

use mmsg::xdp::{Mode, Obstacle, Refusal};

use super::engine::Choice;
use super::lane::LanePlan;
use super::memory::Bytes;
use super::whole::Plan;
use crate::config::{Config, Listener};
use crate::exit::{ExitCode, Failure};

/// The room for frames of a queue unless `absorb` is written: 20 ms of 200,000 a second, and 1 ms of four million.
const FRAMES: u64 = 4096;

/// The most that are asked for: some seconds of four million a second.
const FRAMES_MAX: u64 = 1 << 24;

/// What a lane has instead of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpPlan {
    /// The receive queue.
    pub queue: u32,
    /// The batches whose memory frames wait in.
    pub batches: usize,
}

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

/// How the program sits at the interface, as it is written.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Generic => "generic",
        _ => "native",
    }
}

/// What will be put at interfaces, and who has no say in it any more: a line for each listener.
pub fn attachments(config: &Config, plan: &Plan) -> Vec<String> {
    let listeners = config.listeners.iter().enumerate();
    let line = |(index, listener): (usize, &Listener)| {
        let own = plan.lanes.iter().filter(|lane| lane.listener == index && lane.xdp.is_some());
        let (queues, bytes) = own.fold((0, 0), |(queues, bytes), lane| (queues + 1, bytes + lane.ring_bytes()));
        let interface = listener.interface.as_deref().filter(|_| queues > 0)?;
        Some(format!(
            "listener {}: an XDP program ({} mode) goes to {interface} and hands over what comes to port {} on {queues} \
             receive queues, with {} for frames that wait; past the kernel's stack are then nftables and iptables, \
             the reverse path filter, and every option and filter of the sockets; tcpdump does not see these \
             datagrams",
            listener.name,
            mode_name(listener.xdp_mode),
            listener.addresses[0].port(),
            Bytes(bytes)
        ))
    };
    listeners.filter_map(line).collect()
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
