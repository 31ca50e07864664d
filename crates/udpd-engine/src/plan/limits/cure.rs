//! Which keys to lower where a plan takes too much memory: those that its largest part follows from, with their values.

use crate::config::Config;
use crate::plan::memory::Bytes;
use crate::plan::whole::PipelinePlan;
use udpd_base::text::units::{print_duration, print_size};

pub(super) fn cure(config: &Config, plan: &PipelinePlan) -> String {
    let memory = plan.memory();
    let shared_bytes = memory.waiting_bytes.saturating_sub(memory.asked_bytes);
    let parts = [memory.asked_bytes, memory.batches_bytes, memory.sink_bytes, shared_bytes];
    match parts.iter().position(|part| Some(part) == parts.iter().max()) {
        Some(0) => asked(config),
        Some(1) => batches(config, plan),
        Some(2) => "lower consumers of the sinks".to_owned(),
        _ => format!("lower pool_bytes under [daemon] ({})", size(config.daemon.pool_bytes)),
    }
}

/// What somebody has written because he wants that much to wait.
fn asked(config: &Config) -> String {
    let queues = config.sinks.iter().filter(|sink| sink.queue_bytes.is_some());
    let queues: Vec<String> = queues.map(|sink| format!("{} of sink {}", size(sink.queue_bytes), sink.name)).collect();
    let bursts = config.listeners.iter().filter(|listener| listener.absorb.is_written);
    let burst = |name: &str, rate: u64, stall: &str| format!("{rate}/s for {stall} of listener {name}");
    let bursts: Vec<String> = bursts
        .map(|listener| burst(&listener.name, listener.absorb.rate, &print_duration(listener.absorb.stall)))
        .collect();
    let named = [("queue_bytes", queues), ("absorb", bursts)];
    let named = named.iter().filter(|(_, values)| !values.is_empty());
    let named: Vec<String> = named.map(|(key, values)| format!("{key} ({})", shortened(values))).collect();
    format!("lower {}", named.join(" or "))
}

/// A list of hundreds helps nobody.
fn shortened(values: &[String]) -> String {
    const SHOWN_MAX: usize = 4;
    match values.len() {
        0..=SHOWN_MAX => values.join(", "),
        count => format!("{}, and {} more", values[..SHOWN_MAX].join(", "), count - SHOWN_MAX),
    }
}

/// Of the listener whose lanes take the most.
fn batches(config: &Config, plan: &PipelinePlan) -> String {
    let lanes = |listener: usize| plan.lanes.iter().filter(move |lane| lane.listener == listener);
    let bytes_of = |listener: usize| lanes(listener).map(|lane| lane.batches_bytes()).sum::<usize>();
    let Some(largest) = (0..config.listeners.len()).max_by_key(|&listener| bytes_of(listener)) else {
        return "name fewer listeners".to_owned();
    };
    let listener = &config.listeners[largest];
    let slots = match listener.gro.is_on() {
        true => "write gro = \"off\", whose batches take 64 KiB for each message".to_owned(),
        false => format!("lower max_length ({} bytes)", listener.max_length_bytes),
    };
    format!(
        "of the batches {} are for listener {}: {slots}, lower batch_size ({}) or lanes ({})",
        Bytes(bytes_of(largest)),
        listener.name,
        listener.batch_size,
        lanes(largest).count()
    )
}

fn size(bytes: Option<usize>) -> String {
    bytes.map_or("auto".to_owned(), |bytes| print_size(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::limits::testing::planned;

    fn cured(listener: &str, sink: &str) -> String {
        let (config, plan) = planned(listener, sink);
        cure(&config, &plan)
    }

    #[test]
    fn the_keys_behind_the_largest_part_are_named_with_their_values() {
        assert_eq!(cured("", ""), "lower pool_bytes under [daemon] (auto)");
        assert_eq!(cured("", "queue_bytes = \"64MiB\""), "lower queue_bytes (64MiB of sink x)");
        assert_eq!(
            cured("absorb = { rate = 100000, stall = \"2s\" }", ""),
            "lower absorb (100000/s for 2s of listener in)"
        );
        assert_eq!(
            cured("absorb.stall = \"1s\"", "queue_bytes = \"64MiB\""),
            "lower queue_bytes (64MiB of sink x) or absorb (200000/s for 1s of listener in)"
        );
        assert_eq!(
            cured("max_length = 65535\nbatch_size = 1024", ""),
            "of the batches 256.6 MiB are for listener in: lower max_length (65535 bytes), lower batch_size (1024) or \
             lanes (1)"
        );
        assert!(cured("gro = \"on\"\nbatch_size = 1024\nlanes = 64", "").contains("write gro = \"off\""));
    }
}
