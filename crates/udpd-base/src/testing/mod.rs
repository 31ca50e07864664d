//! What the tests of several crates share.

pub mod scheduler;
pub mod simulated;
pub mod simulated_disk;

/// A file system in memory, where there is one.
pub fn memory() -> std::path::PathBuf {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
