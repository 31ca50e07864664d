//! The file as it is written, read by the declarations of its keys; meaning is for `check`.

pub(super) mod parts;
pub(super) mod sinks;
