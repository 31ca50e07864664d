//! The sink itself, without a spill: fills batches, and counts what the server has answered.

use super::HttpSettings;
use crate::target::Lookup;
use udpd_base::exit::Failure;
use udpd_base::sink::settings::{OpenedSink, Opening};

#[derive(Debug)]
pub(super) struct HttpSink {}

impl HttpSink {
    pub(super) fn open(_: &HttpSettings, _: Lookup<'_>, _: &Opening<'_>) -> Result<OpenedSink, Failure> {
        Err(Failure::new(udpd_base::exit::ExitCode::Failure, "not yet".to_owned()))
    }
}
