//! What each stage of a datagram's way costs by itself, for those who change one: run before and after.
//!
//! ```text
//! cargo bench --bench micro [-- receive | --save-baseline before | --baseline before]
//! ```
//!
//! A figure here is for comparing with itself. How the daemon compares with other programs is in `against_c_loop`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hostloss::{HostLedger, HostReader};
use ipnet::IpNet;
use mmsg::shares::Shares;
use mmsg::{BatchShape, Control, Family, PackedBatch, RecvBatch, SendBatch, Socket, Wait};
use udpd_base::format::lines;
use udpd_base::handover::batch::{Parcel, exclusive};
use udpd_base::handover::channel::{ConsumerInbox, Waited};
use udpd_base::handover::pool::{Allowance, Blocks, Stock};
use udpd_base::handover::pool::{Home, Homes, Owner, Pool};
use udpd_base::handover::route::{FullPolicy, SinkRoute};
use udpd_engine::config::{Config, HostView};
use udpd_engine::pipeline::Pipeline;
use udpd_engine::pipeline::StopSignal;
use udpd_inspect::deduplicate::{CopyTable, FingerprintKey, Meeting};
use udpd_inspect::policy::AccessList;

#[path = "../tests/util/mod.rs"]
mod util;

use util::daemon::free_address;

const BATCH: usize = 64;

/// Two connected sockets on loopback, with room for what the benchmarks queue.
struct Pair {
    sender: Socket,
    receiver: Socket,
}

impl Pair {
    fn new() -> Self {
        let receiver = Socket::new(Family::V4).expect("a socket");
        receiver.set_receive_buffer(64 << 20).expect("a receive buffer");
        receiver.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let sender = Socket::new(Family::V4).expect("a socket");
        sender.connect(receiver.local_addr().expect("bound")).expect("connected");
        Self { sender, receiver }
    }

    /// Queues `count` datagrams of this payload at the receiver.
    fn fill(&self, count: usize, payload: &[u8]) {
        let mut batch = SendBatch::new(BATCH, payload.len().max(1)).expect("a batch");
        for _ in 0..count {
            if batch.is_full() {
                batch.flush(&self.sender).expect("sent").all_sent().expect("all sent");
            }
            batch.push(payload, None).expect("room");
        }
        batch.flush(&self.sender).expect("sent").all_sent().expect("all sent");
    }
}

fn shape(control: Control) -> BatchShape {
    BatchShape::new(BATCH, 2048).control(control).huge_pages(true)
}

/// Receiving what is queued already: no sender and no wake-up in the picture.
fn receive(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive, drained socket");
    for queued in [500, 5_000] {
        let pair = Pair::new();
        let mut batch = RecvBatch::new(&shape(Control::default())).expect("a batch");
        group.throughput(Throughput::Elements(queued as u64));
        group.bench_function(BenchmarkId::from_parameter(queued), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    pair.fill(queued, &[7; 32]);
                    let begun = Instant::now();
                    let mut left = queued;
                    while left > 0 {
                        left -= batch.receive(&pair.receiver, Wait::No).expect("what was queued");
                    }
                    took += begun.elapsed();
                }
                took
            });
        });
    }
    group.finish();
}

/// Cutting trains into datagrams: what GRO saves must not be spent here.
fn split(criterion: &mut Criterion) {
    let pair = Pair::new();
    pair.receiver.set_gro(true).expect("UDP_GRO");
    let mut batch = RecvBatch::new(&shape(Control::new().gro(true))).expect("a batch");
    let mut trains = SendBatch::new(1, 64 * 32).expect("a batch");
    for _ in 0..BATCH {
        trains.push_segmented(&[7; 64 * 32], 32, None).expect("room");
        trains.flush(&pair.sender).expect("sent").all_sent().expect("all sent");
    }
    while !batch.is_full() {
        batch.receive_more(&pair.receiver, Wait::Block).expect("the trains");
    }
    let datagrams = batch.summary().datagrams;
    let mut group = criterion.benchmark_group("GRO splitting");
    group.throughput(Throughput::Elements(datagrams));
    group.bench_function("trains of 64", |bencher| {
        bencher.iter(|| batch.datagrams().map(|datagram| black_box(datagram.payload()).len()).sum::<usize>());
    });
    group.finish();
}

