//! What a lane is made from: its plan and the settings of its listener, which it shares with the other lanes. Whatever
//! asks for a key of the listener reads it here, so that a new one needs no line on the way.

use std::fmt;
use std::sync::Arc;

use crate::config::{Config, Listener};
use crate::plan::{LanePlan, Plan};
use crate::policy::{Access, AccessList, Offences};
use crate::upstream::Upstream;

/// What a lane needs before it can make anything, and what another socket for it is made from.
#[derive(Debug, Clone)]
pub struct LaneSetup {
    pub index: usize,
    pub plan: LanePlan,
    pub listener: Arc<Listener>,
    /// Whose datagrams it takes, when not everybody's.
    pub access: Option<Arc<AccessList>>,
    /// Who exceeds its rate limit, where it has one.
    pub offences: Option<Arc<Offences>>,
    /// What its listener knows of what never reached this host, where it has a `sequence`.
    pub upstream: Option<Upstream>,
}

impl LaneSetup {
    /// Those of all lanes of a plan.
    pub(super) fn all(config: &Config, plan: &Plan) -> Vec<Self> {
        let shared = |(index, listener): (usize, &Listener)| {
            let lanes = plan.lanes.iter().filter(|lane| lane.listener == index).count();
            let upstream = listener.sequence.map(|sequence| Upstream::new(sequence, lanes, listener.gro));
            (Arc::new(listener.clone()), access_list(&listener.access), upstream)
        };
        let listeners: Vec<_> = config.listeners.iter().enumerate().map(shared).collect();
        let setup = |(index, plan): (usize, &LanePlan)| {
            let (listener, access, upstream) = listeners[plan.listener].clone();
            let offences = listener.rate_limit.map(|_| Arc::default());
            Self { index, plan: plan.clone(), listener, access, offences, upstream }
        };
        plan.lanes.iter().enumerate().map(setup).collect()
    }

    /// Whether it speaks for its listener where one line is enough.
    pub(super) fn is_first(&self) -> bool {
        self.plan.number == 0
    }
}

impl fmt::Display for LaneSetup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "listener {}, lane {}", self.listener.name, self.plan.number)
    }
}

/// The table of a listener, which all of its lanes share; `None` when it takes everybody's datagrams.
fn access_list(access: &Access) -> Option<Arc<AccessList>> {
    let all = access.allow.is_empty() && access.deny.is_empty();
    (!all).then(|| Arc::new(AccessList::new(&access.allow, &access.deny)))
}
