//! How others ask this process to leave its place to them, and what it has of them. What it does then is in `leaving`.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_endpoint::control::{NewProcess, TakeOverRequest};

/// How long a sink that takes nothing holds up the end.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Who is to take over.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) asked: Receiver<TakeOverRequest>,
    asking: Sender<TakeOverRequest>,
    registry: ThreadRegistry,
    /// The inodes of the sockets that were offered last.
    pub(super) offered: Vec<u64>,
    /// Who has. The connection closes with the end of this process.
    pub(super) newcomer: Option<NewProcess>,
}

impl Departure {
    pub(super) fn new(registry: &ThreadRegistry) -> Self {
        let (asking, asked) = unbounded();
        Self { asked, asking, registry: registry.clone(), offered: Vec::new(), newcomer: None }
    }

    /// How others ask.
    pub(super) fn asker(&self) -> impl Fn(TakeOverRequest) + Send + Sync + 'static {
        let (asking, registry) = (self.asking.clone(), self.registry.clone());
        move |asked| {
            // Nobody hears it any more when the process ends, and who asks finds that out.
            let _ = asking.send(asked);
            registry.report(DaemonEvent::TakeOver);
        }
    }
}

/// The service manager that has started this process, and which of its services it is.
pub(super) fn own_manager() -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    Some(format!("{} {}", variable("NOTIFY_SOCKET")?, variable("INVOCATION_ID").unwrap_or_default()))
}
