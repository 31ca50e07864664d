//! The XDP programs of listeners with `engine = "af_xdp"`, each at the interface of its listener, from the start of its
//! lanes to their end. They lead datagrams past the kernel's stack.
//!
//! The program is attached without an address, so that everything passes until every lane is there to receive. Then it
//! gets the addresses of the listener, and at the end it loses them again: what arrives from that moment on goes to the
//! ordinary sockets, and what is in the rings of the queues is all that will ever be there. A wildcard address stands
//! for the addresses of the interface, which the main thread looks at once a second, as it does at the MTU. An address
//! that is named is taken as long as this host has it.
//!
//! An interface that is removed takes its program along, and a process that takes over wants the place of ours. What
//! was loaded stays here all the while, because to attach it again takes no right that the sandbox has taken away.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use mmsg::xdp;
use nix::ifaddrs::getifaddrs;
use nix::libc::RLIM_INFINITY;
use nix::net::if_::if_nametoindex;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use steer::ethtool::{Ethtool, Ioctl};

use super::{inherited_sockets::TAKES_A_RESTART, lane::LaneThread};
use crate::config::{Config, ListenerConfig};
use crate::plan::memory::Bytes;
use crate::plan::{LanePlan, PipelinePlan, xdp as xdp_plan};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::lock;
use udpd_sandbox::privilege_helper;
use udpd_sandbox::privilege_helper::PrivilegedFd;

/// The kernel's name for what takes VLAN tags off frames.
const TAGS_TAKEN_OFF: &str = "rx-vlan-hw-parse";

#[derive(Debug)]
struct XdpProgram {
    name: String,
    addresses: Vec<IpAddr>,
    /// Addresses of other listeners, which a wildcard among `addresses` does not stand for.
    others: Vec<IpAddr>,
    /// Those that an interface of this host has had. The kernel may take others by a route, or hold them for another
    /// host.
    had: Vec<IpAddr>,
    /// The loaded program, which can be attached.
    loaded: Arc<xdp::Loaded>,
    /// The attachment; `None` while another process has the interface.
    redirect: Option<Arc<xdp::Redirect>>,
    /// How many queues the interface had when it was attached.
    queues: Option<usize>,
    /// The addresses in the program, in order; `None` where they are not known.
    in_program: Option<Vec<IpAddr>>,
    /// The MTU and the highest one that chunks have room for, where the log says that the first is above the second.
    beyond: Option<(usize, usize)>,
    /// The log says what could not be done.
    has_warned: bool,
}

#[derive(Debug, Default)]
pub(super) struct XdpPrograms(Mutex<Vec<XdpProgram>>);

impl XdpPrograms {
    /// Attaches the programs and gives every queue its engine. Nothing comes to them yet.
    pub(super) fn make(config: &Config, threads: &mut [LaneThread]) -> Result<Self, Failure> {
        let mut made = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate().filter(|(_, own)| own.is_past_the_stack()) {
            allow_locked_memory();
            let mut program = XdpProgram::attach(listener)?;
            program.others = xdp_plan::named_by_others(config, listener);
            let own = threads.iter_mut().filter(|thread| thread.setup.plan.listener == index);
            let redirect = program.redirect.clone().expect("just attached");
            own.filter(|thread| !thread.setup.plan.has_socket()).try_for_each(|thread| thread.open(&redirect))?;
            made.push(program);
        }
        Ok(Self(Mutex::new(made)))
    }

    /// Changes to the listeners of another configuration, and drops the programs that none of them wants. The engines
    /// of the earlier pipeline have ended.
    pub(super) fn switch_to(&self, config: &Config) {
        self.own().retain_mut(|program| {
            let is_its = |listener: &&ListenerConfig| *program.loaded.wanted() == wanted(listener);
            let next = config.listeners.iter().find(is_its);
            let others = |listener| xdp_plan::named_by_others(config, listener);
            let addresses = next.map(|listener| (listener.name.clone(), addresses(listener), others(listener)));
            addresses.is_some_and(|next| {
                (program.name, program.addresses, program.others) = next;
                true
            })
        });
    }

