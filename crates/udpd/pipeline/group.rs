//! Binding: the sockets of an address as one group with its program, in order and from one thread, and the evidence of where
//! their datagrams arrive, which has to be there before the first of them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use mmsg::{CoreCounter, Group, Socket};

use super::open;
use crate::budget::{Budget, LanePlan};
use crate::config::{Config, Spread};
use crate::exit::{ExitCode, Failure};
use crate::holder;
use crate::steering;

/// A bound socket, as far as the books need it.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// What it is bound to.
    pub address: SocketAddr,
    /// The evidence of where its datagrams arrive.
    pub arrivals: Option<CoreCounter>,
}

/// Prepares and binds the sockets of all lanes.
pub(super) fn open(config: &Config, sockets: &[Arc<Socket>], budget: &Budget) -> Result<Vec<Endpoint>, Failure> {
    let arrivals = count_arrivals(sockets, budget);
    let holder = |address| holder::of_udp_address(address, Path::new("/proc")).first().map(ToString::to_string);
    let addresses = bind_all(config, sockets, &budget.lanes, holder)?;
    Ok(addresses.into_iter().zip(arrivals).map(|(address, arrivals)| Endpoint { address, arrivals }).collect())
}

/// A counter by core for every lane of which somebody says where its datagrams should arrive. Without the right to one
/// there is one warning, and `wrong_cpu` stays null.
fn count_arrivals(sockets: &[Arc<Socket>], budget: &Budget) -> Vec<Option<CoreCounter>> {
    let mut refused = false;
    let mut counter = |(socket, plan): (&Arc<Socket>, &LanePlan)| {
        if refused || plan.steering.expected_cores().is_empty() {
            return None;
        }
        let made = CoreCounter::new().and_then(|counter| counter.attach(socket).map(|()| counter));
        made.inspect_err(|error| {
            refused = true;
            log::warn!(
                "cannot count on which cores datagrams arrive: {error}; wrong_cpu stays null and a drift goes unnoticed; grant \
                 CAP_BPF, in the unit file: AmbientCapabilities=CAP_BPF and SystemCallFilter=bpf"
            );
        })
        .ok()
    };
    sockets.iter().zip(&budget.lanes).map(&mut counter).collect()
}

/// Binds every socket and returns what each is bound to. `holder` names who else has an address.
pub(super) fn bind_all(
    config: &Config,
    sockets: &[Arc<Socket>],
    plans: &[LanePlan],
    holder: impl Fn(SocketAddr) -> Option<String>,
) -> Result<Vec<SocketAddr>, Failure> {
    let mut bound = Vec::with_capacity(sockets.len());
    while bound.len() < sockets.len() {
        let first = bound.len();
        let members = 1 + plans[first + 1..].iter().take_while(|lane| lane.member > 0).count();
        let lanes = first..first + members;
        let plan = &plans[first];
        let holder = holder(plan.address);
        match members {
            // Alone it needs no group, and then nobody else can join one.
            1 => {
                let bind = sockets[first].bind(plan.address);
                bind.map_err(|error| open::bind_failure(plan.address, &error))?;
            }
            _ => bind_group(config, &sockets[lanes.clone()], &plans[lanes.clone()])?,
        }
        if let Some(holder) = holder {
            log::warn!(
                "{} is shared with {holder}: the kernel splits the datagrams between the two; stop one of them",
                plan.address
            );
        }
        bound.extend(sockets[lanes].iter().map(|socket| socket.local_addr().unwrap_or(plan.address)));
    }
    Ok(bound)
}

fn bind_group(config: &Config, sockets: &[Arc<Socket>], lanes: &[LanePlan]) -> Result<(), Failure> {
    let LanePlan { listener, address, .. } = lanes[0];
    let spread = config.listeners[listener].spread;
    let program = steering::group_spread(spread, lanes.iter().map(|lane| &lane.steering));
    let mut group = Group::new(sockets.to_vec(), program).map_err(|error| {
        let cure = match error.raw_os_error() {
            Some(code) if code == nix::errno::Errno::ENOMEM as i32 => {
                "; the program is larger than net.core.optmem_max allows: raise that with sysctl"
            }
            _ => "",
        };
        let (name, word) = (&config.listeners[listener].name, word(spread));
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
