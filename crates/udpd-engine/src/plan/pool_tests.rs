//! How the pool is laid out: that its parts add up, that what was asked for is there, and that idle lanes are cheap.

use super::*;
use crate::config::EngineKind;
use crate::plan::{Interfaces, PipelinePlan, testing};
use steer::Topology;

const MIB: usize = 1 << 20;

/// The plan on two cores, each a memory node of its own where there are two of those.
fn plan_on(nodes: usize, text: &str) -> Result<(Config, PipelinePlan), Failure> {
    let node_of_core = [(0, 0), (1, nodes - 1)].into();
    let topology = Topology { online: vec![0, 1], node_of_core, ..Topology::default() };
    testing::plan_on(text, EngineKind::Recvmmsg, &topology, &Interfaces::default())
}

fn plan(text: &str) -> (Config, PipelinePlan) {
    plan_on(1, text).expect("a plan")
}

fn listener(number: usize, keys: &str, sinks: &str) -> String {
    format!(
        "[[listener]]\nname = \"l{number}\"\naddress = \"127.0.0.1:{}\"\n{keys}\nsinks = [{sinks}]\n",
        1000 + number
    )
}

fn sink(name: &str, keys: &str) -> String {
    format!("[sink.{name}]\ntype = \"null\"\n{keys}\n")
}

fn stalls((config, plan): &(Config, PipelinePlan)) -> Vec<Stall> {
    plan.pool.stalls(config, &plan.sinks, &plan.lanes)
}

