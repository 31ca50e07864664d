//! Prints the plan for some interfaces and the commands it stands for; changes nothing and needs no privileges.
//!
//! `cargo run --example plan -- eth0`, or without a name for all interfaces that have a device behind them.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use nic_steer::ethtool::Ioctl;
use nic_steer::plan::Request;
use nic_steer::{Netlink, Reader, Steering, allowed_cores};

fn main() -> ExitCode {
    match print_plan() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn print_plan() -> Result<(), Box<dyn Error>> {
    let reader = Reader {
        sys_root: "/sys".as_ref(),
        proc_root: "/proc".as_ref(),
        ethtool: &Ioctl::new()?,
        netdev: &Netlink,
        busy_polls: &[],
    };
    let mut interfaces: Vec<String> = std::env::args().skip(1).collect();
    if interfaces.is_empty() {
        interfaces = reader.physical_interfaces()?;
    }
    // A request of defaults keeps queues, rings and hash as they are and places interrupts and receivers only.
    let (allowed, request) = (allowed_cores()?, Request::default());
    let steering = Steering { reader, allowed: &allowed, request: &request, rounded: &[] };
    let (host, plan) = steering.plan(&interfaces)?;
    let mut out = std::io::stdout();
    write!(out, "{plan}")?;
    for change in steering.changes(&host, &plan)? {
        writeln!(out, "{}", change.command)?;
    }
    Ok(())
}