    /// Attaches the program of a listener to its interface again, where it is not attached.
    pub(super) fn reattach(&self, listener: &str) -> Result<(), Failure> {
        let mut own = self.own();
        let program = own.iter_mut().find(|program| program.name == listener);
        program.map_or_else(|| Err(no_program(listener)), |program| program.reattach().map(drop))
    }

    /// The index of the interface that the program of a listener is attached to.
    pub(super) fn attached_to(&self, listener: &str) -> Option<u32> {
        let own = self.own();
        let redirect = own.iter().find(|program| program.name == listener)?.redirect.as_ref();
        redirect.map(|redirect| redirect.interface_index())
    }

    /// Gives the queue of a lane its engine again, from a socket for which this process has no right any more: the
    /// helper process makes it.
    pub(super) fn reopen_engine(&self, thread: &mut LaneThread) -> Result<(), Failure> {
        let setup = thread.setup.clone();
        let redirect = {
            let mut own = self.own();
            let name = &setup.listener.name;
            let program = own.iter_mut().find(|program| program.name == *name).ok_or_else(|| no_program(name))?;
            program.reattach()?
        };
        let socket = privilege_helper::make(PrivilegedFd::XdpSocket, &[]);
        redirect.lay_in(socket.map_err(|error| Failure::new(ExitCode::Failure, format!("{setup}: {error}")))?);
        thread.open(&redirect)
    }

    fn own(&self) -> MutexGuard<'_, Vec<XdpProgram>> {
        lock(&self.0)
    }

    /// Lets the engines have what comes to their listeners.
    pub(super) fn begin(&self) {
        self.follow();
        self.own().iter_mut().for_each(XdpProgram::warn_if_idle);
    }

    /// Looks whether the addresses of the interfaces have changed: to be called once a second.
    pub(super) fn follow(&self) {
        self.own().iter_mut().for_each(XdpProgram::follow);
    }

    /// Lets everything pass to the ordinary sockets.
    pub(super) fn let_pass(&self) {
        self.own().iter_mut().for_each(XdpProgram::let_pass);
    }

    /// Detaches the programs, so that another process can attach its own. Engines that still run keep theirs.
    pub(super) fn detach(&self) {
        self.own().iter_mut().for_each(|program| program.redirect = None);
    }
}

impl XdpProgram {
    fn attach(listener: &ListenerConfig) -> Result<Self, Failure> {
        let redirect = xdp::Redirect::attach(&wanted(listener), &[]);
        let redirect = redirect.map_err(|refusal| xdp_plan::refused(&listener.name, &refusal))?;
        let (name, loaded, in_program) = (listener.name.clone(), redirect.loaded(), Some(Vec::new()));
        let (redirect, queues) = (Some(Arc::new(redirect)), queues_of(&loaded.wanted().interface));
        let (addresses, others, had) = (addresses(listener), Vec::new(), Vec::new());
        let beyond = None;
        let mut program =
            Self { name, addresses, others, had, loaded, redirect, queues, in_program, beyond, has_warned: false };
        program.log_side_effects();
        program.addresses_now().map_err(|error| {
            let message = format!("listener {}: cannot read the addresses of interfaces: {error}", listener.name);
            Failure::new(ExitCode::Failure, message)
        })?;
        Ok(program)
    }

    /// The attachment to the interface as it is now, made if there is none.
    fn reattach(&mut self) -> Result<Arc<xdp::Redirect>, Failure> {
        let (index, queues) = (if_nametoindex(self.interface()).ok(), queues_of(self.interface()));
        let refused = |refusal| xdp_plan::refused(&self.name, &refusal);
        if let Some(redirect) = self.redirect.clone().filter(|own| Some(own.interface_index()) == index) {
            if queues != self.queues {
                redirect.cover_all_queues().map_err(refused)?;
                self.queues = queues;
            }
            return Ok(redirect);
        }
        // An attachment to an interface that is gone is none.
        self.redirect = None;
        let redirect = xdp::Redirect::attach_again(Arc::clone(&self.loaded), &[]);
        let redirect = Arc::new(redirect.map_err(|refusal| xdp_plan::refused(&self.name, &refusal))?);
        (self.redirect, self.in_program, self.queues) = (Some(Arc::clone(&redirect)), Some(Vec::new()), queues);
        log::info!("listener {}: the XDP program is at {} again", self.name, self.interface());
        self.warn_of_unseen_tags();
        Ok(redirect)
    }

