//! Fuzz targets: what the kernel, drivers, irqbalance and files of ours say.

use crate::events::{link_in, setting_in};
use crate::interrupts::read_names;
use crate::irqbalance::banned;
use crate::journal::{parse, show};
use crate::netdev::join;
use crate::statistics::{link, link_statistics, queue_statistics};
use crate::{format_core_list, parse_core_list};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![
        ("ethtool", crate::ethtool::fuzz::answer),
        ("link_messages", link_messages),
        ("steering_journal", journal),
        ("steering_texts", texts),
    ]
}

/// Answers and notifications about interfaces and queues.
fn link_messages(input: &[u8]) {
    let _ = (link(input), link_statistics(input), queue_statistics(input));
    let payloads: Vec<Vec<u8>> = netlink::messages(input).map(|message| message.payload.to_vec()).collect();
    for message in netlink::messages(input) {
        let _ = (link_in(message), setting_in(message));
    }
    let (queues, contexts) = payloads.split_at(payloads.len() / 2);
    let joined = join(queues, contexts);
    assert!(joined.len() <= queues.len() && joined.is_sorted_by_key(|queue| queue.queue));
    assert!(joined.iter().all(|queue| queue.napi.is_some() || queue.interrupt.is_none()));
}

/// What is read of a journal and written again is the same, byte for byte, as far as its numbers are.
fn journal(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Some(saved) = parse(text) {
        let again = show(&saved);
        let read = parse(&again).expect("what is shown is parsed");
        assert_eq!(show(&read), again);
        assert_eq!((read.values, read.later), (saved.values, saved.later));
    }
}

/// Lists of cores, names of interrupts, answers of irqbalance.
fn texts(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse_core_list(text) {
        Ok(cores) => {
            assert!(cores.is_sorted() && cores.len() <= 8192);
            assert_eq!(parse_core_list(&format_core_list(&cores)), Ok(cores));
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
    }
    let numbers = banned(text);
    assert!(numbers.len() <= text.len() / 5);
    if let Some((driver, names)) = text.split_once('\n') {
        let names: Vec<&str> = names.lines().collect();
        assert_eq!(read_names(driver, &names).len(), names.len());
    }
}
