//! Makes the socket of a lane, with every option that it needs before it is bound, for the first socket of a lane and
//! for one that takes its place. What cannot be had is an error where the listener would not be what was asked for, and
//! a warning where it is only slower; each says the option, the value and the cure.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mmsg::{Engine, Family, GrantedBuffer, Socket};

use super::{lane_setup::LaneSetup, multicast};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::units::print_duration;
use udpd_sandbox::privilege_helper::{self, PrivilegedOp};

/// The most packets that one look at a device's queue takes: as many as a softirq would.
const BUSY_POLL_BUDGET_MAX: usize = 64;

/// How many it takes unless told otherwise.
const BUSY_POLL_BUDGET_FREE: u16 = 8;

/// A socket with all its options, not bound yet, and the receive buffer that it was granted.
pub(super) fn make(setup: &LaneSetup) -> Result<(Socket, GrantedBuffer), Failure> {
    let LaneSetup { plan, listener, .. } = setup;
    let family = match plan.address {
        SocketAddr::V4(_) => Family::V4,
        SocketAddr::V6(_) => Family::V6,
    };
    let socket = Socket::new(family).map_err(|error| {
        let message = format!("listener {}: cannot make a socket for {}: {error}", listener.name, plan.address);
        Failure::new(ExitCode::Unavailable, message)
    })?;
    if let SocketAddr::V6(address) = plan.address {
        let only = !address.ip().is_unspecified();
        socket.set_v6_only(only).or_else(|error| refuse(setup, "IPV6_V6ONLY", &only, &error))?;
    }
    if let Some(interface) = &listener.interface {
        socket.bind_to_device(interface).map_err(|error| {
            let cure = "; the interface must exist, and kernels before 5.7 want CAP_NET_RAW";
            cannot_set(setup, "SO_BINDTODEVICE", interface, ExitCode::Unavailable, cure, &error)
        })?;
    }
    enable_gro(setup, &socket)?;
    let buffer = set_options(setup, &socket, true)?;
    Ok((socket, buffer))
}

/// Gives an inherited socket the options of this lane, but GRO ([`enable_gro`]). It is bound, and goes on receiving.
pub(super) fn adopt(setup: &LaneSetup, socket: &Socket) -> Result<GrantedBuffer, Failure> {
    // The filter of a process that is gone, which counted with it.
    socket.accept_arrivals().or_else(|error| refuse(setup, "SO_DETACH_FILTER", &0, &error))?;
    set_options(setup, socket, false)
}

/// Has the kernel join datagrams into trains, if the lane takes them. What has come as a train stays one, so no
/// receiver without GRO may read from the socket any more.
pub(super) fn enable_gro(setup: &LaneSetup, socket: &Socket) -> Result<(), Failure> {
    if !setup.plan.shape.control.gro {
        return Ok(());
    }
    let cure = "; gro needs Linux 5.0, set gro = \"off\"";
    socket.set_gro(true).map_err(|error| cannot_set(setup, "UDP_GRO", &true, ExitCode::Failure, cure, &error))
}

/// Gives a socket that another lane or process still receives from as much room as this lane wants, and nothing that
/// the other could not cope with. The rest is for [`change`].
pub(super) fn widen(setup: &LaneSetup, socket: &Socket) -> Result<GrantedBuffer, Failure> {
    grant(setup, socket, false)
}

/// Gives a socket the receive buffer of this lane, or leaves it as it is where that serves the lane better.
///
/// A daemon that made its buffers with CAP_NET_ADMIN has lost that in its sandbox, and then the kernel cuts each wish
/// down to `net.core.rmem_max`, without an error. So a socket beside this one is asked first what can be had now.
fn grant(setup: &LaneSetup, socket: &Socket, may_lower: bool) -> Result<GrantedBuffer, Failure> {
    let wanted = setup.plan.receive_buffer_bytes;
    let ask = || {
        let as_it_is = socket.receive_buffer(wanted)?;
        if as_it_is.granted_bytes == 2 * wanted {
            return Ok(as_it_is);
        }
        let within_reach = privilege_helper::receive_buffer(&Socket::new(socket.family())?, wanted)?;
        if is_better(within_reach.granted_bytes, wanted, as_it_is.granted_bytes, may_lower) {
            privilege_helper::receive_buffer(socket, wanted)
        } else {
            Ok(as_it_is)
        }
    };
    ask().map_err(|error| cannot_set(setup, "SO_RCVBUF", &wanted, ExitCode::Failure, "", &error))
}

/// Whether a buffer that can be had now serves a lane better than the one that its socket has. What is cut down is
/// better only than something smaller.
fn is_better(within_reach: usize, wanted: usize, has: usize, may_lower: bool) -> bool {
    let is_cut_down = within_reach < 2 * wanted;
    within_reach > has || (within_reach < has && may_lower && !is_cut_down)
}

/// Gives a socket that an earlier pipeline received from the options of this lane, and takes its others away.
pub(super) fn change(setup: &LaneSetup, socket: &Socket) -> Result<GrantedBuffer, Failure> {
    enable_gro(setup, socket)?;
    set_options(setup, socket, false)
}

