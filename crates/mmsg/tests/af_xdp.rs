//! The AF_XDP engine on a virtual cable whose ends, card0 and card1, are both in this network namespace; 10.8.0.1 is on
//! the first. tests/rigs/xdp.sh lays it and says so by MMSG_XDP_CABLE; without it nothing here is tested, because no
//! test puts a program at an interface that it was not given.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use common::{DEADLINE, unbound, wait_until_asleep};
use mmsg::{BatchShape, Control, Engine, Family, RecvBatch, Wait, xdp};

const PORT: u16 = 5140;
const ADDRESS: [u8; 4] = [10, 8, 0, 1];
const SHAPE: BatchShape = BatchShape::new(8, 2048);

/// The interface, for one test at a time. `None` where there is no cable.
#[allow(clippy::print_stderr)]
fn turn() -> Option<MutexGuard<'static, ()>> {
    if std::env::var_os("MMSG_XDP_CABLE").is_none() {
        eprintln!("not tested: the AF_XDP engine, because no cable was laid for it (tests/rigs/xdp.sh)");
        return None;
    }
    Some(common::turn())
}

fn attach() -> Arc<xdp::Redirect> {
    Arc::new(xdp::Redirect::attach(&xdp::Wanted::new("card0", PORT), &[ADDRESS.into()]).expect("attached"))
}

/// A socket whose datagrams go out of the other end.
fn sender() -> UdpSocket {
    let socket = unbound(Family::V4);
    socket.bind_to_device("card1").expect("it is there");
    socket.bind(SocketAddr::from(([10, 8, 0, 2], 0))).expect("its address");
    UdpSocket::from(OwnedFd::from(socket))
}

fn send(sender: &UdpSocket, payload: &[u8]) {
    sender.send_to(payload, SocketAddr::from((ADDRESS, PORT))).expect("sent");
}

/// An engine with so many batches in reserve, and a batch for it.
fn engine(redirect: &Arc<xdp::Redirect>, shape: &BatchShape, options: &xdp::Options) -> (Engine, RecvBatch) {
    let (mut reserve, _) = RecvBatch::pool(9, shape).expect("memory");
    let batch = reserve.remove(0);
    (Engine::af_xdp(Arc::clone(redirect), reserve, options).expect("an engine"), batch)
}

/// Receives one datagram after the other, until there were so many.
fn payloads(engine: &mut Engine, batch: &mut RecvBatch, count: usize) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while payloads.len() < count {
        assert!(engine.wait_readable(DEADLINE).expect("a poll"), "{} of {count} came", payloads.len());
        engine.receive(batch, Wait::No).expect("received");
        payloads.extend(batch.datagrams().map(|datagram| datagram.payload().to_vec()));
    }
    payloads
}

#[test]
fn a_call_fills_what_is_free_and_a_full_batch_takes_nothing() {
    let Some(_turn) = turn() else { return };
    let (mut engine, mut batch) = engine(&attach(), &SHAPE, &xdp::Options::new(0));
    assert_eq!(engine.name(), "af_xdp");
    let sender = sender();
    assert_eq!(engine.receive(&mut batch, Wait::No).expect("nothing"), 0);
    let (time, start) = (Duration::from_millis(20), Instant::now());
    assert_eq!(engine.receive(&mut batch, Wait::UpTo(time)).expect("nothing in time"), 0);
    assert!(start.elapsed() >= time, "it ends too early");
    for number in 0..12 {
        send(&sender, &[number]);
    }
    let mut received = Vec::new();
    while received.len() < 12 {
        assert!(engine.wait_readable(DEADLINE).expect("a poll"));
        batch.clear();
        while !batch.is_full() && received.len() + batch.messages() < 12 {
            engine.receive_more(&mut batch, Wait::Block).expect("received");
        }
        if batch.is_full() {
            assert_eq!(engine.receive_more(&mut batch, Wait::Block).expect("no room"), 0);
        }
        received.extend(batch.datagrams().map(|datagram| datagram.payload()[0]));
    }
    assert_eq!(received, (0..12).collect::<Vec<u8>>());
    let told = engine.xdp_tally().expect("AF_XDP");
    let lost = engine.xdp_statistics().expect("told").expect("AF_XDP").lost();
    assert_eq!((told.frames, told.refused(), lost), (12, 0, Some(0)));
}

