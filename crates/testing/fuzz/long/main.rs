//! The long form: libFuzzer drives the target that `UDPD_FUZZ` names. `tests/rigs/fuzz.sh` builds and starts it.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("UDPD_FUZZ").unwrap_or_default();
        let target = fuzz::target(&name).unwrap_or_else(|| panic!("UDPD_FUZZ is one of {:?}", fuzz::targets()));
        let _ = RUN.set(target.run);
    },
    |input: &[u8]| {
        if let Some(run) = RUN.get() {
            run(input);
        }
    }
);
