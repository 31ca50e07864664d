//! Which changes of a configuration make another pipeline.

use super::*;
use udpd_engine::config::HostView;

fn with(daemon: &str, listener: &str, sink: &str) -> Config {
    let text = format!(
        "[daemon]\n{daemon}\n[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"out\"]\n{listener}\n\
         [sink.out]\ntype = \"null\"\n{sink}\n"
    );
    Config::parse(&text, "test.toml", &HostView::default()).expect("valid")
}

#[test]
fn each_key_of_a_listener_a_sink_or_the_pool_makes_another_pipeline() {
    let plain = with("", "", "");
    let differ = [
        ("pool_bytes = \"64MiB\"", "", ""),
        ("", "lanes = 2", ""),
        ("", "batch_size = 7", ""),
        ("", "", "consumers = 2"),
        ("", "", "inline = true"),
        ("", "", "queue_bytes = \"8MiB\""),
        ("", "", "when_full = \"drop_oldest\""),
        ("", "", "[sink.other]\ntype = \"null\""),
    ];
    for (daemon, listener, sink) in differ {
        let other = with(daemon, listener, sink);
        assert!(!is_same(&other, &plain) && !is_same(&plain, &other), "{daemon}{listener}{sink}");
    }
    for same in ["", "log_level = \"error\"", "metrics_address = \"127.0.0.1:9100\""] {
        assert!(is_same(&with(same, "", ""), &plain), "{same}");
    }
}
