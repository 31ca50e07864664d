//! The ledger of a fleet: exporters whose datagrams go to one member and then to another, and back, with losses on the
//! way, of which the sum must say to the datagram what no member has.

use std::net::{SocketAddr, UdpSocket};

use serde_json::{Value, json};

use crate::util::*;

/// How many numbers an exporter uses.
const NUMBERS: u64 = 3000;

/// How many go to one member before they go to the other.
const STAY: u64 = 500;

/// A member that listens on this address, and where its ledger is.
fn member(address: SocketAddr) -> (Daemon, String) {
    let metrics = free_address();
    let setup = Setup::at(address).daemon(&format!("metrics_address = '{metrics}'"));
    let setup = setup.keys("sequence = { offset = 0, bytes = 4 }\nreceive_buffer = '8MiB'").null("out");
    (setup.start(), format!("http://{metrics}"))
}

fn fleet(members: &[&str], form: &[&str]) -> Outcome {
    udpd(&[&["stats", "--fleet"], members, form].concat())
}

/// The sum once it has a stream of each exporter with this sum of what was received.
fn sum_when(members: &[&str], received: u64) -> Value {
    let mut found = Value::Null;
    until("all of it is in the streams", || {
        let sum = fleet(members, &["--json"]).json();
        found = sum["listeners"][0].clone();
        found["streams"][0]["received"] == received
    });
    found
}

#[test]
fn what_no_member_of_a_fleet_received_is_exact_for_exporters_that_move_between_members() {
    let port = free_address().port();
    let [first, second] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| SocketAddr::from((ip, port)));
    let ((one, at_one), (other, at_other)) = (member(first), member(second));
    let exporters: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port")).collect();
    let (mut sent, mut lost) = ([0_u64; 2], 0);
    for number in 0..NUMBERS {
        let place = (number / STAY % 2) as usize;
        for exporter in &exporters {
            // Each loses every tenth, and one of them what is at the border between members.
            if number > 0 && number < NUMBERS - 1 && (number % 10 == 5 || number % STAY < 2) {
                lost += 1;
                continue;
            }
            let bytes = (number as u32).to_be_bytes();
            assert_eq!(exporter.send_to(&bytes, [first, second][place]).expect("loopback takes it"), 4);
            sent[place] += 1;
        }
        if number % 100 == 99 {
            one.until_received(sent[0]);
            other.until_received(sent[1]);
        }
    }
    one.until_received(sent[0]);
    other.until_received(sent[1]);
    let received = sent[0] + sent[1];
    let sum = sum_when(&[&at_one, &at_other], received);
    assert_eq!((&sum["received"], &sum["residual"]), (&json!(received), &json!(0)), "{sum:#}");
    let expected = json!([{
        "unit": "datagrams", "streams": 3, "moved": 3, "sent": 3 * NUMBERS, "received": received, "missing": lost,
        "unknown": [],
    }]);
    assert_eq!(sum["streams"], expected, "{sum:#}");
    // Each member alone takes for lost what went to the other.
    let alone = fleet(&[&at_one], &["--json"]).json();
    assert!(count(&alone["listeners"][0]["streams"][0], "missing") > lost, "{alone:#}");

    // One member has ended: its numbers are not taken for nothing.
    other.terminate();
    let outcome = fleet(&[&at_one, &at_other], &["--json"]).ends(69, &["the sum is unknown", &at_other]);
    let json: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!((&json["complete"], &json["listeners"][0]["received"]), (&json!(false), &Value::Null), "{json:#}");
    assert_eq!(json["listeners"][0]["streams"][0]["missing"], Value::Null, "{json:#}");
    one.terminate();
}
