//! The sink against peers that speak TLS; the certificates lie in `testing/`, and are good for a hundred years.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::search::{PeerSearch, SearchState};
use super::tests::{give, lines, numbered, sink, to, until};
use super::*;
use crate::tls::{self, TlsSettings};
use udpd_base::ledger::{CounterTable as _, Tallies};
use udpd_base::sink::Sink;

pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tcp/testing").join(format!("{name}.pem"))
}

fn certificates(name: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file(name)).expect("a file").collect::<Result<_, _>>().expect("certificates")
}

/// A peer with this certificate, which may ask for one of the same authority.
pub(crate) fn server(name: &str, asks: bool) -> Arc<ServerConfig> {
    let provider = Arc::new(tls::provider().expect("cryptography"));
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates("ca"));
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let builder = match asks {
        true => builder.with_client_cert_verifier(verifier.build().expect("a verifier")),
        false => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::from_pem_file(file(name)).expect("a key");
    Arc::new(builder.with_single_cert(certificates(name), key).expect("they go together"))
}

/// Accepts so many connections, and returns the lines of each.
fn peer(config: Arc<ServerConfig>, connections: usize) -> (SocketAddr, JoinHandle<Vec<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serve = move || {
        let accept = |_| {
            let (stream, _) = listener.accept().expect("a connection");
            lines(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).expect("a connection"), stream))
        };
        (0..connections).map(accept).collect()
    };
    (address, std::thread::spawn(serve))
}

pub(crate) fn trusting(name: &str) -> TlsSettings {
    TlsSettings { on: true, ca_file: Some(file(name)), ..TlsSettings::default() }
}

#[test]
fn by_tls_everything_arrives_once_and_counts_when_it_is_acknowledged() {
    const COUNT: usize = 20_000;
    for asks in [false, true] {
        let (address, reader) = peer(server("server", asks), 1);
        let own = asks.then(|| file("client"));
        let tls = TlsSettings { certificate_file: own.clone(), key_file: own, ..trusting("ca") };
        let mut sink = sink(&TcpSettings { tls, ..to(&[address]) });
        let mut tallies = Tallies::new(0..1);
        let mut given = 0;
        while given < COUNT {
            give(&mut sink, &numbered(given..given + 200, 100), &mut tallies);
            given += 200;
        }
        until(&mut sink, &mut tallies, "all are acknowledged", |tally| tally.pending == 0);
        Sink::finish(&mut sink, &mut tallies, &mut |_| ());
        drop(sink);
        assert_eq!(reader.join().expect("no panic"), [(0..COUNT).collect::<Vec<_>>()]);
        assert_eq!((tallies[0].delivered, tallies[0].dropped.total()), (COUNT as u64, 0));
    }
}

#[test]
fn what_is_enciphered_while_a_peer_reads_nothing_goes_on_its_way_when_it_reads_again() {
    const COUNT: usize = 3000;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (release, released) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let connection = ServerConnection::new(server("server", false)).expect("a connection");
        let mut stream = StreamOwned::new(connection, listener.accept().expect("a connection").0);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).expect("the handshake");
        }
        released.recv().expect("it is released");
        lines(stream)
    });
    let mut sink = sink(&TcpSettings { tls: trusting("ca"), ..to(&[address]) });
    let mut tallies = Tallies::new(0..1);
    // Small buffers of both kernels would need more than this test controls: what does not fit them waits in any case.
    give(&mut sink, &numbered(0..COUNT, 600), &mut tallies);
    let mut before = u64::MAX;
    until(&mut sink, &mut tallies, "no more is acknowledged", |tally| {
        std::thread::sleep(Duration::from_millis(20));
        tally.delivered > 0 && std::mem::replace(&mut before, tally.delivered) == tally.delivered
    });
    release.send(()).expect("the peer waits");
    until(&mut sink, &mut tallies, "the rest is acknowledged", |tally| tally.pending == 0);
    Sink::finish(&mut sink, &mut tallies, &mut |_| ());
    drop(sink);
    assert_eq!(reader.join().expect("no panic"), (0..COUNT).collect::<Vec<_>>());
    assert_eq!(tallies[0].delivered, COUNT as u64);
}

