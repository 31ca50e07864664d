//! Names of listeners and sinks, as they appear in metrics, paths and threads.

use udpd_base::text::advice::ValueAdvice;

const LENGTH_MAX: usize = 64;

/// Refuses a name that could not stand in a metric, a path or a thread name.
pub(super) fn check_name(name: &str) -> Result<String, ValueAdvice> {
    let right = "write 1 to 64 letters, digits, dots, dashes or underscores";
    if name.is_empty() {
        return Err(ValueAdvice::new("the name is empty", right));
    }
    if name.len() > LENGTH_MAX {
        return Err(ValueAdvice::new(format!("the name is {} bytes long", name.len()), right));
    }
    if let Some(odd) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"_.-".contains(*c)) {
        return Err(ValueAdvice::new(format!("{odd:?} cannot stand in a name"), right));
    }
    if name.bytes().all(|byte| byte == b'.') {
        return Err(ValueAdvice::new(format!("{name:?} would be a directory when filled into a path"), right));
    }
    Ok(name.to_owned())
}
