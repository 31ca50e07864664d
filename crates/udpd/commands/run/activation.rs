//! Sockets that systemd has made for us: a `.socket` unit hands them over as open descriptors from number 3 on, and
//! says so in LISTEN_FDS and LISTEN_PID.
//!
//! This version binds its own sockets and takes none over. Beside the ones that it was given that could only end in
//! "address already in use", with nobody to name but itself. So it says what is the matter before it binds anything.

use crate::exit::{ExitCode, Failure};

/// Refuses to start where systemd has passed sockets to this process.
pub(crate) fn refuse_passed_sockets() -> Result<(), Failure> {
    let variable = |name| std::env::var(name).ok();
    match passed(variable("LISTEN_FDS").as_deref(), variable("LISTEN_PID").as_deref(), std::process::id()) {
        0 => Ok(()),
        count => {
            let sockets = if count == 1 { "1 socket" } else { &format!("{count} sockets") };
            let message = format!(
                "systemd passed {sockets} to udpd (LISTEN_FDS={count}), from a .socket unit: this version binds its \
                 own sockets; disable that unit (`systemctl disable --now udpd.socket`) and start the service"
            );
            Err(Failure::new(ExitCode::Configuration, message))
        }
    }
}

/// How many sockets were passed to this process. What was meant for another one, and inherited from it, is none of
/// ours.
fn passed(count: Option<&str>, process: Option<&str>, own_process: u32) -> u32 {
    match process.map(str::parse::<u32>) {
        Some(Ok(process)) if process == own_process => count.and_then(|count| count.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_passed_to_this_process_counts() {
        assert_eq!(passed(Some("2"), Some("7"), 7), 2);
        for (count, process) in
            [(None, None), (Some("2"), None), (Some("2"), Some("8")), (Some("0"), Some("7")), (None, Some("7"))]
        {
            assert_eq!(passed(count, process, 7), 0, "{count:?} {process:?}");
        }
        assert_eq!(passed(Some("nonsense"), Some("7"), 7), 0);
        assert_eq!(passed(Some("2"), Some("nonsense"), 7), 0);
    }
}
