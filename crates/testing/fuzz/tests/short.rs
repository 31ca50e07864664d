//! The short form: every target takes its corpus, and changes of it that come from a seed.
//!
//! `UDPD_SEEDS=N` runs N changes of each corpus, `UDPD_FUZZ=TARGET` that target alone, and `UDPD_FUZZ_INPUT=FILE` that
//! input alone.

use std::alloc::System;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use fuzz::{Corpus, INPUT_BYTES_MAX, Mutator, RUN_BYTES_MAX, Target, corpus_of, targets};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many changes are tried of each corpus, as far as this time allows.
const RUNS: u64 = 300;
const TIME: Duration = Duration::from_millis(200);

/// How many runs look for a shorter input that fails as well.
const SHRINK_RUNS_MAX: u32 = 1_000;

/// A run that takes as long hangs. The machine may be busy.
const RUN_TIME_MAX: Duration = Duration::from_secs(20);

/// Runs the target, and says what does not hold.
fn outcome(target: Target, input: &[u8]) -> Result<(), String> {
    let (region, started) = (Region::new(ALLOCATOR), Instant::now());
    seeds::caught(|| (target.run)(input))?;
    let change = region.change();
    let allocated = change.bytes_allocated + usize::try_from(change.bytes_reallocated).unwrap_or(0);
    if allocated > RUN_BYTES_MAX {
        return Err(format!("it allocates {allocated} bytes"));
    }
    let elapsed = started.elapsed();
    if elapsed > RUN_TIME_MAX { Err(format!("it takes {elapsed:?}")) } else { Ok(()) }
}

/// Leaves out what the failure does not need.
fn shrunk(target: Target, input: &[u8]) -> Vec<u8> {
    let (mut best, mut length, mut runs) = (input.to_vec(), (input.len() / 2).max(1), 0);
    while length > 0 && runs < SHRINK_RUNS_MAX {
        let mut at = 0;
        while at < best.len() {
            let mut tried = best.clone();
            tried.drain(at..(at + length).min(tried.len()));
            runs += 1;
            if outcome(target, &tried).is_err() { best = tried } else { at += length }
        }
        length /= 2;
    }
    best
}

/// Writes the input down and ends the test.
fn fail(target: Target, input: &[u8], kept: Option<&Path>, why: &str) -> ! {
    let path = kept.map_or_else(
        || {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
            let path = folder.join(format!("{}-{}", target.name, std::process::id()));
            fs::create_dir_all(folder).and_then(|()| fs::write(&path, shrunk(target, input))).expect("a file");
            path
        },
        PathBuf::from,
    );
    let (name, path) = (target.name, path.display());
    panic!(
        "{name} fails: {why}\nrun it again:  UDPD_FUZZ={name} UDPD_FUZZ_INPUT={path} cargo test -p udpd-fuzz\nand when \
         it is mended, copy that file to tests/corpus/fuzz/{name}/"
    );
}

fn run(target: Target, corpus: &Corpus, runs: Option<u64>) {
    for (path, input) in &corpus.inputs {
        outcome(target, input).unwrap_or_else(|why| fail(target, input, Some(path), &why));
    }
    let seed = env::var("UDPD_SEEDS_FROM").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut mutator = Mutator::new(seed, corpus, INPUT_BYTES_MAX);
    let started = Instant::now();
    for run in 0..runs.unwrap_or(RUNS) {
        if runs.is_none() && run > 10 && started.elapsed() > TIME {
            break;
        }
        let input = mutator.input();
        outcome(target, &input).unwrap_or_else(|why| fail(target, &input, None, &why));
    }
}

#[test]
#[allow(clippy::print_stdout)]
fn every_target_takes_its_corpus_and_changes_of_it() {
    let runs = env::var("UDPD_SEEDS").ok().and_then(|runs| runs.parse().ok());
    let (one, input) = (env::var("UDPD_FUZZ").ok(), env::var_os("UDPD_FUZZ_INPUT"));
    let wanted = targets().into_iter().filter(|target| one.as_ref().is_none_or(|name| name == target.name));
    let wanted: Vec<Target> = wanted.collect();
    assert!(!wanted.is_empty(), "no such target; there are {:?}", targets());
    for target in wanted {
        if let Some(path) = &input {
            let bytes = fs::read(path).expect("the input");
            (target.run)(&bytes);
            continue;
        }
        let started = Instant::now();
        run(target, &corpus_of(target.name), runs);
        println!("{:>6} ms  {}", started.elapsed().as_millis(), target.name);
    }
}

#[test]
fn the_dictionary_of_the_configuration_has_every_key() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/keys.md")).expect("keys");
    let words = corpus_of("toml").words;
    let keys: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(keys.len() > 100, "only {} keys are seen", keys.len());
    let has = |key: &&str| words.iter().any(|word| word == format!("{key} = ").as_bytes());
    let missing: Vec<&str> = keys.into_iter().filter(|key| !has(key)).collect();
    assert!(missing.is_empty(), "add to tests/corpus/fuzz/toml.dict: {missing:?}");
}

#[test]
fn every_target_has_a_name_and_a_corpus_of_its_own() {
    let mut names: Vec<&str> = targets().iter().map(|target| target.name).collect();
    names.sort_unstable();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/corpus/fuzz");
    let entries = fs::read_dir(root).expect("the corpora").map(|entry| entry.expect("an entry").path());
    let mut folders: Vec<String> =
        entries.filter(|path| path.is_dir()).filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    folders.sort_unstable();
    assert_eq!(folders, names);
}
