//! Fuzz targets: the ledger as the commands read it from a daemon, which may be of another version.

use udpd_base::ledger::Snapshot;

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("ledger", ledger)]
}

/// What is read of a ledger and written again is read as the same; what people are shown of it commands no terminal.
fn ledger(input: &[u8]) {
    let mut readings = Vec::new();
    for half in input.split(|byte| *byte == 0) {
        let Ok(snapshot) = serde_json::from_slice::<Snapshot>(half) else { continue };
        let written = serde_json::to_string(&snapshot).expect("JSON");
        let again = serde_json::from_str::<Snapshot>(&written).expect("JSON of ours");
        assert_eq!(serde_json::to_string(&again).expect("JSON"), written);
        let text = crate::stats::render(&snapshot);
        // The daemon escapes the names of other processes, so only a ledger that is none of udpd holds such letters.
        assert!(
            written.contains('\\') || !text.contains(|letter: char| letter.is_control() && letter != '\n'),
            "{text:?}"
        );
        readings.push(snapshot);
    }
    crate::top::fuzz::pictures(readings);
}
