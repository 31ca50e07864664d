//! Brokers as companies have them: TLS, and who udpd is (cargo feature `kafka-tls`), against the broker of the rig.
//! What is right delivers everything once; what is wrong is named once with its cause, and what is put right is taken.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::broker::Broker;
use crate::pipeline::{Running, to_kafka};
use crate::util::*;
use crate::{datagrams, log_lines, past_two_restarts, running_broker, topic};

/// What waits for a broker that does not let udpd in.
const FEW: u64 = 300;

fn send(address: SocketAddr, datagrams: u64) -> u64 {
    Load::new(address, Amount::Count(datagrams)).rate(10_000).send().sent
}

/// Writes a token without a signature, which the rig's broker takes, for so many seconds from now on.
fn write_token(path: &Path, subject: &str, seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
    let expires = i64::try_from(now).expect("a time") + seconds;
    let part = |text: &str| {
        let encoded = openssl::base64::encode_block(text.as_bytes());
        encoded.trim_end_matches('=').replace('+', "-").replace('/', "_")
    };
    let claims = format!(r#"{{"sub":"{subject}","iat":{},"exp":{expires}}}"#, expires - 7200);
    let token = format!("{}.{}.", part(r#"{"alg":"none"}"#), part(&claims));
    std::fs::write(path, &token).expect("written");
    token
}

/// Keys of a sink that trusts the rig's authority.
fn tls(broker: &Broker, listener: &str, topic: &str, more: &str) -> String {
    format!(
        "brokers = \"{}\"\ntopic = \"{topic}\"\ntls = true\ntls_ca_file = \"{}\"\n{more}\n",
        broker.address_of(listener),
        broker.file("ca.pem").display()
    )
}

fn with_password(mechanism: &str, file: &Path) -> String {
    format!("sasl = \"{mechanism}\"\nusername = \"udpd\"\npassword_file = \"{}\"", file.display())
}

fn with_certificate(broker: &Broker, certificate: &Path) -> String {
    let key = broker.file("udpd.key");
    format!("tls_certificate_file = \"{}\"\ntls_key_file = \"{}\"", certificate.display(), key.display())
}

#[test]
fn a_sink_that_can_prove_who_it_is_delivers_everything_once_in_every_compression_and_shows_no_secret() {
    let Some((broker, _alone)) = running_broker() else { return };
    let (password, token_file) = (broker.file("password"), broker.file("token"));
    let token = write_token(&token_file, "edge-3", 3600);
    let of_token = format!("sasl = \"OAUTHBEARER\"\ntoken_file = \"{}\"", token_file.display());
    let ways = [
        ("mutual", "MUTUAL", with_certificate(&broker, &broker.file("udpd.pem")), "none"),
        ("plain", "SECRET", with_password("PLAIN", &password), "gzip"),
        ("scram-256", "SECRET", with_password("SCRAM-SHA-256", &password), "zstd"),
        ("scram-512", "SECRET", with_password("SCRAM-SHA-512", &password), "lz4"),
        ("token", "SECRET", of_token, "snappy"),
    ];
    let addresses: Vec<_> = ways.iter().map(|_| free_address()).collect();
    let mut text = "[daemon]\nlog_level = \"debug\"\n".to_owned();
    for ((name, listener, who, compression), address) in ways.iter().zip(&addresses) {
        text += &format!(
            "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\nsinks = [\"{name}\"]\n\
             [sink.{name}]\ntype = \"kafka\"\ncompression = \"{compression}\"\n{}\
             [sink.{name}.properties]\ndebug = \"all\"\n",
            tls(&broker, listener, "tls.{listener}", who)
        );
    }
    let daemon = Daemon::with_config(&text);
    let sent: Vec<u64> = addresses.iter().map(|address| send(*address, 2_000)).collect();
    let delivered = |listener: &serde_json::Value| count(&listener["sinks"][0], "delivered");
    daemon.stats_when("all deliveries", |ledger| {
        list(ledger, "listeners").iter().zip(&sent).all(|(listener, sent)| delivered(listener) == *sent)
    });
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent.iter().sum());
    for ((name, ..), sent) in ways.iter().zip(&sent) {
        topic::read_of(broker.address(), &format!("tls.{name}"), name).assert_exactly_once_in_order(*sent);
    }
    assert!(ended.stderr.contains("SCRAM-SHA-512"), "the library has said all that it can say");
    let password = std::fs::read_to_string(password).expect("a password");
    for secret in [password.trim(), token.as_str()] {
        let shown = ended.stderr.lines().find(|line| line.contains(secret));
        assert_eq!(shown, None, "no line shows it");
        assert!(!ended.ledger.to_string().contains(secret), "nor does the ledger");
    }
}

#[test]
fn a_broker_behind_tls_that_is_restarted_twice_gets_everything_once() {
    let Some((broker, _alone)) = running_broker() else { return };
    let who = with_password("SCRAM-SHA-512", &broker.file("password"));
    let running = Running::start(&tls(&broker, "SECRET", "behind-tls", &who));
    past_two_restarts(&broker, running, "behind-tls", datagrams());
}

#[test]
fn a_wrong_password_and_an_old_token_are_named_once_and_a_new_token_is_taken_without_a_reload() {
    let Some((broker, _alone)) = running_broker() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (password, token) = (directory.path().join("password"), directory.path().join("token"));
    std::fs::write(&password, "not the right one").expect("written");
    write_token(&token, "edge-3", -60);
    let of_token = format!("sasl = \"OAUTHBEARER\"\ntoken_file = \"{}\"", token.display());
    let brief = "\n[sink.stream.properties]\n\"message.timeout.ms\" = 6000";
    let stranger = with_password("SCRAM-SHA-256", &password) + brief;
    let stranger = Running::start(&tls(&broker, "SECRET", "stranger", &stranger));
    let late = Running::start(&tls(&broker, "SECRET", "late-token", &of_token));
    let sent = send(stranger.address(), FEW);
    let sent_late = send(late.address(), FEW);
    stranger.wait("the first cause", |_| log_lines::count("do not let udpd in: sasl_ssl://") == 1);
    late.wait("the second cause", |_| log_lines::count("its token expired at ") == 1);
    write_token(&token, "edge-3", 3600);
    late.wait("the new token", |sink| count(sink, "delivered") == sent_late);
    stranger.wait("the end of its datagrams", |sink| dropped(sink, "sink_error") == sent);
    assert_eq!(log_lines::count("do not let udpd in: sasl_ssl://"), 1, "once, however often it was tried");
    assert_eq!(log_lines::count("invalid credentials"), 2, "and once by the library");
    assert_eq!(log_lines::count("its token expired at "), 1);
    assert_eq!(log_lines::count("no broker of "), 0, "brokers answer");
    assert_eq!(log_lines::count("a broker of "), 1, "the end of what was wrong is said");
    assert!(log_lines::all() <= 20, "a few lines besides");
    assert_eq!(log_lines::count("not the right one"), 0);
    assert_closed(&late.stop(), sent_late);
    assert_closed(&stranger.stop(), sent);
    topic::read(broker.address(), "late-token").assert_exactly_once_in_order(sent_late);
}

#[test]
fn a_brokers_certificate_that_has_expired_is_named_as_such_and_all_goes_through_when_it_is_renewed() {
    let Some((broker, _alone)) = running_broker() else { return };
    let running = Running::start(&tls(&broker, "RENEWABLE", "renewed", ""));
    let sent = send(running.address(), FEW);
    running.wait("the cause", |_| log_lines::count("is refused: certificate has expired (it is of \"broker\"") == 1);
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == sent);
    broker.stop();
    std::fs::copy(broker.file("broker-keystore.pem"), broker.file("renewable-keystore.pem")).expect("renewed");
    broker.start();
    running.wait("the last acknowledgement", |sink| count(sink, "delivered") == sent);
    assert_eq!(log_lines::count("WARN "), 1, "one cause, one warning");
    assert_eq!(log_lines::count("INFO sink stream: a broker of "), 1);
    assert_closed(&running.stop(), sent);
    topic::read(broker.address(), "renewed").assert_exactly_once_in_order(sent);
}

#[test]
fn a_certificate_of_ours_that_has_expired_is_named_and_a_reload_takes_the_renewed_one() {
    let Some((broker, _alone)) = running_broker() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let own = directory.path().join("udpd.pem");
    std::fs::copy(broker.file("udpd-expired.pem"), &own).expect("copied");
    let keys = tls(&broker, "MUTUAL", "own", &with_certificate(&broker, &own));

    let running = Running::start(&keys);
    let waiting = send(running.address(), FEW);
    running.wait("the cause", |_| log_lines::count("refuse the certificate of udpd: ") == 1);
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == waiting);
    assert_eq!(log_lines::count(" has expired: it was valid until Feb  1 00:00:00 2020 GMT; check it"), 1);

    std::fs::copy(broker.file("udpd.pem"), &own).expect("renewed");
    let running = running.reload(&keys, 1);
    let after = send(running.address(), FEW);
    running.wait("what came after", |sink| count(sink, "delivered") == after);
    // What waited for brokers that do not let udpd in is failed by a reload, and counted.
    running.wait("the end of the others", |sink| dropped(sink, "sink_error") == waiting);
    assert_eq!(log_lines::count(&format!("no broker acknowledged {waiting} datagrams")), 1);
    assert_closed(&running.stop(), waiting + after);
    topic::read(broker.address(), "own").assert_exactly_once_in_order(after);
}