    fn interface(&self) -> &str {
        &self.loaded.wanted().interface
    }

    /// The addresses of the listener that this host has; for a wildcard those of its interface.
    fn addresses_now(&mut self) -> io::Result<Vec<IpAddr>> {
        let is_any = |v6: bool| self.addresses.iter().any(|ip| ip.is_unspecified() && ip.is_ipv6() == v6);
        // A wildcard socket of IPv6 takes IPv4 as well.
        let (all, v4) = (is_any(true), is_any(false));
        let mut wanted: Vec<IpAddr> = self.addresses.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
        let here = addresses_here()?;
        let is_here = |ip: &IpAddr| here.iter().any(|(_, own)| own == ip);
        self.had.extend(wanted.iter().filter(|ip| is_here(ip) && !self.had.contains(ip)).copied().collect::<Vec<_>>());
        wanted.retain(|ip| is_here(ip) || !self.had.contains(ip));
        if all || v4 {
            let own = here.iter().filter(|(interface, _)| *interface == self.loaded.wanted().interface);
            let own = own.map(|(_, ip)| *ip).filter(|ip| !self.others.contains(ip));
            wanted.extend(own.filter(|ip| all || ip.is_ipv4()));
        }
        wanted.sort_unstable();
        wanted.dedup();
        Ok(wanted)
    }

    fn follow(&mut self) {
        let Some(redirect) = self.redirect.clone() else { return };
        if redirect.look_at_card() {
            self.in_program = None;
        }
        self.follow_mtu(redirect.mtu_beyond_chunks());
        let outcome = self.addresses_now().and_then(|wanted| {
            if self.in_program.as_ref() != Some(&wanted) {
                redirect.set_addresses(&wanted)?;
                log::info!(
                    "listener {}: the XDP program of {} looks for {}",
                    self.name,
                    self.interface(),
                    list(&wanted)
                );
                self.in_program = Some(wanted);
            }
            Ok(())
        });
        match outcome {
            Ok(()) => self.has_warned = false,
            Err(error) => self.warn_once("tell the XDP program which addresses the interface has now", &error),
        }
    }

    /// Logs where frames are longer than a chunk, which then come to the sockets.
    fn follow_mtu(&mut self, beyond: Option<(usize, usize)>) {
        let before = std::mem::replace(&mut self.beyond, beyond);
        match beyond {
            Some((mtu, fits)) if before != beyond => log::warn!(
                "listener {}: the MTU of {} is {mtu}, and a chunk has room for the frames of {fits}: the sockets \
                 receive what is longer; lower the MTU, or write a longer max_length, which helps up to some 3,800",
                self.name,
                self.interface()
            ),
            None if before.is_some() => {
                log::info!("listener {}: a chunk has room for every frame of {} again", self.name, self.interface());
            }
            _ => {}
        }
    }

    /// Logs what the operator of this interface may have to know.
    fn log_side_effects(&self) {
        let (asker, interface) = (Ioctl::new().ok(), self.interface());
        let tags = asker.as_ref().and_then(|asker| asker.feature(interface, TAGS_TAKEN_OFF).ok());
        // Where that is not known it may be on.
        if tags.is_none_or(|feature| feature.is_on) {
            self.warn_of_unseen_tags();
        }
        let driver = asker.and_then(|asker| asker.driver(interface).ok());
        if self.loaded.wanted().mode == xdp::Mode::Native && driver.is_some_and(|driver| driver == "veth") {
            log::info!(
                "listener {}: a native program takes segmentation offload from the other end of the virtual cable {}, \
                 which makes TCP towards this one slower; xdp_mode = \"generic\" leaves it",
                self.name,
                interface
            );
        }
    }

