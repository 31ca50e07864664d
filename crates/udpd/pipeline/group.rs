//! Binding: the sockets of an address as one group with its program, in order and from one thread, and the evidence of
//! where their datagrams arrive, which has to be there before the first of them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use mmsg::{CoreCounter, Family, Group, Socket};

use super::open;
use super::setup::LaneSetup;
use crate::config::{self, Spread};
use crate::exit::{ExitCode, Failure};
use crate::os::holder;
use crate::plan::spread;

/// A bound socket, as far as the books need it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub address: SocketAddr,
    /// The evidence of where its datagrams arrive.
    pub arrivals: Option<CoreCounter>,
}

/// Prepares and binds the sockets of all lanes.
pub(super) fn open(setups: &[&LaneSetup], sockets: &[Arc<Socket>]) -> Result<Vec<Endpoint>, Failure> {
    let arrivals = count_arrivals(setups, sockets);
    let addresses = bind_all(setups, sockets, |setup| refuse_company(setup, sockets))?;
    Ok(addresses.into_iter().zip(arrivals).map(|(address, arrivals)| Endpoint { address, arrivals }).collect())
}

/// A counter by core for every lane of which somebody says where its datagrams should arrive. Without the right to one
/// there is one warning, and `wrong_cpu` stays null.
fn count_arrivals(setups: &[&LaneSetup], sockets: &[Arc<Socket>]) -> Vec<Option<CoreCounter>> {
    let mut refused = false;
    let mut counter = |(socket, setup): (&Arc<Socket>, &&LaneSetup)| {
        if refused || setup.plan.intake.expected_cores().is_empty() {
            return None;
        }
        let made = CoreCounter::new().and_then(|counter| counter.attach(socket).map(|()| counter));
        made.inspect_err(|error| {
            refused = true;
            log::warn!(
                "cannot count on which cores datagrams arrive: {error}; wrong_cpu is null, and udpd does not notice \
                 a drift; grant CAP_BPF (in the unit file AmbientCapabilities=CAP_BPF and SystemCallFilter=bpf)"
            );
        })
        .ok()
    };
    sockets.iter().zip(setups).map(&mut counter).collect()
}

/// Binds every socket and returns what each is bound to. `may_join` is asked before a socket is bound that could get
/// company without anybody being told.
pub(super) fn bind_all(
    setups: &[&LaneSetup],
    sockets: &[Arc<Socket>],
    may_join: impl Fn(&LaneSetup) -> Result<(), Failure>,
) -> Result<Vec<SocketAddr>, Failure> {
    let mut bound = Vec::with_capacity(sockets.len());
    while bound.len() < sockets.len() {
        let first = bound.len();
        let members = 1 + setups[first + 1..].iter().take_while(|setup| setup.plan.member > 0).count();
        let lanes = first..first + members;
        let plan = &setups[first].plan;
        if plan.shares {
            may_join(setups[first])?;
            bind_group(&setups[lanes.clone()], &sockets[lanes.clone()])?;
        } else {
            // Alone it needs no group, and then nobody else can join one.
            let bind = sockets[first].bind(plan.address);
            bind.map_err(|error| open::bind_failure(plan.address, &error))?;
        }
        bound.extend(sockets[lanes].iter().map(|socket| socket.local_addr().unwrap_or(plan.address)));
    }
    Ok(bound)
}

/// Refuses an address on which another process has sockets that ours could join. Whether it has, the kernel says best:
/// a socket that does not share is bound there for a moment.
fn refuse_company(setup: &LaneSetup, sockets: &[Arc<Socket>]) -> Result<(), Failure> {
    let LaneSetup { plan, listener, .. } = setup;
    if listener.share_port || is_free(listener.interface.as_deref(), plan.address) {
        return Ok(());
    }
    let own: Vec<u64> = sockets.iter().filter_map(|socket| holder::inode_of(socket).ok()).collect();
    let holders = holder::of_udp_address(plan.address, &own, Path::new("/proc"));
    let mut names: Vec<String> = holders.iter().map(ToString::to_string).collect();
    names.dedup();
    let with_company = |socket: &Arc<Socket>| {
        socket.local_addr().is_ok_and(|taken| taken.port() != 0 && config::overlap(&taken, &plan.address))
    };
    let who = match names.is_empty() {
        // A listener of ours on another interface.
        true if sockets.iter().any(with_company) => return Ok(()),
        true => "a process that /proc does not show".to_owned(),
        false => names.join(", "),
    };
    let message = format!(
        "cannot bind {}: {who} holds it; stop that process or choose another address; processes of one user can \
         share it if all of them ask for that, here with share_port = true for listener {}",
        plan.address, listener.name
    );
    Err(Failure::new(ExitCode::Unavailable, message))
}

/// Whether a socket can be bound that shares its address with nobody. Any other trouble is left to those who bind in
/// earnest.
fn is_free(interface: Option<&str>, address: SocketAddr) -> bool {
    let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
    let bind = || {
        let probe = Socket::new(family)?;
        if address.is_ipv6() {
            probe.set_v6_only(!address.ip().is_unspecified())?;
        }
        if let Some(interface) = interface {
            probe.bind_to_device(interface)?;
        }
        probe.bind(address)
    };
    !bind().is_err_and(|error: io::Error| error.kind() == io::ErrorKind::AddrInUse)
}

fn bind_group(setups: &[&LaneSetup], sockets: &[Arc<Socket>]) -> Result<(), Failure> {
    let (listener, address) = (&setups[0].listener, setups[0].plan.address);
    let program = spread::group_spread(listener.spread, setups.iter().map(|setup| &setup.plan.intake));
    let mut group = Group::new(sockets.to_vec(), program).map_err(|error| {
        let cure = match error.raw_os_error() {
            Some(code) if code == nix::errno::Errno::ENOMEM as i32 => {
                "; the program is larger than net.core.optmem_max allows: raise that with sysctl"
            }
            _ => "",
        };
        let (name, word) = (&listener.name, word(listener.spread));
        let message = format!("listener {name}, address {address}: cannot set up spread = \"{word}\": {error}{cure}");
        Failure::new(ExitCode::Failure, message)
    })?;
    // The group ends here and its sockets live on: nothing grows or shrinks while the daemon runs.
    group.bind(address).map(drop).map_err(|error| open::bind_failure(address, &error))
}

fn word(spread: Spread) -> &'static str {
    match spread {
        Spread::Flow => "flow",
        Spread::Cpu => "cpu",
        Spread::Queue => "queue",
        Spread::Random => "random",
    }
}