/// Reading the source, the destination and the arrival time of each datagram.
fn control_messages(criterion: &mut Criterion) {
    let pair = Pair::new();
    pair.receiver.set_timestamps(true).expect("SO_TIMESTAMPNS");
    pair.receiver.set_packet_info(true).expect("IP_PKTINFO");
    let control = Control::new().timestamps(true).packet_info(true);
    let mut batch = RecvBatch::new(&shape(control)).expect("a batch");
    pair.fill(BATCH, &[7; 32]);
    batch.receive(&pair.receiver, Wait::Block).expect("what was queued");
    let mut group = criterion.benchmark_group("control messages");
    group.throughput(Throughput::Elements(batch.summary().datagrams));
    group.bench_function("source, destination, arrival", |bencher| {
        bencher.iter(|| {
            for datagram in batch.datagrams() {
                black_box((datagram.source(), datagram.destination(), datagram.arrival_since_epoch()));
            }
        });
    });
    group.finish();
}

/// A full batch from the pool through the channel to another thread, and home again. The other thread never sleeps for
/// long, because the benchmark never lets it run out of batches: what is measured is the hand-over and no wake-up.
fn hand_over(criterion: &mut Criterion) {
    let pair = Pair::new();
    let (mut pool, home) = full_pool(&pair);
    let mut inbox = ConsumerInbox::default();
    let (blocks, _) = PackedBatch::pool(2, 64 << 10, false).expect("a pool");
    let nothing = Stock::shared(Vec::new().into_iter());
    let blocks = Blocks::new(Stock::of_queue(blocks.into_iter()), nothing, Allowance::new(0));
    let homes = Homes::new([home].into(), vec![blocks.clone()]);
    let mut route = SinkRoute::new(inbox.attach(260), FullPolicy::Block, 0, blocks, 256);
    let thread = std::thread::spawn(move || {
        while let Waited::Batch(parcel) = inbox.wait(None) {
            homes.send(parcel);
        }
    });
    let stop = StopSignal::default();
    let mut group = criterion.benchmark_group("hand-over");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("to another thread and home", |bencher| {
        bencher.iter(|| {
            let parcel = loop {
                match pool.take() {
                    Some(parcel) => break parcel,
                    None => std::hint::spin_loop(),
                }
            };
            route.hand(&parcel, true, false, &mut pool, &stop.patience, &mut |_, _| panic!("block drops nothing"));
            pool.put(parcel);
        });
    });
    group.finish();
    drop(route);
    thread.join().expect("it ends when the last feed is gone");
}

/// A pool as a lane with a channel of 256 has it, each batch full.
fn full_pool(pair: &Pair) -> (Pool, Arc<Home>) {
    let (batches, _) = RecvBatch::pool(258, &shape(Control::default())).expect("a pool");
    let (mut pool, home) = Pool::new(batches, 1, Owner::default());
    let mut parcels: Vec<Parcel> = std::iter::from_fn(|| pool.take()).collect();
    for parcel in &mut parcels {
        pair.fill(BATCH, &[7; 32]);
        let batch = exclusive(parcel);
        batch.receive(&pair.receiver, Wait::Block).expect("what was queued");
    }
    for parcel in parcels {
        pool.put(parcel);
    }
    (pool, home)
}

