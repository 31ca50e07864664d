//! The names that the kernel has for drops, where the tracepoints can be read (`CAP_PERFMON`, and root once for their
//! numbers). A help and no need: every case but that of the firewall is known by a counter as well.

use mmsg::drops::{Tracepoints, Watch};

use crate::commands::explain::evidence::Reason;

/// A watch over the tracepoints, or why there is none.
#[derive(Debug)]
pub struct Names {
    watch: Result<Watch, String>,
}

impl Names {
    pub fn open() -> Self {
        let watch = Tracepoints::read().and_then(|tracepoints| Watch::open(&tracepoints));
        Self { watch: watch.map_err(|refusal| refusal.to_string()) }
    }

    /// Takes what the kernel's rings have, which hold a moment's worth.
    pub fn take(&mut self) {
        if let Ok(watch) = &mut self.watch
            && let Err(error) = watch.read()
        {
            self.watch = Err(error.to_string());
        }
    }

    /// Of a socket by port; of everything else without one.
    pub fn reasons(&self) -> Vec<Reason> {
        let Ok(watch) = &self.watch else { return Vec::new() };
        let tally = watch.tally();
        let by_port =
            tally.by_port.into_iter().map(|it| Reason { name: it.reason, port: Some(it.port), count: it.count });
        let others = tally.by_reason.into_iter().map(|it| Reason { name: it.reason, port: None, count: it.count });
        by_port.chain(others).collect()
    }

    /// Why drops have no names here.
    pub fn unseen(&self) -> Option<String> {
        let refusal = self.watch.as_ref().err()?;
        Some(format!("the kernel's names for drops (a firewall is known by nothing else): {refusal}"))
    }
}
