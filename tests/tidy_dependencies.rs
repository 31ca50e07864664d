//! The rules for dependencies, held by a test that needs no network and no tool: licences, banned packages, sources,
//! and which of our own crates may know which.
//!
//! deny.toml is the one place where the rules are written; `cargo deny` reads the same file.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::util::ledger::list;
use crate::util::licence::is_met;

/// Whatever else deny.toml bans, it bans these.
const ASYNC_RUNTIMES: [&str; 6] = ["tokio", "async-std", "smol", "mio", "futures-executor", "async-io"];

fn read_toml(path: &str) -> toml::Table {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The packages of Cargo.lock: name and source.
fn locked_packages() -> Vec<(String, Option<String>)> {
    let lock = read_toml("Cargo.lock");
    let packages = lock["package"].as_array().expect("Cargo.lock lists packages");
    assert!(packages.len() > 3, "Cargo.lock lists more than our own three packages");
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().expect("a package has a name").to_owned();
            (name, package.get("source").map(|source| source.as_str().expect("a source is text").to_owned()))
        })
        .collect()
}

/// What cargo knows about every package that is built on this machine, from what is already downloaded.
fn metadata() -> Value {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc -vV");
    let version = String::from_utf8(version.stdout).expect("rustc prints text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--all-features",
            "--filter-platform",
            host,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

#[test]
fn every_dependency_has_a_licence_we_accept() {
    let rules = read_toml("deny.toml");
    let accepted: Vec<String> = rules["licenses"]["allow"]
        .as_array()
        .expect("deny.toml: licenses.allow is a list")
        .iter()
        .map(|name| name.as_str().expect("a licence is text").to_owned())
        .collect();
    let metadata = metadata();
    let wrong: Vec<String> = list(&metadata, "packages")
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|licence| is_met(licence, &accepted)))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(wrong.is_empty(), "licences outside deny.toml's list:\n  {}", wrong.join("\n  "));
}

#[test]
fn a_licence_expression_is_met_by_one_of_its_alternatives() {
    let accepted = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
    for met in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(GPL-3.0 OR MIT) AND Unicode-3.0", "X OR MIT AND Unicode-3.0"]
    {
        assert!(is_met(met, &accepted), "{met}");
    }
    for unmet in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-3.0) AND GPL-3.0", "MIT GPL-3.0", "GPL-3.0 WITH MIT"] {
        assert!(!is_met(unmet, &accepted), "{unmet}");
    }
}

#[test]
fn no_async_runtime_is_in_the_tree() {
    let rules = read_toml("deny.toml");
    let banned: Vec<&str> = rules["bans"]["deny"]
        .as_array()
        .expect("deny.toml: bans.deny is a list")
        .iter()
        .map(|ban| ban["crate"].as_str().expect("a ban names a crate"))
        .collect();
    for runtime in ASYNC_RUNTIMES {
        assert!(banned.contains(&runtime), "deny.toml no longer bans {runtime}");
    }
    let found: Vec<String> =
        locked_packages().into_iter().map(|(name, _)| name).filter(|name| banned.contains(&name.as_str())).collect();
    assert!(found.is_empty(), "Cargo.lock has banned packages: {found:?}; `cargo tree -i NAME` says who brings them");
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    for (name, source) in locked_packages() {
        match source {
            Some(source) => assert_eq!(source, registry, "{name} comes from elsewhere"),
            None => assert!(is_ours(&name), "{name} is not one of our crates"),
        }
    }
}

/// Crates of this workspace are called `mmsg`, `nic-steer`, `udpd` or `udpd-...`.
fn is_ours(package: &str) -> bool {
    ["mmsg", "nic-steer", "udpd"].contains(&package) || package.starts_with("udpd-")
}

#[test]
fn the_libraries_know_no_other_crate_of_ours_than_those_below_them() {
    let below: [(&str, &[&str]); 6] = [
        ("mmsg", &["udpd-bpf"]),
        ("nic-steer", &["udpd-netlink"]),
        ("udpd-bpf", &[]),
        ("udpd-framegen", &["mmsg", "udpd-bpf"]),
        ("udpd-hostloss", &["mmsg", "nic-steer", "udpd-bpf", "udpd-netlink"]),
        ("udpd-netlink", &[]),
    ];
    let metadata = metadata();
    for (library, allowed) in below {
        let package = list(&metadata, "packages").iter().find(|package| package["name"] == library).expect(library);
        for dependency in list(package, "dependencies") {
            let name = dependency["name"].as_str().expect("a name");
            let is_for_tests = name == "udpd-seeds" && dependency["kind"] == "dev";
            assert!(!is_ours(name) || is_for_tests || allowed.contains(&name), "{library} depends on {name}");
        }
    }
}