/// What a datagram costs more that waits for a consumer which is behind: it is packed, and read from there. Nothing is
/// lent here, because the lane has one batch only.
fn pack(criterion: &mut Criterion) {
    let pair = Pair::new();
    let mut group = criterion.benchmark_group("hand-over, packed");
    for payload_bytes in [32, 200, 1_400, 9_000] {
        let shape = BatchShape::new(BATCH, payload_bytes.max(2048)).huge_pages(true);
        let (mut pool, home) = Pool::new(RecvBatch::pool(1, &shape).expect("a batch").0, 1, Owner::default());
        let (blocks, _) = PackedBatch::pool(16, 64 << 10, true).expect("a pool");
        let nothing = Stock::shared(Vec::new().into_iter());
        let blocks = Blocks::new(Stock::of_queue(blocks.into_iter()), nothing, Allowance::new(0));
        let homes = Homes::new([home].into(), vec![blocks.clone()]);
        let mut inbox = ConsumerInbox::default();
        let mut route = SinkRoute::new(inbox.attach(17), FullPolicy::DropNewest, 0, blocks, 0);
        let stop = StopSignal::default();
        pair.fill(BATCH, &vec![7; payload_bytes]);
        let mut parcel = pool.take().expect("the batch");
        while !exclusive(&mut parcel).is_full() {
            exclusive(&mut parcel).receive_more(&pair.receiver, Wait::Block).expect("what was queued");
        }
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function(BenchmarkId::from_parameter(payload_bytes), |bencher| {
            bencher.iter(|| {
                route.hand(&parcel, true, false, &mut pool, &stop.patience, &mut |_, _| panic!("there is room"));
                while let Some(load) = inbox.take() {
                    black_box(load.datagrams.datagrams().map(|datagram| datagram.payload().len()).sum::<usize>());
                    homes.send(load);
                }
            });
        });
    }
    group.finish();
}

