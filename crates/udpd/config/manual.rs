//! The page of the manual that lists every key, made from the declarations.

use std::fmt::Write as _;

use super::file::parts::keys;
use crate::settings::Key;

/// `docs/keys.md`: every key with its default, the values that are right, and what it means.
pub fn page() -> String {
    let mut page = "# The keys of udpd.toml\n\nMade from the declarations in the code; a test holds it equal to them. \
                    config/udpd.toml explains each at length.\n"
        .to_owned();
    for key in &keys().0 {
        let Key { path, default, example, bounds, help, .. } = key;
        if help.is_empty() {
            continue;
        }
        if !path.contains('.') {
            let _ =
                write!(page, "\n## `{example}`\n\n{help}\n\n| Key | Default | Values | Meaning |\n|---|---|---|---|\n");
            continue;
        }
        let name = path.split('.').skip_while(|step| ["daemon", "listener", "sink", "*", "steer"].contains(step));
        let name = name.collect::<Vec<_>>().join(".");
        let default = default.as_ref().map_or("required".to_owned(), |default| format!("`{default}`"));
        let cells = [format!("`{name}`"), default, bounds.replace('"', "`"), help.clone()];
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    page
}
