//! A part of the fuzz target of paths: the files of senders.

use std::net::{IpAddr, SocketAddr};

use super::super::name::matches;
use super::key::{KeyReading, SourceKey, SourcePattern};

/// No two senders whose datagrams belong to different files have one path, and the path tells the sender.
pub(crate) fn source_of_name(path: &str) {
    let pattern = SourcePattern::new(path);
    let parts = pattern.parts();
    let mut filled: Vec<(String, SourceKey)> = Vec::new();
    for (source, destination) in senders() {
        let key = SourceKey::new(0, &parts, source, destination, 0);
        let own = pattern.fill(&key, "");
        assert!(pattern.fits(&own), "{own}");
        if !path.contains('%') {
            let read = pattern.read(&own, KeyReading::new(0, parts), &matches, &str::is_empty);
            assert_eq!(read.and_then(KeyReading::key), Some(key), "{own}");
        }
        for (other, of) in &filled {
            assert_eq!(*other == own, *of == key, "{own}");
        }
        filled.push((own, key));
    }
}

/// Senders whose files have names that could be mistaken for one another.
fn senders() -> Vec<(SocketAddr, IpAddr)> {
    let address = |text: &str| text.parse::<SocketAddr>().expect(text);
    let to = |text: &str| text.parse::<IpAddr>().expect(text);
    vec![
        (address("10.1.2.3:4"), to("10.0.0.1")),
        (address("10.1.23.45:43"), to("::1")),
        (address("[::]:1"), to("ff02::1")),
        (address("[2001:db8::7]:65535"), to("0.0.0.0")),
        (address("[fe80::1%3]:514"), to("fe80::1")),
        (address("[::ffff:10.1.2.3]:4"), to("::ffff:10.0.0.1")),
    ]
}
