//! The configuration as written: every value with its place in the text, types checked, meaning not yet.

pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod raw;
pub(crate) mod raw_sink;
pub(crate) mod reader;
pub(crate) mod syntax;
pub(crate) mod values;
