//! Fuzz targets: the record that a killed process has left, and the unit that systemd shows.

use crate::check::unit::{check_of, logical_lines};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("crash_record", crate::run::fuzz::record), ("unit_files", unit)]
}

/// No line is longer than what it was made of, and a command is made only of one that starts udpd.
fn unit(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let lines = logical_lines(text);
    assert!(lines.iter().map(String::len).sum::<usize>() <= text.len() + lines.len());
    for line in &lines {
        if let Ok(command) = check_of(line, text.len() % 2 == 0) {
            assert!(command.contains("check") && line.contains("udpd"), "{line:?} gave {command:?}");
        }
    }
}
