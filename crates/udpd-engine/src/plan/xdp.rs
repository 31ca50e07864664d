//! Lanes that take a receive queue with AF_XDP: how many frames may wait for each, and what a refusal means.
//!
//! Frames that have arrived and are not received yet lie in the engine's own batches and nowhere else. `absorb` says
//! how many there may be. Where it is not written, the memory for them is limited by that for datagrams, and by half of
//! what this process may lock: a reload makes new engines beside the old ones.

use std::net::{IpAddr, SocketAddr};

use mmsg::xdp::{Mode, Obstacle, Refusal};

use super::kernel_limits::LockableMemory;
use super::lane::{LanePlan, XdpPlan};
use crate::config::{Absorb, Config, ListenerConfig};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::units::print_seconds;

/// The fewest frames of a queue unless `absorb` is written: 1 ms of four million a second, because one queue may get
/// everything.
const FRAMES: u64 = 4096;

/// The fewest batches for frames that wait.
const BATCHES_MIN: usize = 2;

/// Unless `absorb` is written, all queues together have this part of a pool whose size is written, or this many times a
/// pool that udpd sizes itself.
const PART_OF_WRITTEN: usize = 3;
const TIMES_AUTOMATIC: usize = 3;

/// The most that are asked for: some seconds of four million a second.
const FRAMES_MAX: u64 = 1 << 24;

/// The memory of all queues for frames that wait, where `absorb` is not written.
pub(super) fn automatic_room(pool_bytes: Option<usize>, automatic_bytes: usize) -> usize {
    pool_bytes.map_or(automatic_bytes.saturating_mul(TIMES_AUTOMATIC), |bytes| bytes / PART_OF_WRITTEN)
}

/// Turns the plan of a lane into one that takes a receive queue at this rate. `room_bytes` is the queue's part of the
/// memory where `absorb` is not written.
pub(super) fn of_queue(plan: LanePlan, queue: usize, rate: u64, absorb: &Absorb, room_bytes: usize) -> LanePlan {
    let frames = ((rate as f64 * absorb.stall.as_secs_f64()).ceil() as u64).min(FRAMES_MAX);
    let batches = |frames: u64| (frames as usize).div_ceil(plan.shape.slots);
    let batches = match absorb.is_written {
        true => batches(frames),
        false => batches(frames.max(FRAMES)).min(room_bytes / plan.shape.bytes()),
    };
    LanePlan {
        shares: false,
        queues: vec![queue],
        receive_buffer_bytes: 0,
        rate,
        queue_rate: rate,
        xdp: Some(XdpPlan {
            queue: u32::try_from(queue).unwrap_or(u32::MAX),
            batches: batches.max(BATCHES_MIN),
            is_asked: absorb.is_written,
        }),
        ..plan
    }
}

/// Reduces memory that `absorb` does not ask for, until all queues fit twice into what may be locked. A process that
/// the limit does not bind at its start has at least `FRAMES`: then a reload is refused, of which there is a warning.
pub(super) fn fit(lanes: &mut [LanePlan], pinned: &LockableMemory) {
    let Some(limit) = pinned.bytes else { return };
    let least = |lane: &LanePlan| match pinned.is_exempt {
        true => (FRAMES as usize).div_ceil(lane.shape.slots),
        false => BATCHES_MIN,
    };
    let is_free = |lane: &LanePlan| lane.xdp.as_ref().is_some_and(|xdp| !xdp.is_asked && xdp.batches > least(lane));
    loop {
        let locked: usize = lanes.iter().map(LanePlan::locked_bytes).sum();
        let excess = locked.saturating_sub((limit / 2) as usize);
        let free = lanes.iter().filter(|lane| is_free(lane)).count();
        if excess == 0 || free == 0 {
            return;
        }
        for lane in lanes.iter_mut().filter(|lane| is_free(lane)) {
            let (batches, least) = (excess.div_ceil(free).div_ceil(lane.shape.bytes()), least(lane));
            let xdp = lane.xdp.as_mut().expect("it is one of a queue");
            xdp.batches = xdp.batches.saturating_sub(batches).max(least);
        }
    }
}

/// Listeners whose queues have room for less than `absorb`: a line each.
pub(super) fn short_of_absorb(config: &Config, lanes: &[LanePlan]) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate().filter(|(_, listener)| !listener.absorb.is_written) {
        let own = lanes.iter().filter(|lane| lane.listener == index && lane.xdp.is_some());
        let Some(shortest) = own.map(|lane| lane.covered(0)).min() else { continue };
        if shortest < listener.absorb.stall {
            lines.push(format!(
                "listener {}: the frames that wait in a receive queue have room for {} of the {} that absorb asks for, \
                 which is what the memory for datagrams and half of the memory that may be locked leave; raise \
                 [daemon] pool_bytes and RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in the unit file), or write absorb",
                listener.name,
                print_seconds(shortest.as_secs_f64()),
                print_seconds(listener.absorb.stall.as_secs_f64())
            ));
        }
    }
    lines
}

/// The address that is shown for the lane of a queue: one of IPv6 if the listener has any.
pub(super) fn address_shown(listener: &ListenerConfig) -> SocketAddr {
    let v6 = listener.addresses.iter().find(|address| address.is_ipv6());
    *v6.unwrap_or(&listener.addresses[0])
}

/// The addresses that other listeners name at the port of this one. A program at the interface must leave them to
/// those, as the kernel does for a socket on a wildcard address.
pub fn named_by_others(config: &Config, listener: &ListenerConfig) -> Vec<IpAddr> {
    let competes = |other: &&ListenerConfig| {
        // Two of one interface with one port are refused.
        other.name != listener.name && other.interface.is_none()
    };
    let others = config.listeners.iter().filter(competes).flat_map(|other| &other.addresses);
    let port = listener.addresses.first().map(SocketAddr::port);
    let named = others.filter(|address| Some(address.port()) == port && !address.ip().is_unspecified());
    named.map(SocketAddr::ip).collect()
}

