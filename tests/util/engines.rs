//! The engines of this machine, as lines of a listener, so that a test holds for each of them.

use mmsg::Uring;

/// Every engine, with and without letting datagrams gather. Says so where the machine refuses one.
pub(crate) fn engines() -> Vec<&'static str> {
    let mut lines = vec!["engine = 'recvmmsg'", "engine = 'recvmmsg'\ngather = '1ms'"];
    match Uring::supported() {
        Ok(()) => lines.extend(["engine = 'io_uring'", "engine = 'io_uring'\ngather = '1ms'"]),
        Err(why) => super::outcome::not_checked(&format!("engine = 'io_uring': {why}")),
    }
    lines
}

/// The two that differ most, where each run takes its time: recvmmsg at once, and io_uring that lets gather.
pub(crate) fn two_engines() -> Vec<&'static str> {
    let engines = engines();
    engines.iter().copied().filter(|line| line.contains("recvmmsg") != line.contains("gather")).collect()
}

/// The name of the engine in such a line.
pub(crate) fn name_in(line: &str) -> &str {
    line.split('\'').nth(1).expect("a line of engines()")
}
