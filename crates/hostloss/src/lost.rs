//! What was lost, as it is told: in JSON and to those who show it. How it is summed is in `losses`.

use serde::{Deserialize, Serialize};

use super::counter::{CounterUnit, KernelLayer};

/// What was lost between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// In the order of the layers, without those that lost nothing. Nothing stands in two of them.
    pub lost: Vec<Loss>,
    /// Their sum. In buffers and packets: a train of GRO counts as one, and so does a fragment.
    pub total: u64,
    /// Of the sum, what may have been other protocols than UDP.
    pub of_any_protocol: u64,
    /// What is not in the sum because it cannot be seen.
    pub unseen: Vec<UncountedLoss>,
}

/// What one counter says was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub layer: KernelLayer,
    /// The key of the counter in its table.
    pub counter: String,
    /// The interface, or "ipv4" and "ipv6".
    pub place: String,
    pub count: u64,
    pub unit: CounterUnit,
}

/// Something that may have been lost and that no counter tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncountedLoss {
    pub layer: KernelLayer,
    pub what: String,
}