#[test]
fn a_certificate_of_ours_that_has_expired_is_a_warning_of_check() {
    let Some(broker) = Broker::of_the_rig() else { return };
    let keys = tls(&broker, "MUTUAL", "own", &with_certificate(&broker, &broker.file("udpd-expired.pem")));
    let said = to_kafka(free_address(), 1, &keys).check().succeeds(&[]).text();
    let warning = "sink.stream.tls_certificate_file: the certificate of \"udpd\"";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
}

#[test]
fn a_password_that_is_put_right_is_taken_by_a_reload() {
    let Some((broker, _alone)) = running_broker() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let password = directory.path().join("password");
    std::fs::write(&password, "not the right one").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o644)).expect("set");
    let keys = tls(&broker, "SECRET", "put-right", &with_password("PLAIN", &password));
    let address = free_address();
    let daemon = to_kafka(address, 1, &keys).start();
    let reload = || daemon.command("reload").succeeds(&[]).stdout;
    let same = reload();
    // As a file is usually replaced: another one takes its name.
    let right = directory.path().join("right");
    std::fs::copy(broker.file("password"), &right).expect("copied");
    std::fs::rename(&right, &password).expect("put right");
    assert_ne!(reload(), same, "another password is another sink");
    let sent = send(address, FEW);
    daemon.stats_when("delivery", |ledger| delivered(ledger) == sent);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    assert!(ended.stderr.contains("every user of this host may use"), "who may read it is warned of");
    topic::read(broker.address(), "put-right").assert_exactly_once_in_order(sent);
}

