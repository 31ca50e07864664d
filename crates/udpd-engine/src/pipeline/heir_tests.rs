//! Which sinks an heir goes on with, asked of a pipeline that runs.

use std::time::Instant;

use std::net::UdpSocket;

use super::*;

#[test]
fn a_sink_goes_on_unless_one_of_its_consumers_has_ended_because_nothing_fed_it_any_more() {
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"{free}\"\nsinks = [\"out\"]\nlanes = 1\n[sink.out]\ntype = \"null\"\n"
    );
    let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
    let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
    let (registry, _events) = ThreadRegistry::new();
    let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry).expect("it starts");
    assert_eq!(pipeline.forerunner().stays(&config, &plan, 0), Some(0));
    pipeline.books.end_channels();
    assert!(pipeline.consumers[0].ended.recv().is_err(), "it has ended");
    assert_eq!(pipeline.forerunner().stays(&config, &plan, 0), None);
    let ledger = pipeline.stop(Duration::from_secs(5), |_| false);
    assert_eq!(ledger.listeners[0].residual, Some(0));
}
