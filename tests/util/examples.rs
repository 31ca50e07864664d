//! The files of config/examples, with what differs on a host of tests.

use std::fs;
use std::path::Path;

/// The text of an example with these changes, each of which is found once. What it writes below /var/log/udpd goes to
/// the daemon's own directory.
pub(crate) fn example(name: &str, changes: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/examples").join(name);
    let mut text = fs::read_to_string(&path).expect("an example");
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from} in {name}");
        text = text.replace(from, to);
    }
    text.replace("/var/log/udpd", "@DIR@")
}