#[test]
fn a_topic_that_udpd_may_not_write_to_takes_what_waited_on_the_disk_when_it_may_once_and_in_order() {
    let Some((broker, _alone)) = running_broker() else { return };
    let (topic, spill) = ("guarded", tempfile::tempdir().expect("a directory"));
    broker.make_topic(topic, 4);
    let rule = ["--deny-principal", "User:udpd", "--operation", "Write", "--topic", topic, "--force"];
    let who = with_password("PLAIN", &broker.file("password"));
    let kept = format!("spill = {{ path = \"{}\", bytes = \"64MiB\" }}\n{who}", spill.path().display());
    let running = Running::start(&tls(&broker, "SECRET", topic, &kept));
    let delivered = send(running.address(), FEW);
    running.wait("the first delivery", |sink| count(sink, "delivered") == delivered);
    broker.rule(&[&["--add"], &rule[..]].concat());
    let sent = delivered + send(running.address(), FEW);
    running.wait("the cause", |_| log_lines::count("topic guarded takes nothing now: ") == 1);
    running.wait("all of it to wait", |sink| count(sink, "spilled") == sent - delivered);
    broker.rule(&[&["--remove"], &rule[..]].concat());
    running.wait("the second delivery", |sink| count(sink, "delivered") == sent);
    assert_closed(&running.stop(), sent);
    topic::read(broker.address(), topic).assert_exactly_once_in_order(sent);
}
