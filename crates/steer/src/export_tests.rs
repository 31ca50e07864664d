//! Tests of exports: for captured machines each file equals the one beside the tree that a person has reviewed.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;
use crate::ethtool::FlowHash;
use crate::plan::{Amount, Request};
use crate::testing::{Machine, assert_reviewed};

/// What a machine's plan is exported as, with the roots that a live machine has.
fn exported(machine: &Machine, interfaces: &[&str], form: Export) -> Result<String, ExportError> {
    let request = Request {
        rx_queues: Amount::Max,
        ring: Amount::Max,
        flow_hash_udp: Some(FlowHash::ADDRESSES_AND_PORTS),
        ..Request::default()
    };
    let names: Vec<String> = interfaces.iter().map(|&name| name.to_owned()).collect();
    let text = machine.with_steering(&request, |steering| {
        let (host, plan) = steering.plan(&names).expect("a plan");
        steering.export(&host, &plan, form)
    })?;
    Ok(text.replace(machine.root.path().to_str().expect("a path"), ""))
}

const FORMS: [(Export, &str); 3] = [(Export::Link, "link"), (Export::Udev, "rules"), (Export::Shell, "sh")];

#[test]
fn the_exports_of_machines_are_as_they_were_reviewed() {
    // By its address, by its place on the bus with queues that come with the channels, and by nothing but its name.
    let machines = ["virtio-multi", "two-socket-smt-ixgbe", "virtio-shared-vector"];
    for name in machines {
        let machine = Machine::named(name);
        if name == "virtio-multi" {
            machine.write("sys/class/net/eth0/address", "52:54:00:12:34:56");
            machine.write("sys/class/net/eth0/addr_assign_type", "0");
        }
        for (form, ending) in FORMS {
            let text = exported(&machine, &["eth0"], form).expect("plain names");
            assert_reviewed(&format!("{name}.export.{ending}"), &text);
        }
    }
}

#[test]
fn an_address_that_was_made_up_does_not_name_an_interface() {
    let machine = Machine::named("virtio-multi");
    machine.write("sys/class/net/eth0/address", "52:54:00:12:34:56");
    machine.write("sys/class/net/eth0/addr_assign_type", "1");
    let text = exported(&machine, &["eth0"], Export::Link).expect("plain names");
    assert!(text.contains("[Match]\nPath=pci-0000:00:03.0\n"), "{text}");
}

#[test]
fn a_shell_reads_the_script_and_what_it_sets_are_files_and_commands() {
    for name in ["virtio-multi", "two-socket-smt-ixgbe"] {
        let script = exported(&Machine::named(name), &["eth0"], Export::Shell).expect("plain names");
        let shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut shell = shell.expect("a shell");
        shell.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("written");
        let outcome = shell.wait_with_output().expect("it ends");
        assert!(outcome.status.success() && outcome.stderr.is_empty(), "{outcome:?}");
    }
}

#[test]
fn a_name_that_a_shell_would_misread_is_refused_and_never_written() {
    for name in ["a;reboot", "$(id)", "-n", "it's", "a%kb", "a\"b"] {
        let machine = Machine::named("virtio-multi");
        let folder = machine.sys().join("class/net");
        fs::rename(folder.join("eth0"), folder.join(name)).expect("renamed");
        machine.rename_device("eth0", name);
        for (form, _) in FORMS {
            let error = exported(&machine, &[name], form).expect_err("refused");
            assert_eq!(error.interface, name);
        }
    }
    let machine = Machine::named("virtio-multi");
    machine.write("sys/kernel/irq/29/actions", "virtio0-input.2;reboot");
    for (form, _) in FORMS {
        let text = exported(&machine, &["eth0"], form).expect("plain names");
        assert!(!text.contains("reboot"), "{text}");
    }
}
