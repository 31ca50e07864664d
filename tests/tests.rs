//! The end-to-end tests, one binary for all of them. Each module is one subject.

/// Bad configurations never start.
mod config;
