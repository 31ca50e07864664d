//! Sinks that a program makes for itself and gives to a pipeline: the bench, and tests. No configuration can name one.

use std::fmt;

use super::contract::Sink;
use super::settings::{Needs, OpenedSink, Opening, SinkSettings, SinkTarget};
use crate::exit::Failure;
use crate::os::role::ThreadRole;

/// Makes the sink of each consumer.
pub struct Supplied<F>(pub F);

impl<F> fmt::Debug for Supplied<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Supplied")
    }
}

impl<F, S> SinkSettings for Supplied<F>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Sink + 'static,
{
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Nowhere
    }

    fn never_waits(&self) -> bool {
        true
    }

    fn needs(&self) -> Needs {
        Needs::only(ThreadRole::Unconfined)
    }

    fn open(&self, _: Opening<'_>) -> Result<OpenedSink, Failure> {
        Ok(OpenedSink::new(self.0()))
    }
}
