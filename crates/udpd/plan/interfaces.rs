//! The interfaces that the configuration steers, as the running kernel shows them: where their plan puts each receive
//! queue, and what differs from that plan. The work is the crate `steer`'s; here it is given the kernel and the wish.

use std::path::Path;

use steer::ethtool::Ioctl;
use steer::model::Host;
use steer::plan::{Plan, QueueSeat};
use steer::{ApplyError, Comparison, Netlink, Reader, Rivals, Steering};

use crate::config::Steer;
use crate::exit::{ExitCode, Failure};

/// The running kernel, as the crate wants to be given it.
#[derive(Debug)]
pub struct Kernel {
    ethtool: Ioctl,
    allowed: Vec<usize>,
}

impl Kernel {
    /// A socket to ask drivers with, and the cores that this process may use.
    pub fn open() -> Result<Self, Failure> {
        let fail = |what: &str, error: std::io::Error| {
            Failure::new(ExitCode::Failure, format!("cannot {what}: {error}; is this a Linux with a network?"))
        };
        let ethtool = Ioctl::new().map_err(|error| fail("make a socket to ask drivers with", error))?;
        let allowed = steer::allowed_cores().map_err(|error| fail("read which cores udpd may use", error))?;
        Ok(Self { ethtool, allowed })
    }

    pub fn steering<'a>(&'a self, request: &'a steer::plan::Request) -> Steering<'a> {
        let reader = Reader {
            sys_root: Path::new("/sys"),
            proc_root: Path::new("/proc"),
            ethtool: &self.ethtool,
            netdev: &Netlink,
            busy_polls: &[],
        };
        Steering { reader, allowed: &self.allowed, request }
    }
}

/// Where the plan puts each queue of an interface; `None` where there is no plan for it, which is not an error: a
/// listener may be bound to a bridge, a tunnel or loopback.
pub fn seats(wish: &Steer, allowed: &[usize], interface: &str) -> Option<Vec<QueueSeat>> {
    let kernel = Kernel { ethtool: Ioctl::new().ok()?, allowed: allowed.to_vec() };
    let request = &wish.request;
    match kernel.steering(request).plan(&[interface.to_owned()]) {
        Ok((_, plan)) => plan.interfaces.into_iter().next().map(|part| part.seats),
        Err(error) => {
            log::debug!("interface {interface}: udpd places the lanes without a plan for its receive queues: {error}");
            None
        }
    }
}

/// How the interfaces that the configuration steers compare with their plan.
pub fn compare(kernel: &Kernel, wish: &Steer) -> Result<(Host, Plan, Comparison), ApplyError> {
    let steering = kernel.steering(&wish.request);
    let (host, plan) = steering.plan(&wish.interfaces)?;
    let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    Ok((host, plan, comparison))
}