/// One payload as a line.
fn format_lines(criterion: &mut Criterion) {
    let plain = vec![b'a'; 200];
    let escaped: Vec<u8> = (0..200).map(|index| if index % 20 == 0 { b'\t' } else { b'a' }).collect();
    let umlauts: Vec<u8> = "Größe überschritten: Gerät läuft. ".bytes().cycle().take(200).collect();
    // Of no period that a predictor of branches could learn.
    let binary: Vec<u8> =
        (1..=200_u64).map(|index| (index.pow(3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut group = criterion.benchmark_group("sink format lines");
    let payloads = [
        ("200 B", &plain),
        ("200 B, 10 of them escaped", &escaped),
        ("200 B of German", &umlauts),
        ("200 B that are no text", &binary),
    ];
    for (name, payload) in payloads {
        group.throughput(Throughput::Bytes(payload.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || Vec::with_capacity(1024),
                |line| lines::append(line, black_box(payload)),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// From a send call to the ledger of a null sink, through a whole pipeline in this process. The sender's cost is in it.
fn end_to_end(criterion: &mut Criterion) {
    const BURST: usize = 16 * BATCH;
    let address = free_address();
    let text = format!(
        "[[listener]]\n\
         name = \"bench\"\n\
         address = \"{address}\"\n\
         lanes = 1\n\
         sinks = [\"nothing\"]\n\
         [sink.nothing]\n\
         type = \"null\"\n"
    );
    let config = Config::parse(&text, "the benchmark", &HostView::default()).expect("a right configuration");
    let plan = udpd_engine::plan::make(&config, &Default::default()).expect("a plan");
    let (registry, _events) = udpd_base::os::threads::ThreadRegistry::new();
    let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry).expect("a pipeline");
    let books = pipeline.ledger();
    let sender = Socket::new(Family::V4).expect("a socket");
    sender.connect(address).expect("connected");
    let mut batch = SendBatch::new(BATCH, 32).expect("a batch");
    let mut sent = 0;
    let mut group = criterion.benchmark_group("end to end");
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function("send, receive, null sink", |bencher| {
        bencher.iter(|| {
            for _ in 0..BURST / BATCH {
                while !batch.is_full() {
                    batch.push(&[7; 32], None).expect("room");
                }
                sent += batch.flush(&sender).expect("sent").sent as u64;
            }
            while books.snapshot().listeners[0].sinks[0].counts.delivered < sent {
                std::thread::yield_now();
            }
        });
    });
    group.finish();
    pipeline.stop(Duration::from_secs(1), |_| false);
}

/// What the main thread does once a second: one pass over all counters of the kernel, and what is added up.
fn host(criterion: &mut Criterion) {
    let mut reader = HostReader::new([514]);
    let ledger = HostLedger::new([514]);
    let mut group = criterion.benchmark_group("host ledger");
    group.bench_function("one pass", |bencher| bencher.iter(|| black_box(reader.read().udp.in_errors)));
    group.bench_function("one pass, added up", |bencher| bencher.iter(|| ledger.look([])));
    group.bench_function("what a reader of the ledger gets", |bencher| bencher.iter(|| black_box(ledger.sums())));
    group.finish();
}

/// What it costs to look a source up, by how many networks are listed. Sources come from everywhere, which is the worst
/// that they can do to the cache.
fn access(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allow and deny");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut noise = 1_u64;
    let mut random = move || {
        noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        noise >> 32
    };
    let v4 = |bits: u64| IpAddr::from(Ipv4Addr::from_bits(bits as u32));
    let v6 = |bits: u64| IpAddr::from(Ipv6Addr::from_bits(0x2a00 << 112 | u128::from(bits) << 84));
    for (family, address, length) in [("IPv4", &v4 as &dyn Fn(u64) -> IpAddr, 24), ("IPv6", &v6, 48)] {
        for networks in [0, 100, 100_000, 1_000_000] {
            let network = |bits| IpNet::new_assert(address(bits), length).trunc();
            let deny: Vec<IpNet> = (0..networks).map(|_| network(random())).collect();
            let list = AccessList::new(&[], &deny);
            let sources: Vec<IpAddr> = (0..1 << 16).map(|_| address(random())).collect();
            let mut place = 0;
            group.bench_function(BenchmarkId::new(family, networks), |bencher| {
                bencher.iter(|| {
                    place = (place + BATCH) % sources.len();
                    sources[place..][..BATCH].iter().filter(|source| list.accepts(black_box(**source))).count()
                });
            });
        }
    }
    group.finish();
}

/// Which destination a source has, by how many there are.
fn shares(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("by source");
    group.throughput(Throughput::Elements(BATCH as u64));
    let sources: Vec<IpAddr> =
        (0..BATCH as u32).map(|number| Ipv4Addr::from_bits(0x0a00_0000 + number).into()).collect();
    for count in [2, 4, 16, 64] {
        let names: Vec<String> = (0..count).map(|number| format!("10.1.0.{number}:514")).collect();
        let shares = Shares::new(names.iter().map(|name| (name.as_str(), 1)));
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| sources.iter().map(|source| shares.place_of(black_box(*source))).sum::<usize>());
        });
    }
    group.finish();
}

/// What it costs to find out whether a datagram is a copy, by the length of its payload. Half of what is met is new,
/// and the table is as large as that of 400,000 datagrams within the window.
fn copies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("deduplicate");
    group.throughput(Throughput::Elements(BATCH as u64));
    let key = FingerprintKey::random();
    for length in [64, 512, 1400] {
        let table = <CopyTable>::new(<CopyTable>::buckets(1_600_000), 2000);
        let mut payloads = vec![vec![0; length]; BATCH];
        let mut number = 0_u64;
        group.bench_function(BenchmarkId::new("payload", length), |bencher| {
            bencher.iter(|| {
                for payload in &mut payloads {
                    number += 1;
                    payload[8..16].copy_from_slice(&(number / 2).to_le_bytes());
                }
                // At 200,000 a second.
                let now = 3000 + number / 200;
                let meet = |payload: &Vec<u8>| table.meet(key.of(black_box(payload), 0), 0, now);
                payloads.iter().filter(|payload| meet(payload) == Meeting::New).count()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, receive, split, control_messages, hand_over, pack, format_lines);
criterion_group!(whole, end_to_end, host, access, shares, copies);
criterion_main!(benches, whole);