/// Sets the options that a socket may get at any time, and lose again. A new one has none to lose.
fn set_options(setup: &LaneSetup, socket: &Socket, is_new: bool) -> Result<GrantedBuffer, Failure> {
    let control = setup.plan.shape.control;
    type Set = fn(&Socket, bool) -> io::Result<()>;
    let options: [(&str, bool, Set); 3] = [
        ("SO_TIMESTAMPNS", control.timestamps, Socket::set_timestamps),
        ("IP_PKTINFO", control.packet_info, Socket::set_packet_info),
        ("SO_RXQ_OVFL", control.drop_overflow, Socket::set_drop_overflow),
    ];
    for (name, is_on, set) in options.into_iter().filter(|(_, is_on, _)| *is_on || !is_new) {
        set(socket, is_on).or_else(|error| refuse(setup, name, &is_on, &error))?;
    }
    if !is_new && setup.listener.busy_poll.is_zero() && socket.busy_poll_us().is_ok_and(|time| time > 0) {
        socket.set_busy_poll_us(0).or_else(|error| refuse(setup, "SO_BUSY_POLL", &0, &error))?;
        socket.set_prefer_busy_poll(false).or_else(|error| refuse(setup, "SO_PREFER_BUSY_POLL", &false, &error))?;
    }
    warn_of_missing(setup, socket);
    multicast::prepare(setup, socket)?;
    grant(setup, socket, true)
}

/// The failure of an option for which there is no cure.
fn refuse(setup: &LaneSetup, name: &str, value: &dyn Debug, error: &io::Error) -> Result<(), Failure> {
    Err(cannot_set(setup, name, value, ExitCode::Failure, "", error))
}

fn cannot_set(
    LaneSetup { plan, listener, .. }: &LaneSetup,
    name: &str,
    value: &dyn Debug,
    code: ExitCode,
    cure: &str,
    error: &io::Error,
) -> Failure {
    let message =
        format!("listener {}, address {}: cannot set {name} to {value:?}: {error}{cure}", listener.name, plan.address);
    Failure::new(code, message)
}

/// Warns of what the kernel does not give and the listener can do without: once, by its first lane.
fn warn_of_missing(setup: &LaneSetup, socket: &Socket) {
    let (name, busy_poll) = (&setup.listener.name, setup.listener.busy_poll);
    if setup.warns()
        && let Err(error) = socket.memory_info()
    {
        log::warn!(
            "listener {name}: the kernel does not report what it drops at a socket (SO_MEMINFO: {error}); \
             kernel_dropped, arrived and residual are null; this needs Linux 4.12 and no filter on getsockopt"
        );
    }
    if !busy_poll.is_zero() {
        set_busy_poll(setup, socket, |what| {
            if setup.warns() {
                log::warn!(
                    "listener {name}: busy_poll = \"{}\" works only in part: {what}; grant CAP_NET_ADMIN \
                     (AmbientCapabilities= and CapabilityBoundingSet= in the unit file), or write busy_poll = \"0us\"",
                    print_duration(busy_poll)
                );
            }
        });
    }
}

/// Lets the waits of the engine itself spin as well.
pub(super) fn spin(setup: &LaneSetup, engine: &mut Engine) {
    let busy_poll = setup.listener.busy_poll;
    if busy_poll.is_zero() {
        return;
    }
    if let Err(error) = engine.set_busy_poll_us(microseconds(busy_poll))
        && setup.warns()
    {
        if setup.plan.xdp.is_some() {
            log::warn!(
                "listener {}: its queues are not polled (SO_BUSY_POLL: {error}); grant CAP_NET_ADMIN, or write \
                 busy_poll = \"0us\"",
                setup.listener.name
            );
            return;
        }
        log::warn!(
            "listener {}: its ring does not spin (IORING_REGISTER_NAPI: {error}); that needs Linux 6.9; \
             write engine = \"recvmmsg\" to use busy_poll",
            setup.listener.name
        );
    }
}

fn microseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// Sets what makes a receive call look at the device's queue by itself. Says, once, what the first refusal means.
fn set_busy_poll(setup: &LaneSetup, socket: &Socket, say: impl Fn(String)) {
    if let Err(error) =
        privilege_helper::perform(socket, PrivilegedOp::BusyPoll(microseconds(setup.listener.busy_poll)))
    {
        return say(format!("receivers sleep until the kernel wakes them (SO_BUSY_POLL: {error})"));
    }
    if let Err(error) = privilege_helper::perform(socket, PrivilegedOp::PreferBusyPoll) {
        return say(format!("receivers spin, and interrupts come in between (SO_PREFER_BUSY_POLL: {error})"));
    }
    // A poll that takes less than a batch would have to be made again at once. The usual budget needs no right.
    let budget = setup.plan.shape.slots.min(BUSY_POLL_BUDGET_MAX) as u16;
    if budget > BUSY_POLL_BUDGET_FREE
        && let Err(error) = privilege_helper::perform(socket, PrivilegedOp::BusyPollBudget(budget))
    {
        say(format!(
            "receivers spin, and take {BUSY_POLL_BUDGET_FREE} packets at a time (SO_BUSY_POLL_BUDGET: {error})"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_buffer_is_never_cut_down_and_lowered_only_by_its_one_receiver() {
        // It was made with a right that is gone since, and what is left reaches 8 MiB, which is a wish of 4.
        let reach = 8 << 20;
        for may_lower in [false, true] {
            assert!(!is_better(reach, 16 << 20, 32 << 20, may_lower), "the same wish again");
            assert!(!is_better(reach, 16 << 20, 64 << 20, may_lower), "a smaller wish that would end below itself");
            assert!(!is_better(reach, 16 << 20, 8 << 20, may_lower), "nothing to gain");
            assert!(is_better(reach, 16 << 20, 4 << 20, may_lower), "as much as can be had");
        }
        assert!(!is_better(4 << 20, 2 << 20, 32 << 20, false), "the other receiver still needs it");
        assert!(is_better(4 << 20, 2 << 20, 32 << 20, true));
    }
}