#[test]
fn what_was_asked_for_is_noted_down_with_each_datagram() {
    let Some(_turn) = turn() else { return };
    let control = Control::new().timestamps(true).packet_info(true).hop_limit(true).traffic_class(true);
    let redirect = attach();
    for copy_up_to in [0, 2048] {
        let options = xdp::Options::new(0).control(control).copy_up_to(copy_up_to);
        let (mut engine, mut batch) = engine(&redirect, &SHAPE.control(control), &options);
        engine.set_busy_poll_us(copy_up_to as u32 / 100).expect("set");
        let before = SystemTime::now();
        let sender = sender();
        sender.set_ttl(9).expect("a TTL");
        send(&sender, b"payload");
        assert_eq!(engine.receive(&mut batch, Wait::UpTo(DEADLINE)).expect("received"), 1);
        let datagram = batch.datagrams().next().expect("one");
        assert_eq!(datagram.payload(), b"payload");
        assert_eq!(datagram.source(), Some(sender.local_addr().expect("bound")));
        assert_eq!(datagram.destination(), Some(ADDRESS.into()));
        assert_eq!(datagram.local_address(), Some(ADDRESS.into()));
        assert_eq!(datagram.interface_index(), Some(redirect.interface_index()));
        assert_eq!((datagram.hop_limit(), datagram.traffic_class()), (Some(9), Some(0)));
        let arrival = datagram.arrival().expect("a time");
        assert!(before <= arrival && arrival <= SystemTime::now());
        assert!(engine.arrival_is_of_batch());
    }
}

#[test]
fn letting_datagrams_gather_loses_none() {
    let Some(_turn) = turn() else { return };
    let (mut engine, mut batch) = engine(&attach(), &SHAPE, &xdp::Options::new(0));
    let sender = sender();
    let mut received = 0;
    for _ in 0..20 {
        (0..3).for_each(|_| send(&sender, b"gathered"));
        received += engine.receive(&mut batch, Wait::Gather(Duration::from_millis(1))).expect("received");
    }
    received += payloads(&mut engine, &mut batch, 60 - received).len();
    assert_eq!(received, 60);
}

#[test]
fn a_program_covers_its_queues_anew_and_stands_again_where_it_was_taken_off() {
    let Some(_turn) = turn() else { return };
    let redirect = attach();
    let loaded = redirect.loaded();
    assert!(xdp::Redirect::attach_again(Arc::clone(&loaded), &[]).is_err(), "it stands there");
    let sender = sender();
    let (mut first, mut batch) = engine(&redirect, &SHAPE, &xdp::Options::new(0));
    for _ in 0..3 {
        redirect.cover_all_queues().expect("the other of the two");
        assert!(!redirect.look_at_card(), "its address is the same");
        send(&sender, b"covered");
        assert_eq!(payloads(&mut first, &mut batch, 1), [b"covered"]);
    }
    drop((first, redirect));
    let redirect = Arc::new(xdp::Redirect::attach_again(loaded, &[ADDRESS.into()]).expect("again"));
    let (mut second, mut batch) = engine(&redirect, &SHAPE, &xdp::Options::new(0));
    send(&sender, b"again");
    assert_eq!(payloads(&mut second, &mut batch, 1), [b"again"]);
}

#[test]
fn addresses_are_followed_and_what_is_not_handed_over_reaches_the_ordinary_socket() {
    let Some(_turn) = turn() else { return };
    let redirect = attach();
    let (mut engine, mut batch) = engine(&redirect, &SHAPE, &xdp::Options::new(0));
    let ordinary = UdpSocket::bind(("0.0.0.0", PORT)).expect("a free port");
    ordinary.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let (sender, mut bytes) = (sender(), [0; 100]);
    let others: [IpAddr; 2] = ["10.8.0.99".parse().expect("valid"), "fd00::1".parse().expect("valid")];
    for _ in 0..3 {
        redirect.set_addresses(&others).expect("set");
        send(&sender, b"passes");
        assert_eq!(ordinary.recv(&mut bytes).expect("it came"), 6);
        redirect.set_addresses(&[others[1], ADDRESS.into()]).expect("set");
        send(&sender, b"handed over");
        assert_eq!(payloads(&mut engine, &mut batch, 1), [b"handed over"]);
    }
    let many: Vec<IpAddr> = (0..5000_u32).map(|number| IpAddr::from(number.to_be_bytes())).collect();
    let error = redirect.set_addresses(&many).expect_err("too many");
    assert!(error.to_string().contains("up to 4096"), "{error}");
    send(&sender, b"still");
    assert_eq!(payloads(&mut engine, &mut batch, 1), [b"still"], "a refusal changes nothing");
    engine.finish();
    send(&sender, b"at the end");
    assert_eq!(ordinary.recv(&mut bytes).expect("it came"), 10);
    assert_eq!(engine.receive(&mut batch, Wait::Block).expect("nothing is left, and it does not wait"), 0);
}

