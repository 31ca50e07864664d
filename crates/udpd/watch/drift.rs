//! While the daemon runs: is the host still as planned? Each drift is logged once, and again only after it was put
//! right in between. Looking costs a few dozen small files, so it is done every few seconds by the main thread, and
//! only for interfaces that the configuration steers.

use std::collections::BTreeSet;

use crate::config::Steer;
use crate::plan::advice;
use crate::plan::interfaces::{Kernel, compare};
use steer::Change;

/// Remembers what was said.
#[derive(Debug, Default)]
pub struct InterfaceWatch {
    kernel: Option<Box<Kernel>>,
    said: BTreeSet<String>,
    failed: bool,
}

impl InterfaceWatch {
    pub fn look(&mut self, wish: &Steer) -> Vec<String> {
        if wish.interfaces.is_empty() {
            return Vec::new();
        }
        if self.kernel.is_none() {
            self.kernel = Kernel::open().ok().map(Box::new);
        }
        let Some(kernel) = &self.kernel else { return Vec::new() };
        match compare(kernel, wish) {
            Ok((_, _, comparison)) => {
                let found = comparison.drifts;
                self.failed = false;
                let keys: BTreeSet<String> = found.iter().map(|drift| key(&drift.change)).collect();
                let new = found.iter().filter(|drift| !self.said.contains(&key(&drift.change)));
                let line = |drift| {
                    format!("{}; `udpd steer apply` sets it again", advice::of_drift(drift, wish.ban_irqbalance))
                };
                let lines = new.map(line).collect();
                self.said = keys;
                lines
            }
            Err(error) if !self.failed => {
                self.failed = true;
                vec![format!("cannot compare the interfaces with their plan: {}", advice::of_error(&error, false))]
            }
            Err(_) => Vec::new(),
        }
    }
}

/// A short name for a change, for comparing drifts.
fn key(change: &Change) -> String {
    format!("{} {} {}", change.interface, change.setting, change.from)
}
