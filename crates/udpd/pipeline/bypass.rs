//! The way past the kernel's stack: the program at the interface of a listener with `engine = "af_xdp"`, from the start
//! of its lanes to their end.
//!
//! The program is attached without an address, so that everything passes until every lane is there to receive. Then it
//! gets the addresses of the listener, and at the end it loses them again: what arrives from that moment on goes to the
//! ordinary sockets, and what is in the rings of the queues is all that will ever be there. A wildcard address stands
//! for the addresses of the interface, which the main thread looks at once a second.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};

use mmsg::xdp;
use nix::ifaddrs::getifaddrs;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::lane::LaneThread;
use crate::config::{Config, Listener};
use crate::exit::{ExitCode, Failure};
use crate::plan::xdp as xdp_plan;

/// What stands at the interface of one listener.
#[derive(Debug)]
struct Bypass {
    name: String,
    addresses: Vec<IpAddr>,
    interface: String,
    redirect: Arc<xdp::Redirect>,
    /// What the program knows, in order.
    known: Vec<IpAddr>,
    /// What could not be done has been said.
    is_said: bool,
}

/// Those of all listeners; none once they are closed.
#[derive(Debug, Default)]
pub(super) struct Bypasses(Mutex<Vec<Bypass>>);

impl Bypasses {
    /// Attaches the programs and gives every queue its engine. Nothing is handed over yet.
    pub(super) fn make(config: &Config, threads: &mut [LaneThread]) -> Result<Self, Failure> {
        let mut made = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate() {
            let Some(interface) = listener.interface.clone().filter(|_| listener.is_past_the_stack()) else { continue };
            allow_locked_memory();
            let bypass = Bypass::attach(listener, interface)?;
            let own = threads.iter_mut().filter(|thread| thread.setup.plan.listener == index);
            own.filter(|thread| !thread.setup.plan.has_socket())
                .try_for_each(|thread| thread.open(&bypass.redirect))?;
            made.push(bypass);
        }
        Ok(Self(Mutex::new(made)))
    }

    /// From now on the engines get what comes to their listeners.
    pub(super) fn begin(&self) {
        self.follow();
    }

    /// Looks whether the addresses of the interfaces have changed: to be called once a second.
    pub(super) fn follow(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(Bypass::follow);
    }

    /// From now on everything goes to the ordinary sockets.
    pub(super) fn let_pass(&self) {
        for bypass in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            bypass.let_pass();
        }
    }

    /// Takes the programs away. Engines that are still there keep theirs.
    pub(super) fn detach(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Bypass {
    fn attach(listener: &Listener, interface: String) -> Result<Self, Failure> {
        let wanted = xdp::Wanted::new(&interface, listener.addresses[0].port()).mode(listener.xdp_mode);
        let redirect = xdp::Redirect::attach(&wanted, &[]);
        let redirect = redirect.map_err(|refusal| xdp_plan::refused(&listener.name, &refusal))?;
        let addresses = listener.addresses.iter().map(|address| address.ip()).collect();
        let (name, redirect, known) = (listener.name.clone(), Arc::new(redirect), Vec::new());
        let bypass = Self { name, addresses, interface, redirect, known, is_said: false };
        bypass.wanted().map_err(|error| {
            let message = format!("listener {}: cannot read the addresses of interfaces: {error}", listener.name);
            Failure::new(ExitCode::Failure, message)
        })?;
        Ok(bypass)
    }

    /// The addresses of the listener; for a wildcard those of its interface.
    fn wanted(&self) -> io::Result<Vec<IpAddr>> {
        let is_any = |v6: bool| self.addresses.iter().any(|ip| ip.is_unspecified() && ip.is_ipv6() == v6);
        // A wildcard socket of IPv6 takes IPv4 as well.
        let (all, v4) = (is_any(true), is_any(false));
        let mut wanted: Vec<IpAddr> = self.addresses.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
        if all || v4 {
            let here = addresses_of(&self.interface)?;
            wanted.extend(here.into_iter().filter(|ip| all || ip.is_ipv4()));
        }
        wanted.sort_unstable();
        wanted.dedup();
        Ok(wanted)
    }

    fn follow(&mut self) {
        let outcome = self.wanted().and_then(|wanted| {
            if wanted != self.known {
                self.redirect.set_addresses(&wanted)?;
                log::info!("listener {}: the XDP program of {} looks for {}", self.name, self.interface, list(&wanted));
                self.known = wanted;
            }
            Ok(())
        });
        match outcome {
            Ok(()) => self.is_said = false,
            Err(error) => self.say("tell the XDP program which addresses the interface has now", &error),
        }
    }

    fn let_pass(&mut self) {
        match self.redirect.set_addresses(&[]) {
            Ok(()) => self.known.clear(),
            Err(error) => self.say("take the addresses out of the XDP program", &error),
        }
    }

    fn say(&mut self, what: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.is_said, true) {
            log::warn!(
                "listener {}: cannot {what}: {error}; the kernel may want Linux 6.0 for that, or sandbox = \"off\"",
                self.name
            );
        }
    }
}

/// The addresses that an interface has now, in the network namespace of this process.
fn addresses_of(interface: &str) -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter(|found| found.interface_name == interface).filter_map(|found| found.address);
    let address = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(Ipv4Addr::from(v4.ip())));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Ok(all.filter_map(address).collect())
}

fn list(addresses: &[IpAddr]) -> String {
    match addresses {
        [] => "no address".to_owned(),
        _ => addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// The kernel pins all memory of a lane. As much of it as may be had without a right is asked for.
fn allow_locked_memory() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK)
        && soft < hard
    {
        // What is refused the engine meets, and says.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}