#[test]
fn a_batch_outlives_its_engine_and_the_next_engine_gets_the_queue() {
    let Some(_turn) = turn() else { return };
    let redirect = attach();
    let sender = sender();
    let mut kept = Vec::new();
    for round in 0..20_u8 {
        let (mut engine, mut batch) = engine(&redirect, &SHAPE, &xdp::Options::new(0).copy_up_to(0));
        for _ in 0..16 {
            send(&sender, &[round; 700]);
        }
        assert!(engine.receive(&mut batch, Wait::Block).expect("received") > 0);
        // Frames are in the ring, and more may be under way.
        drop(engine);
        kept.push((round, batch));
    }
    for (round, batch) in &kept {
        assert!(batch.datagrams().all(|datagram| datagram.payload() == [*round; 700]));
    }
}

#[test]
fn a_batch_that_was_filled_by_af_xdp_is_filled_by_recvmmsg_next() {
    let Some(_turn) = turn() else { return };
    let (mut engine, mut batch) = engine(&attach(), &SHAPE, &xdp::Options::new(0).copy_up_to(0));
    let sender = sender();
    for _ in 0..8 {
        send(&sender, &[1; 1000]);
    }
    assert_eq!(payloads(&mut engine, &mut batch, 8).len(), 8);
    let socket = Arc::new(unbound(Family::V4));
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    engine.finish();
    engine.replace_socket(Arc::clone(&socket)).expect("recvmmsg");
    assert_eq!(engine.name(), "recvmmsg");
    let local = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for _ in 0..8 {
        local.send_to(&[2; 2048], socket.local_addr().expect("bound")).expect("sent");
    }
    assert_eq!(payloads(&mut engine, &mut batch, 8), vec![vec![2; 2048]; 8]);
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    let Some(_turn) = turn() else { return };
    let redirect = attach();
    let ((told, heard), (ended, end)) = (channel(), channel());
    let thread = std::thread::Builder::new().name("xdp-woken".to_owned());
    let thread = thread.spawn(move || {
        let (mut engine, mut batch) = engine(&redirect, &SHAPE, &xdp::Options::new(0));
        told.send(engine.waker().expect("a waker")).expect("the test waits");
        assert_eq!(engine.receive(&mut batch, Wait::Block).expect("nothing came"), 0);
        assert_eq!(engine.receive(&mut batch, Wait::Block).expect("it does not wait again"), 0);
        ended.send(()).expect("the test waits");
    });
    let thread = thread.expect("a thread");
    let waker = heard.recv().expect("a waker");
    wait_until_asleep("xdp-woken");
    while end.recv_timeout(Duration::from_millis(1)).is_err() {
        waker.wake().expect("woken");
        assert!(!thread.is_finished() || end.try_recv().is_ok(), "it ended otherwise");
    }
    thread.join().expect("no panic");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_taken() {
    let Some(_turn) = turn() else { return };
    let redirect = attach();
    let refused = |shape: &BatchShape, options: &xdp::Options| -> io::Error {
        let (reserve, _) = RecvBatch::pool(2, shape).expect("memory");
        Engine::af_xdp(Arc::clone(&redirect), reserve, options).expect_err("refused")
    };
    let options = xdp::Options::new(0);
    let error = refused(&BatchShape::new(8, 1500), &options);
    assert!(error.to_string().contains("AF_XDP needs 2048"), "{error}");
    let error = refused(&SHAPE, &options.control(Control::new().packet_info(true)));
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = refused(&SHAPE, &xdp::Options::new(9));
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<xdp::Refusal>()).expect("a refusal");
    assert_eq!(refusal.obstacle(), xdp::Obstacle::Unfit, "{refusal}");
    let error = Engine::af_xdp(Arc::clone(&redirect), Vec::new(), &options).expect_err("refused");
    assert!(error.to_string().contains("at least one batch"), "{error}");
    let (mut engine, _) = engine(&redirect, &SHAPE, &options);
    let mut stranger = RecvBatch::new(&SHAPE).expect("memory");
    let error = engine.receive(&mut stranger, Wait::No).expect_err("refused");
    assert!(error.to_string().contains("one RecvBatch::pool"), "{error}");
    for (name, expected) in [("nothing0", "no interface"), ("lo", "no Ethernet interface")] {
        let wanted = xdp::Wanted::new(name, PORT);
        let refusal = xdp::Redirect::attach(&wanted, &[]).expect_err("refused");
        assert!(refusal.obstacle() == xdp::Obstacle::Unfit && refusal.to_string().contains(expected), "{refusal}");
    }
}

