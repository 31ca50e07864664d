//! Where a simulation takes the place of the system: the clock, waits between threads, and the disk. The daemon asks
//! for the time and sleeps here and nowhere else; the lint `disallowed_methods` holds that. The sinks change their
//! files here.
//!
//! In a build for tests a thread that has entered a simulation (`crate::testing::simulated`) gets what that decides:
//! the time, which thread goes on next, a disk that fails. Every other build has nothing of it left.

pub mod clock;
pub mod disk;
pub mod waits;