/// The mode of the program as the configuration writes it.
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
    use std::time::Duration;

    use mmsg::xdp::{Redirect, Wanted};

    use super::*;
    use crate::config::EngineKind;
    use crate::plan::PipelinePlan;
    use crate::plan::memory_limits::MemoryLimits;
    use crate::plan::testing::plan_with_queues;

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

    /// A plan for a listener with two receive queues, whose keys these are besides.
    fn planned(daemon: &str, keys: &str) -> (Config, PipelinePlan) {
        let text = format!(
            "[daemon]\n{daemon}\n[[listener]]\nname = \"a\"\naddress = \"0.0.0.0:5140\"\nengine = \"af_xdp\"\n\
             interface = \"eth0\"\nsinks = [\"x\"]\n{keys}\n[sink.x]\ntype = \"null\"\n"
        );
        plan_with_queues(&text, EngineKind::AfXdp, 2)
    }

    fn locking(bytes: u64, is_exempt: bool) -> LockableMemory {
        LockableMemory { bytes: Some(bytes), is_exempt }
    }

    fn shortest(plan: &PipelinePlan) -> Duration {
        plan.lanes.iter().filter(|lane| lane.xdp.is_some()).map(|lane| lane.covered(0)).min().expect("queues")
    }

    #[test]
    fn the_default_of_absorb_is_the_room_of_queues_as_it_is_that_of_sockets() {
        let (config, plan) = planned("", "");
        assert!(shortest(&plan) >= Duration::from_millis(250), "{plan:?}");
        assert_eq!(short_of_absorb(&config, &plan.lanes), Vec::<String>::new());
        let written = planned("", "absorb = { rate = 200000, stall = \"250ms\" }").1;
        assert_eq!(shortest(&plan), shortest(&written), "as if it were written");
    }

    #[test]
    fn room_that_is_not_asked_for_ends_with_the_pool_and_is_said() {
        let (config, plan) = planned("pool_bytes = \"24MiB\"", "");
        let frames: usize = plan.lanes.iter().map(LanePlan::ring_bytes).sum();
        assert!(frames <= 8 << 20 && frames > 7 << 20, "a third of it: {frames}");
        let [line] = short_of_absorb(&config, &plan.lanes).try_into().expect("one line");
        for words in ["listener a", "of the 250 ms that absorb asks for", "pool_bytes", "LimitMEMLOCK=infinity"] {
            assert!(line.contains(words), "{words}: {line}");
        }
    }

    #[test]
    fn room_that_is_not_asked_for_fits_twice_into_what_may_be_locked() {
        for limit in [64_u64 << 20, 32 << 20, 20 << 20] {
            let (config, mut plan) = planned("", "");
            plan.fit_locked(&locking(limit, false));
            assert!(2 * plan.locked_bytes() as u64 <= limit, "{limit}: {}", plan.locked_bytes());
            assert!(2 * plan.locked_bytes() as u64 > limit - (2 << 20), "{limit}: {}", plan.locked_bytes());
            assert_eq!(plan.pool.batches_bytes, plan.lanes.iter().map(LanePlan::batches_bytes).sum::<usize>());
            assert_eq!(short_of_absorb(&config, &plan.lanes).len(), 1);
        }
        let (_, mut plan) = planned("", "");
        plan.fit_locked(&locking(1, false));
        assert!(plan.lanes.iter().filter_map(|lane| lane.xdp.as_ref()).all(|xdp| xdp.batches == BATCHES_MIN));
        let (_, mut plan) = planned("", "");
        plan.fit_locked(&locking(1, true));
        let frames = plan.lanes.iter().filter_map(|lane| Some(lane.xdp.as_ref()?.batches * lane.shape.slots));
        assert_eq!(frames.collect::<Vec<_>>(), [4096, 4096], "the start may have it");
        let (_, mut plan) = planned("", "absorb = { rate = 200000, stall = \"250ms\" }");
        let asked = plan.locked_bytes();
        plan.fit_locked(&locking(1, false));
        assert_eq!(plan.locked_bytes(), asked, "what is asked for stays");
    }

    #[test]
    fn what_may_not_be_locked_is_refused_and_what_a_reload_may_not_lock_is_said() {
        let (config, plan) = planned("", "absorb = { rate = 200000, stall = \"250ms\" }");
        let needed = plan.locked_bytes() as u64;
        let judge = |bytes: u64, is_exempt| {
            let limits = MemoryLimits { pinned: locking(bytes, is_exempt), ..MemoryLimits::default() };
            limits.judge(&config, &plan)
        };
        assert_eq!(judge(2 * needed, false).expect("it fits"), Vec::<String>::new());
        let [line] = judge(2 * needed - 1, false).expect("it starts").try_into().expect("one line");
        assert!(line.contains("a reload is refused") && line.contains("LimitMEMLOCK="), "{line}");
        let failure = judge(needed - 1, false).expect_err("too little");
        assert_eq!(failure.code, ExitCode::Permission);
        assert!(failure.message.contains("RLIMIT_MEMLOCK") && failure.message.contains("lower absorb"), "{failure}");
        assert_eq!(judge(1, true).expect("the right stands for the limit").len(), 1, "but not for a reload");
    }

    #[test]
    fn a_wildcard_leaves_others_the_addresses_that_they_name_at_its_port() {
        let of = |text: &str| {
            let host =
                crate::config::HostView { sys_root: "/nonexistent".into(), ..crate::config::HostView::default() };
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
