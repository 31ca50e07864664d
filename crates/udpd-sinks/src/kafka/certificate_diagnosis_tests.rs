//! Certificates made for each test, shown by a broker of one connection: what is wrong with one is named.

use std::net::TcpListener;
use std::thread::JoinHandle;

use openssl::asn1::Asn1Integer;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::ssl::SslAcceptor;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509Builder, X509NameBuilder};

use super::*;

const DAY: i64 = 86_400;

/// A key and a certificate of it.
struct Signed {
    key: PKey<Private>,
    certificate: X509,
}

fn key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key")
}

/// A certificate for 127.0.0.1 or for a host, valid from `days.0` to `days.1`, counted from now.
fn signed(common: &str, by: Option<&Signed>, days: (i64, i64), host: &str) -> Signed {
    let key = key();
    let mut name = X509NameBuilder::new().expect("a name");
    name.append_entry_by_nid(Nid::COMMONNAME, common).expect("a name");
    let name = name.build();
    let mut builder = X509Builder::new().expect("a certificate");
    builder.set_version(2).expect("set");
    let number = BigNum::from_u32(common.len() as u32).and_then(|number| Asn1Integer::from_bn(&number));
    builder.set_serial_number(&number.expect("a number")).expect("set");
    builder.set_subject_name(&name).expect("set");
    builder.set_issuer_name(by.map_or(&name, |by| by.certificate.subject_name())).expect("set");
    builder.set_pubkey(&key).expect("set");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    let at = |days: i64| Asn1Time::from_unix(i64::try_from(now).expect("a time") + days * DAY).expect("a time");
    builder.set_not_before(&at(days.0)).expect("set");
    builder.set_not_after(&at(days.1)).expect("set");
    match by {
        None => builder.append_extension(BasicConstraints::new().critical().ca().build().expect("built")),
        Some(by) => {
            let mut names = SubjectAlternativeName::new();
            let names = if host.parse::<IpAddr>().is_ok() { names.ip(host) } else { names.dns(host) };
            let issuer = builder.x509v3_context(Some(&by.certificate), None);
            let extension = names.build(&issuer).expect("built");
            builder.append_extension(extension)
        }
    }
    .expect("appended");
    builder.sign(by.map_or(&key, |by| &by.key), MessageDigest::sha256()).expect("signed");
    Signed { key, certificate: builder.build() }
}

/// A broker that shows a certificate to its first client.
fn broker(own: &Signed) -> (String, JoinHandle<()>) {
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).expect("an acceptor");
    acceptor.set_private_key(&own.key).expect("set");
    acceptor.set_certificate(&own.certificate).expect("set");
    let acceptor = acceptor.build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let one = move || drop(acceptor.accept(listener.accept().expect("a client").0));
    (address, std::thread::spawn(one))
}

fn file(certificate: &X509) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("certificate.pem");
    std::fs::write(&path, certificate.to_pem().expect("PEM")).expect("written");
    (directory, path)
}

/// What a client that trusts this authority says of a broker with this certificate.
fn said_of(own: &Signed, authority: &Signed) -> Option<String> {
    let (_directory, path) = file(&authority.certificate);
    let (address, accepting) = broker(own);
    let said = why(&address, Some(&path)).expect("a certificate comes");
    accepting.join().expect("accepted");
    said.map(|said| said.replace(&address, "BROKER"))
}

#[test]
fn what_is_wrong_with_a_broker_is_named() {
    let authority = signed("authority", None, (-9, 9), "");
    let good = signed("broker", Some(&authority), (-2, 9), "127.0.0.1");
    assert_eq!(said_of(&good, &authority), None);

    let said = said_of(&signed("broker", Some(&authority), (-5, -1), "127.0.0.1"), &authority).expect("refused");
    assert!(said.starts_with("the certificate of BROKER is refused: certificate has expired ("), "{said}");
    assert!(said.contains("it is of \"broker\", by \"authority\", valid from ") && said.contains(" until "), "{said}");

    let said = said_of(&signed("broker", Some(&authority), (1, 9), "127.0.0.1"), &authority).expect("refused");
    assert!(said.contains("not yet valid"), "{said}");

    let said = said_of(&signed("broker", Some(&authority), (-2, 9), "kafka.example"), &authority).expect("refused");
    assert!(said.contains("mismatch") && said.contains("for kafka.example)"), "{said}");

    let stranger = signed("stranger", None, (-9, 9), "");
    let said = said_of(&good, &stranger).expect("refused");
    assert!(said.contains("unable to get local issuer certificate"), "{said}");
}

#[test]
fn a_file_with_a_certificate_that_has_expired_is_named_and_one_without_is_not() {
    let authority = signed("authority", None, (-9, 9), "");
    let (_directory, path) = file(&signed("edge-3", Some(&authority), (-5, -1), "127.0.0.1").certificate);
    let said = expiry(&path).expect("expired");
    assert!(said.contains("\"edge-3\"") && said.contains("has expired: it was valid until "), "{said}");
    assert_eq!(valid_until(&path).as_deref(), Some(said.as_str()));

    let (_directory, path) = file(&authority.certificate);
    assert_eq!(expiry(&path), None);
    assert!(valid_until(&path).is_some_and(|said| said.contains("is valid until ")));

    std::fs::write(&path, "no certificate").expect("written");
    assert_eq!((expiry(&path), expiry(Path::new("/nonexistent"))), (None, None));
}

#[test]
fn a_file_of_authorities_that_cannot_be_read_any_more_is_named_and_never_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let (gone, pipe, empty) =
        (directory.path().join("gone"), directory.path().join("pipe"), directory.path().join("empty"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    std::fs::write(&empty, "").expect("written");
    for (path, words) in [(gone, "No such file"), (pipe, "no regular file"), (empty, "holds no certificate")] {
        let said = why("127.0.0.1:1", Some(&path)).expect("said").expect("something is wrong");
        assert!(said.contains(&format!("{} cannot be read", path.display())) && said.contains(words), "{said}");
    }
}

#[test]
fn only_so_many_threads_look_at_brokers_and_each_gives_its_turn_back() {
    let turns: Vec<_> = std::iter::from_fn(ProbeTurn::take).take(AT_ONCE_MAX + 1).collect();
    assert_eq!(turns.len(), AT_ONCE_MAX);
    drop(turns);
    assert!(ProbeTurn::take().is_some());
}

#[test]
fn a_broker_that_shows_no_certificate_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let accepting = std::thread::spawn(move || drop(listener.accept()));
    assert!(why(&address, None).is_err());
    accepting.join().expect("accepted");
    assert!(why(&address, None).is_err(), "no broker is there any more");
    assert!(why("noport", None).is_err());
}

#[test]
fn a_line_of_the_library_names_its_broker() {
    assert_eq!(broker_of("sasl_ssl://127.0.0.1:9093/bootstrap: SSL handshake failed"), Some("127.0.0.1:9093"));
    assert_eq!(broker_of("ssl://[::1]:9093/1: SSL handshake failed"), Some("[::1]:9093"));
    assert_eq!(broker_of("2/2 brokers are down"), None);
}
