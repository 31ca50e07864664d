//! The lane and listener of a datagram from a spill. A spill outlives the configuration that filled it, so it names
//! listeners and lanes by name and bound address, while the rest of the program numbers them.

/// A lane that feeds the consumer whose spill it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillLane {
    pub lane: usize,
    pub listener: usize,
    /// The name of the listener.
    pub name: String,
    /// What its socket is bound to.
    pub bound: String,
}

/// All of them, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillLanes(Vec<SpillLane>);

impl SpillLanes {
    /// `None` where there is no lane.
    pub fn of(lanes: Vec<SpillLane>) -> Option<Self> {
        (!lanes.is_empty()).then_some(Self(lanes))
    }

    /// The lane that is called so and bound there; else one of that listener; and where that is gone, the first of all.
    pub(super) fn find(&self, name: &str, bound: &str) -> &SpillLane {
        let of_listener = || self.0.iter().filter(|lane| lane.name == name);
        let exact = of_listener().find(|lane| lane.bound == bound);
        exact.or_else(|| of_listener().next()).unwrap_or(&self.0[0])
    }

    pub(super) fn lane(&self, lane: usize) -> &SpillLane {
        self.0.iter().find(|own| own.lane == lane).unwrap_or(&self.0[0])
    }

    /// One more than the place of the last listener.
    pub fn listeners(&self) -> usize {
        self.0.iter().map(|lane| lane.listener + 1).max().unwrap_or(0)
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.0.iter().any(|lane| lane.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_found_by_its_names_and_otherwise_the_nearest() {
        let lane = |lane, listener, name: &str, bound: &str| SpillLane {
            lane,
            listener,
            name: name.to_owned(),
            bound: bound.to_owned(),
        };
        let lanes =
            SpillLanes::of(vec![lane(4, 1, "a", "[::]:1"), lane(5, 1, "a", "[::]:2"), lane(6, 2, "b", "[::]:3")]);
        let lanes = lanes.expect("three lanes");
        let found = |name, bound| lanes.find(name, bound).lane;
        assert_eq!([found("a", "[::]:2"), found("b", "[::]:9"), found("gone", "[::]:3")], [5, 6, 4]);
        assert_eq!((lanes.knows("b"), lanes.knows("gone"), SpillLanes::of(Vec::new())), (true, false, None));
    }
}