#[test]
fn the_parts_of_the_pool_add_up_and_the_memory_of_the_plan_is_their_sum() {
    let text = listener(0, "lanes = 3", r#""a", "b""#) + &sink("a", "consumers = 2") + &sink("b", "");
    let (_, plan) = plan_on(2, &text).expect("a plan");
    let pool = &plan.pool;
    let batches: usize = plan.lanes.iter().map(|lane| lane.batches() * lane.shape.bytes()).sum();
    let own: usize = pool.queues.iter().flatten().flat_map(|queue| &queue.own_blocks).sum();
    let shared: usize = pool.nodes.iter().map(|node| node.shared_blocks).sum();
    assert_eq!((pool.batches_bytes, pool.blocks_bytes()), (batches, (own + shared) * pool.block_bytes));
    assert_eq!(plan.memory().pool_bytes(), batches + (own + shared) * pool.block_bytes);
    assert_eq!((pool.nodes.len(), pool.asked_bytes), (2, 0));
    // Lanes 0 and 2 share a node, and consumer 0; lane 1 feeds the other.
    assert_eq!(pool.queues[0].iter().map(|queue| queue.own_blocks.clone()).collect::<Vec<_>>(), [[2, 0], [0, 2]]);
    assert_eq!(pool.queues[1][0].own_blocks, [2, 2]);
}

#[test]
fn where_nothing_is_asked_for_the_machine_decides() {
    let (_, plan) = plan(&(listener(0, "", r#""a""#) + &sink("a", "")));
    assert!(plan.memory().pool_bytes() <= 40 * MIB, "{}", plan.memory());
    let long = plan_on(1, &(listener(0, "max_length = 65535", r#""a""#) + &sink("a", ""))).expect("a plan").1;
    assert!(long.memory().pool_bytes() <= 64 * MIB, "{}", long.memory());
}

#[test]
fn absorb_means_what_it_says_for_the_queue_too_whatever_other_sinks_do() {
    let absorb = r#"absorb = { rate = 50000, stall = "2s", size = 300 }"#;
    let whole = plan(&(listener(0, absorb, r#""a", "b""#) + &sink("a", "") + &sink("b", "")));
    let stalls = stalls(&whole);
    assert_eq!(stalls.len(), 2);
    for stall in stalls {
        let own = stall.survived(stall.own_datagrams);
        assert!(own >= Duration::from_secs(2) && own < Duration::from_millis(2_100), "{own:?}");
        assert!(stall.datagrams > stall.own_datagrams && (stall.rate, stall.payload_bytes) == (50_000, 300));
    }
    // Twice 100,000 datagrams of 328 bytes with their source and head.
    let asked = whole.1.pool.asked_bytes;
    assert!((60 * MIB..70 * MIB).contains(&asked), "{asked}");
}

#[test]
fn listeners_that_share_a_queue_share_what_it_survives() {
    let absorb = |rate: u64| format!("absorb = {{ rate = {rate}, stall = \"2s\", size = 300 }}");
    let text = [listener(0, &absorb(30_000), "\"x\""), listener(1, &absorb(10_000), "\"x\""), sink("x", "")].concat();
    let stalls = stalls(&plan(&text));
    assert_eq!(stalls.len(), 2);
    for stall in stalls {
        let own = stall.survived(stall.own_datagrams);
        assert!(own >= Duration::from_secs(2) && own < Duration::from_millis(2050), "{stall:?}, {own:?}");
    }
}

#[test]
fn a_default_absorb_reserves_nothing_and_is_covered_by_what_is_shared() {
    let whole = plan(&(listener(0, "", r#""a""#) + &sink("a", "")));
    assert_eq!(whole.1.pool.asked_bytes, 0);
    let stall = &stalls(&whole)[0];
    assert!(stall.survived(stall.datagrams) >= Duration::from_millis(250), "{stall:?}");
}

#[test]
fn queue_bytes_is_what_a_queue_gets_to_the_block_and_no_more() {
    for bytes in [64 << 10, MIB, 100 * MIB] {
        let whole = plan(&(listener(0, "", r#""a""#) + &sink("a", &format!("queue_bytes = {bytes}"))));
        let (_, plan) = &whole;
        let queue = &plan.pool.queues[0][0];
        let lent = queue.lent_max(&plan.lanes[0]) * plan.lanes[0].shape.bytes();
        let kept = queue.own_blocks[0] * plan.pool.block_bytes + lent;
        assert!(kept <= bytes && bytes - kept < plan.pool.block_bytes, "{kept} of {bytes}");
        assert_eq!((queue.borrowed_max, lent <= bytes / LENT_PART), (0, true));
        let stall = &stalls(&whole)[0];
        assert_eq!(stall.datagrams, stall.own_datagrams, "it borrows nothing");
    }
}

#[test]
fn idle_listeners_cost_next_to_nothing_and_share_what_is_beyond_their_floor() {
    for (count, own_sinks, limit) in [(100, false, 80 * MIB), (1_000, false, 340 * MIB), (100, true, 90 * MIB)] {
        let name = |number: usize| if own_sinks { format!("s{number}") } else { "s0".to_owned() };
        let listeners: String =
            (0..count).map(|number| listener(number, "", &format!("\"{}\"", name(number)))).collect();
        let sinks: String = (0..if own_sinks { count } else { 1 }).map(|number| sink(&name(number), "")).collect();
        let whole = plan(&(listeners + &sinks));
        let bytes = whole.1.memory().pool_bytes();
        assert!(bytes <= limit, "{count} listeners: {}", whole.1.memory());
        let stall = &stalls(&whole)[count - 1];
        assert!(stall.survived(stall.datagrams) >= Duration::from_millis(250), "each may have all that is shared");
    }
}

#[test]
fn a_pool_that_is_written_is_kept_to_and_one_that_is_too_small_is_refused_with_the_sum() {
    let daemon = |bytes: &str| format!("[daemon]\npool_bytes = \"{bytes}\"\n");
    let rest = listener(0, "", r#""a""#) + &sink("a", "queue_bytes = \"8MiB\"");
    for (written, bytes) in [("16MiB", 16 * MIB), ("1GiB", 1024 * MIB)] {
        for nodes in [1, 2] {
            let text = daemon(written) + &rest.replace("sinks", "lanes = 2\nsinks");
            let (_, plan) = plan_on(nodes, &text).expect("a plan");
            let pool_bytes = plan.memory().pool_bytes();
            let left = bytes.checked_sub(pool_bytes).expect("never more");
            assert!(left <= nodes * plan.pool.block_bytes, "{pool_bytes} of {bytes}");
        }
    }
    let failure = plan_on(1, &(daemon("8MiB") + &rest)).expect_err("too little");
    assert_eq!(failure.code, ExitCode::Configuration);
    for words in ["pool_bytes = 8.0 MiB", "1 lanes receive into", "queues need 7.6 MiB", "raise pool_bytes to"] {
        assert!(failure.message.contains(words), "{words}: {failure}");
    }
}

#[test]
fn a_block_holds_the_longest_datagram_that_can_come() {
    for (keys, block_bytes) in
        [("", 32 << 10), ("max_length = 9000", 64 << 10), ("max_length = 65535", 68 << 10), ("gro = \"on\"", 68 << 10)]
    {
        let (_, plan) = plan(&(listener(0, keys, r#""a""#) + &sink("a", "")));
        assert_eq!(plan.pool.block_bytes, block_bytes, "{keys}");
        assert!(plan.lanes[0].longest_packed_bytes() <= block_bytes);
    }
}
