//! Parts of the comparison with the bare C loop: who is compared, on which machine, and how it is written down.

pub(crate) mod contender;
pub(crate) mod machine;
pub(crate) mod report;