#[test]
fn a_tls_peer_may_say_as_much_as_it_likes() {
    const COUNT: usize = 300;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let peer = std::thread::spawn(move || {
        let connection = ServerConnection::new(server("server", false)).expect("a connection");
        let mut stream = StreamOwned::new(connection, listener.accept().expect("a connection").0);
        let (mut found, mut byte) = (Vec::new(), [0]);
        // An answer of a kilobyte to each line.
        while found.len() < COUNT * (20 + 1) && stream.read(&mut byte).is_ok_and(|read| read > 0) {
            found.push(byte[0]);
            if byte[0] == b'\n' && stream.write_all(&[b'x'; 1024]).is_err() {
                break;
            }
        }
        lines(found.as_slice())
    });
    let mut sink = sink(&TcpSettings { tls: trusting("ca"), ..to(&[address]) });
    let mut tallies = Tallies::new(0..1);
    for payload in numbered(0..COUNT, 20).chunks(5) {
        give(&mut sink, payload, &mut tallies);
        until(&mut sink, &mut tallies, "they are acknowledged", |tally| tally.pending == 0);
    }
    Sink::finish(&mut sink, &mut tallies, &mut |_| ());
    assert_eq!(peer.join().expect("no panic"), (0..COUNT).collect::<Vec<_>>());
    assert_eq!((tallies[0].delivered, tallies[0].stream_repeats_at_most), (COUNT as u64, 0));
}

#[test]
fn a_peer_that_is_not_trusted_gets_nothing_and_the_cure_is_named() {
    let cases = [
        ("expired", trusting("ca"), "a new certificate"),
        ("misnamed", trusting("ca"), "tls_server_name"),
        ("server", trusting("other_ca"), "tls_ca_file"),
    ];
    for (name, tls, cure) in cases {
        let (address, reader) = peer(server(name, false), 1);
        let settings = TcpSettings { tls, ..to(&[address]) };
        let config = settings.tls.client().expect("it can be had");
        let names = Arc::new([settings.tls.name_of(&settings.destinations[0])]);
        let search =
            PeerSearch::new([(0, address)].into(), config.map(|config| (config, names as _)), settings.timeout);
        let error = failure(search);
        let found = error.get_ref().and_then(|inner| inner.downcast_ref()).map(tls::cure).expect("an error of TLS");
        assert!(found.contains(cure), "{name}: {error}{found}");
        assert_eq!(reader.join().expect("no panic"), [Vec::<usize>::new()], "{name}");
    }
}

#[test]
fn a_peer_that_asks_for_a_certificate_or_speaks_no_tls_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let plain = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut hello = [0; 1];
        stream.read_exact(&mut hello).expect("it says hello");
        std::io::Write::write_all(&mut stream, b"220 no TLS here\r\n").expect("written");
        // With unread bytes the kernel would reset the connection.
        let _ = stream.read_to_end(&mut Vec::new());
        hello[0]
    });
    let settings = TcpSettings { tls: trusting("ca"), ..to(&[address]) };
    let config = settings.tls.client().expect("it can be had").map(|config| {
        let names = Arc::new([settings.tls.name_of(&settings.destinations[0])]);
        (config, names as _)
    });
    let error = failure(PeerSearch::new([(0, address)].into(), config, settings.timeout));
    let found = error.get_ref().and_then(|inner| inner.downcast_ref()).map(tls::cure).expect("an error of TLS");
    assert!(found.contains("does not speak TLS"), "{error}{found}");
    assert_eq!(plain.join().expect("no panic"), 22, "the first byte of a handshake");
    // A certificate that is asked for is missing.
    let (address, reader) = peer(server("server", true), 1);
    let mut sink = sink(&TcpSettings { tls: trusting("ca"), ..to(&[address]) });
    let mut tallies = Tallies::new(0..1);
    give(&mut sink, &numbered(0..10, 20), &mut tallies);
    until(&mut sink, &mut tallies, "the peer ends the connection", |_| reader.is_finished());
    assert_eq!(reader.join().expect("no panic"), [Vec::<usize>::new()]);
    assert_eq!((tallies[0].delivered, tallies[0].pending), (0, 10), "nothing counts that such a peer has thrown away");
}

/// The error with which a search ends.
fn failure(mut search: PeerSearch) -> std::io::Error {
    loop {
        match search.look(std::time::Instant::now()) {
            SearchState::GoesOn => std::thread::yield_now(),
            SearchState::Failed(_, error) => return error,
            SearchState::Found(found) => panic!("{found:?} is trusted"),
        }
    }
}
