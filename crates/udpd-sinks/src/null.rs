//! The sink that counts and drops: the cost of everything else is measured against it.

use udpd_base::exit::Failure;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::{Findings, KeyDeclaration, TableSettings, TomlTable};
use udpd_base::sink::settings::{Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget};
use udpd_base::sink::settings::{Scheme, WrittenSink};
use udpd_base::sink::{Sink, deliver};

/// Counts every datagram as delivered, and has no settings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NullSink;

impl TableSettings for NullSink {
    fn keys(_: &str) -> Vec<KeyDeclaration> {
        Vec::new()
    }

    fn read(_: &mut TomlTable<'_>, _: &mut Findings<'_>) -> Self {
        Self
    }
}

impl WrittenSink for NullSink {
    const NAME: &'static str = "null";
    const SCHEMES: &'static [Scheme] =
        &[Scheme { name: "null", form: "null:", read: |uri| uri.alone().map(|()| Self.finished()) }];
}

impl SinkSettings for NullSink {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Nowhere
    }

    fn never_waits(&self) -> bool {
        true
    }

    fn needs(&self) -> Needs {
        Needs::only(ThreadRole::Writer)
    }

    fn open(&self, _: Opening<'_>) -> Result<OpenedSink, Failure> {
        Ok(OpenedSink::new(*self))
    }

    fn goes_on(&self, before: &dyn SinkSettings, _: Differs) -> bool {
        before.of_type() == Some(self)
    }
}

impl Sink for NullSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        deliver(&mut tallies[batch.listener], batch.datagrams.summary().datagrams);
    }
}
