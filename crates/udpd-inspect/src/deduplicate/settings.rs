//! `deduplicate`: which datagrams are copies of one another, and for how long, as it may be written.

use std::time::Duration;

use udpd_base::settings::kinds::{OneOf, Optional, SubTable, TimeSpan};
use udpd_base::settings::{Field, Findings, KeyDeclaration, ValueKind, settings};

settings! {
    /// The copies that a listener drops.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Copies {
        /// For so long a datagram is remembered. "0s" = copies are not looked for.
        window: Duration = "0s" like "2s", TimeSpan(Duration::ZERO..=Duration::from_secs(60));
        /// What copies have in common: their payload, or the number that `sequence` reads.
        key: CopyKey = "payload", OneOf(KEYS), elsewhere "by";
        /// The feed that this listener has a side of: a copy of what came to another listener of the feed is dropped,
        /// too. "" = this listener is all of it.
        feed: Option<String> = "", Optional(|name| Ok(name.to_owned())), elsewhere "with group";
    }
}

/// What copies have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyKey {
    Payload,
    /// The sequence number, with what the protocol has beside it to tell streams apart.
    Sequence,
}

const KEYS: &[(&str, CopyKey)] = &[("payload", CopyKey::Payload), ("sequence", CopyKey::Sequence)];

/// Below this a receiver that is interrupted is late for it.
const WINDOW_MIN: Duration = Duration::from_millis(10);

/// A window with a key, or none where it is empty.
#[derive(Debug)]
pub struct Deduplicate;

impl ValueKind<Option<Copies>> for Deduplicate {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Option<Copies>> {
        let before = findings.count();
        let copies: Copies = SubTable.read(field, findings)?;
        if findings.count() > before {
            return None;
        }
        let place = || field.inner("window").unwrap_or_else(|| field.place());
        if copies.window.is_zero() {
            if copies != Copies::default() {
                let what = "without a window no datagram is remembered";
                findings.say(&place(), what, "write window = \"2s\", longer than one side is ever behind the other");
            }
            return Some(None);
        }
        if copies.window < WINDOW_MIN {
            findings.say(&place(), "udpd looks at the time once for each batch", "write at least \"10ms\"");
        }
        Some(Some(copies))
    }

    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        ValueKind::<Copies>::keys(&SubTable, own)
    }
}