#[cfg(mmsg_faults)]
mod faults {
    use super::*;
    use crate::common::each_call_fails;
    use mmsg::fault::{Call, inject};

    /// Everything an engine does in its life.
    fn everything(sender: &UdpSocket) -> io::Result<()> {
        let redirect = Arc::new(xdp::Redirect::attach(&xdp::Wanted::new("card0", PORT), &[ADDRESS.into()])?);
        let (mut reserve, _) = RecvBatch::pool(3, &SHAPE)?;
        let mut batch = reserve.remove(0);
        let mut engine = Engine::af_xdp(Arc::clone(&redirect), reserve, &xdp::Options::new(0))?;
        send(sender, b"payload");
        while engine.receive(&mut batch, Wait::Block)? == 0 {}
        redirect.set_addresses(&[])?;
        engine.xdp_statistics()?;
        engine.finish();
        while engine.receive_held(&mut batch)? > 0 {}
        Ok(())
    }

    #[test]
    fn addresses_that_were_changed_half_way_are_changed_by_the_next_call() {
        let Some(_turn) = turn() else { return };
        let redirect = attach();
        let (mut engine, mut batch) = engine(&redirect, &SHAPE, &xdp::Options::new(0));
        let (sender, others) = (sender(), [IpAddr::from([10, 8, 0, 8]), IpAddr::from([10, 8, 0, 9])]);
        for number in 1..=3 {
            redirect.set_addresses(&[ADDRESS.into()]).expect("nothing fails");
            let guard = inject(Call::Bpf, number, 5);
            redirect.set_addresses(&others).expect_err("one of three calls fails");
            assert!(guard.has_fired());
            redirect.set_addresses(&[others[0], ADDRESS.into()]).expect("nothing fails");
            send(&sender, b"handed over");
            assert_eq!(payloads(&mut engine, &mut batch, 1), [b"handed over"], "after call {number} failed");
        }
    }

    #[test]
    fn each_call_that_fails_is_said_and_leaves_nothing_at_the_interface() {
        let Some(_turn) = turn() else { return };
        let sender = sender();
        everything(&sender).expect("nothing fails");
        let calls = [
            (Call::Ioctl, 3),
            // Two maps, the program, the link, and what is in the maps. What lets frames pass at the end is tried
            // again.
            (Call::Bpf, 7),
            (Call::Socket, 1),
            (Call::Bind, 1),
            (Call::SetSockOpt, 4),
            (Call::GetSockOpt, 2),
            (Call::Mmap, 3),
            (Call::Poll, 0),
        ];
        for (call, at_least) in calls {
            let mut failed = 0;
            // EIO, which is the answer to none of them.
            each_call_fails(
                call,
                5,
                || everything(&sender),
                |_, result| {
                    failed += usize::from(result.is_err());
                    everything(&sender).expect("nothing was left behind");
                },
            );
            assert!(failed >= at_least, "{call:?}: {failed} of at least {at_least} were handed on");
        }
    }

    #[test]
    fn a_signal_during_a_call_takes_nothing_away() {
        const EINTR: i32 = 4;
        let Some(_turn) = turn() else { return };
        let sender = sender();
        // A driver that copies asks for no call with its frames, and who finds some does not wait.
        for (call, at_least) in [(Call::Bpf, 8), (Call::Recvmsg, 0), (Call::Poll, 0), (Call::Membarrier, 1)] {
            let interrupted = each_call_fails(
                call,
                EINTR,
                || everything(&sender),
                |number, result| {
                    result.unwrap_or_else(|error| panic!("{call:?} {number}: {error}"));
                },
            );
            assert!(interrupted >= at_least, "{call:?}: {interrupted} of at least {at_least} were interrupted");
        }
    }
}
