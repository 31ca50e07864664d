//! The last step with receiver and interrupt at every distance that the machine has: one core, two threads of a core,
//! two cores of a memory node, two nodes. On loopback the interrupt runs where the sender runs.

use serde::Serialize;
use steer::Topology;

use super::ground::Cores;
use super::row::Row;

/// How far receiver and interrupt are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    SameCore,
    /// Two threads of one physical core.
    SiblingThreads,
    /// Two cores of one memory node.
    SameNode,
    OtherNode,
}

impl Distance {
    /// From near to far.
    pub const ALL: [Distance; 4] =
        [Distance::SameCore, Distance::SiblingThreads, Distance::SameNode, Distance::OtherNode];

    pub fn name(self) -> &'static str {
        match self {
            Distance::SameCore => "same core",
            Distance::SiblingThreads => "sibling threads",
            Distance::SameNode => "another core of the node",
            Distance::OtherNode => "another node",
        }
    }

    /// The first two of the allowed cores that are this far from each other.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn cores(self, allowed: &[usize], topology: &Topology) -> Result<Cores, String> {
        let matches = |one: usize, other: usize| {
            let nodes = (topology.node_of_core.get(&one), topology.node_of_core.get(&other));
            let siblings = topology.are_siblings(one, other);
            match self {
                Distance::SameCore => one == other,
                Distance::SiblingThreads => one != other && siblings,
                // A machine that tells of no nodes has one.
                Distance::SameNode => !siblings && nodes.0 == nodes.1,
                Distance::OtherNode => matches!(nodes, (Some(own), Some(far)) if own != far),
            }
        };
        let pairs = allowed.iter().flat_map(|&one| allowed.iter().map(move |&other| (one, other)));
        pairs
            .filter(|&(one, other)| matches(one, other))
            .map(|(sender, receiver)| Cores { sender, receivers: vec![receiver] })
            .next()
            .ok_or_else(|| format!("no two of the cores {} are placed like that", steer::format_core_list(allowed)))
    }
}

/// A distance and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementRow {
    pub distance: Distance,
    /// Where the sender and with it the interrupt was, and the receiver.
    pub cores: Option<(usize, usize)>,
    /// The figures, or why there are none.
    #[serde(flatten)]
    pub row: Row,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two physical cores with two threads each: 0 and 4, 1 and 5 on node 0.
    fn machine() -> Topology {
        Topology {
            online: (0..8).collect(),
            node_of_core: (0..8).map(|core| (core, core % 4 / 2)).collect(),
            physical_of_core: (0..8).map(|core| (core, core % 4)).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn every_distance_of_a_large_machine_is_found() {
        let allowed: Vec<usize> = (0..8).collect();
        let found = Distance::ALL.map(|distance| distance.cores(&allowed, &machine()).expect("there are such cores"));
        assert_eq!(found.map(|cores| (cores.sender, cores.receivers[0])), [(0, 0), (0, 4), (0, 1), (0, 2)]);
    }

    #[test]
    fn a_distance_that_a_machine_lacks_has_a_reason() {
        assert!(Distance::SiblingThreads.cores(&[0, 1], &machine()).expect_err("no siblings").contains("0-1"));
        assert!(Distance::OtherNode.cores(&[0, 1], &Topology::default()).is_err());
        assert_eq!(Distance::SameNode.cores(&[0, 1], &Topology::default()).map(|cores| cores.receivers), Ok(vec![1]));
    }
}
