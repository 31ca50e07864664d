//! The file as it is written, read by the declarations of its keys; meaning is for `check`.

pub(crate) mod parts;
pub(crate) mod sinks;