    /// A tag that was taken off a frame before the program has to be read from metadata, which is not possible
    /// everywhere.
    fn warn_of_unseen_tags(&self) {
        let Some(why) = self.redirect.as_ref().and_then(|redirect| redirect.unseen_tags()) else { return };
        let cure = match self.loaded.wanted().mode {
            xdp::Mode::Generic => "give it CAP_PERFMON",
            _ => "restart udpd if the interface was another one before",
        };
        log::warn!(
            "listener {}: a VLAN tag that {} takes off a frame is not seen ({why}), so frames of VLANs to its \
             addresses are received like those of none; on a host with VLANs {cure}, or have the tags left on: ethtool \
             -K {} rxvlan off (on a virtual cable txvlan off at the other end)",
            self.name,
            self.interface(),
            self.interface()
        );
    }

    /// A wildcard may stand for nothing, such as on the port of a bridge, which has the addresses.
    fn warn_if_idle(&mut self) {
        if self.addresses_now().is_ok_and(|now| now.is_empty()) {
            log::warn!(
                "listener {}: {} has no address that its wildcard could stand for, so nothing comes past the stack and \
                 the sockets receive everything; give it one, or name the interface that has it",
                self.name,
                self.interface()
            );
        }
    }

    fn let_pass(&mut self) {
        let Some(redirect) = &self.redirect else { return };
        match redirect.set_addresses(&[]) {
            Ok(()) => self.in_program = Some(Vec::new()),
            Err(error) => {
                self.in_program = None;
                self.warn_once("take the addresses out of the XDP program", &error);
            }
        }
    }

    fn warn_once(&mut self, what: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            log::warn!(
                "listener {}: cannot {what}: {error}; the kernel may want Linux 6.0 for that, or sandbox = \"off\"",
                self.name
            );
        }
    }
}

fn no_program(listener: &str) -> Failure {
    let message = format!("listener {listener}: it has no XDP program, and the rights to load one are given up");
    Failure::new(ExitCode::Permission, message)
}

pub(super) fn wanted(listener: &ListenerConfig) -> xdp::Wanted {
    let interface = listener.interface.as_deref().unwrap_or_default();
    xdp::Wanted::new(interface, listener.addresses[0].port()).mode(listener.xdp_mode)
}

fn addresses(listener: &ListenerConfig) -> Vec<IpAddr> {
    listener.addresses.iter().map(|address| address.ip()).collect()
}

/// The interfaces of the network namespace of this process, each with every address that it has now.
fn addresses_here() -> io::Result<Vec<(String, IpAddr)>> {
    let address = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let all = getifaddrs()?;
    Ok(all.filter_map(|found| Some((found.interface_name, address(found.address?)?))).collect())
}

fn queues_of(interface: &str) -> Option<usize> {
    steer::receive_queues(Path::new("/sys"), interface)
}

fn list(addresses: &[IpAddr]) -> String {
    match addresses {
        [] => "no address".to_owned(),
        _ => addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Refuses a plan whose queues may not have their memory locked by this thread. At the start there may have been a
/// right that stood for the limit.
pub(super) fn refuse_locked_memory(plan: &PipelinePlan, before: &PipelinePlan) -> Result<(), Failure> {
    // The kernel unlocks the memory of the earlier queues a moment later.
    let lanes = plan.lanes.iter().chain(&before.lanes).filter(|lane| !lane.has_socket());
    let needed: usize = lanes.map(LanePlan::batches_bytes).sum();
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
    if needed as u64 <= limit || !udpd_sandbox::has_locked_memory_counted() {
        return Ok(());
    }
    let message = format!(
        "engine = \"af_xdp\": for a moment its queues of before and after take {} of locked memory, and this process \
         may lock {limit} bytes (RLIMIT_MEMLOCK); raise that (LimitMEMLOCK=infinity in the unit file){TAKES_A_RESTART}",
        Bytes(needed)
    );
    Err(Failure::new(ExitCode::Permission, message))
}

/// Raises the limit on locked memory as far as may be: the kernel locks all memory of a lane.
fn allow_locked_memory() {
    // A reload makes engines without the right that may stand for the limit now.
    let all = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    if let (Err(_), Ok((_, hard))) = (all, getrlimit(Resource::RLIMIT_MEMLOCK)) {
        // Where this fails the engine is refused, and says so.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}
