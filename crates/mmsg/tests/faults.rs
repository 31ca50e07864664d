//! System calls that fail on order: every call site hands its error on, and what is promised to be survived is
//! survived.
#![cfg(mmsg_faults)] // RUSTFLAGS="--cfg mmsg_faults"

mod common;
#[cfg(feature = "io_uring")]
mod ring_faults;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mmsg::fault::{Call, inject, inject_partial_send};
use mmsg::{
    Backing, BatchShape, Control, CoreCounter, Family, Group, GroupSpread, OwnRights, RecvBatch, SendBatch, Socket,
    SourceRanges, SourceTable, Wait,
};

use common::{DEADLINE, batch, bound, bound_v4, each_call_fails, loopback, payloads, permitted, send, turn, unbound};

const SHAPE: BatchShape = BatchShape::new(8, 2048);

/// Uses every call of the crate, as a program would.
fn everything() -> io::Result<()> {
    let socket = Socket::try_from(OwnedFd::from(Socket::new(Family::V4)?))?;
    socket.set_reuse_port(true)?;
    socket.set_packet_info(true)?;
    socket.set_receive_buffer(100_000)?;
    socket.attach_reuseport(&GroupSpread::Random, 1)?;
    socket.join_multicast([239, 0, 0, 1].into(), 1, None)?;
    socket.bind(loopback(Family::V4))?;
    let address = socket.local_addr()?;
    let sender = Socket::new(Family::V4)?;
    sender.connect(address)?;
    let mut outgoing = SendBatch::new(4, 100)?;
    for _ in 0..4 {
        outgoing.push(b"payload", None)?;
    }
    outgoing.flush(&sender)?.all_sent()?;
    let mut batch = RecvBatch::new(&SHAPE)?;
    assert!(socket.wait_readable(DEADLINE)?);
    assert_eq!(batch.receive(&socket, Wait::Block)?, 4);
    socket.refuse_arrivals()?;
    assert_eq!(socket.memory_info()?.drops, 0);
    socket.interrupt()?;
    assert_eq!(batch.receive(&socket, Wait::Block)?, 0);
    Ok(())
}

#[test]
fn every_call_site_hands_its_error_on() {
    let _turn = turn();
    let cases = [
        (Call::Socket, 2),
        (Call::Bind, 1),
        (Call::Connect, 1),
        (Call::GetSockName, 1),
        (Call::SetSockOpt, 6),
        (Call::GetSockOpt, 6),
        (Call::Shutdown, 1),
        (Call::Poll, 1),
        (Call::Recvmmsg, 2),
        (Call::Sendmmsg, 1),
        (Call::Mmap, 2),
        (Call::Mprotect, 2),
        (Call::Madvise, 2),
    ];
    for (call, sites_at_least) in cases {
        let made = each_call_fails(call, libc::ENFILE, everything, |nth, result| {
            let error = result.expect_err("an error must not vanish");
            assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "call {nth} of {call:?}: {error}");
        });
        assert!(made >= sites_at_least, "{call:?} was made {made} times, {sites_at_least} expected");
    }
}

#[test]
fn an_interrupted_call_is_made_again() {
    let _turn = turn();
    for call in [Call::Recvmmsg, Call::Sendmmsg, Call::Poll] {
        let guard = inject(call, 1, libc::EINTR);
        everything().unwrap_or_else(|error| panic!("{call:?}: {error}"));
        assert!(guard.has_fired());
    }
}

#[test]
fn an_interrupted_wait_still_ends_in_time() {
    let _turn = turn();
    let (socket, _) = bound_v4();
    let _guard = inject(Call::Poll, 1, libc::EINTR);
    assert!(!socket.wait_readable(Duration::from_millis(1)).expect("made again"));
}

#[test]
fn nothing_there_is_no_error() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let mut batch = RecvBatch::new(&SHAPE).expect("memory");
    let guard = inject(Call::Recvmmsg, 1, libc::EAGAIN);
    assert_eq!(batch.receive(&socket, Wait::No).expect("no error"), 0);
    assert!(guard.has_fired());
    // A socket that does not wait although it was told to is waited for by a poll.
    send(address, [b"x"]);
    let guard = inject(Call::Recvmmsg, 1, libc::EAGAIN);
    assert_eq!(batch.receive(&socket, Wait::Block).expect("no error"), 1);
    assert!(guard.has_fired());
}

#[test]
fn a_batch_is_usable_after_a_failed_receive() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let mut batch = RecvBatch::new(&SHAPE).expect("memory");
    let guard = inject(Call::Recvmmsg, 1, libc::ECONNREFUSED);
    batch.receive(&socket, Wait::No).expect_err("injected");
    assert!(guard.has_fired() && batch.is_empty());
    send(address, [b"x"; 3]);
    assert_eq!(batch.receive(&socket, Wait::Block).expect("receive"), 3);
}

#[test]
fn without_the_capability_a_buffer_is_asked_for_the_plain_way() {
    let _turn = turn();
    let socket = unbound(Family::V4);
    let guard = inject(Call::SetSockOpt, 1, libc::EPERM);
    let granted = socket.set_receive_buffer(50_000).expect("the plain way");
    assert!(guard.has_fired() && !granted.forced && granted.granted_bytes == 100_000, "{granted:?}");
}

#[test]
fn gro_that_is_on_stays_on_when_switching_it_on_again_fails() {
    let _turn = turn();
    let (socket, _) = bound_v4();
    let mut plain = batch(2, 64, Control::default());
    let first = inject(Call::SetSockOpt, 1, libc::ENOMEM);
    socket.set_gro(true).expect_err("injected");
    assert!(first.has_fired());
    plain.receive(&socket, Wait::No).expect("it was never on");
    socket.set_gro(true).expect("GRO");
    let second = inject(Call::SetSockOpt, 1, libc::ENOMEM);
    socket.set_gro(true).expect_err("injected");
    assert!(second.has_fired());
    plain.receive(&socket, Wait::No).expect_err("it makes trains all the same");
}

#[test]
fn an_adopted_socket_of_a_kernel_that_does_not_say_counts_as_one_that_makes_trains() {
    let _turn = turn();
    let (socket, _) = bound_v4();
    let guard = inject(Call::GetSockOpt, 4, libc::ENOPROTOOPT);
    let adopted = Socket::try_from(OwnedFd::from(socket)).expect("adopted");
    assert!(guard.has_fired());
    let error = batch(2, 64, Control::default()).receive(&adopted, Wait::No).expect_err("refused");
    assert!(error.to_string().contains("control.gro"), "{error}");
}

#[test]
fn an_interrupt_of_an_unconnected_socket_is_a_success_and_other_errors_are_not() {
    let _turn = turn();
    let (socket, _) = bound_v4();
    let guard = inject(Call::Shutdown, 1, libc::ENOTCONN);
    socket.interrupt().expect("what the kernel says of every socket without a peer");
    assert!(guard.has_fired());
    let _guard = inject(Call::Shutdown, 1, libc::ENOTSOCK);
    socket.interrupt().expect_err("injected");
}

#[test]
fn huge_pages_that_are_not_to_be_had_are_replaced_and_the_reason_is_told() {
    let _turn = turn();
    let shape = BatchShape::new(1024, 2048).huge_pages(true);
    let no_reserved = inject(Call::Mmap, 1, libc::ENOMEM);
    let no_transparent = inject(Call::Madvise, 1, libc::ENOSYS);
    let (batches, backing) = RecvBatch::pool(1, &shape).expect("ordinary pages will do");
    assert!(no_reserved.has_fired() && no_transparent.has_fired() && batches.len() == 1);
    let Backing::Ordinary { why: Some(why) } = backing else { panic!("{backing:?}") };
    assert!(why.contains("vm.nr_hugepages") && why.contains("transparent"), "{why}");
}

#[test]
fn a_kernel_that_cannot_populate_memory_has_it_touched_page_by_page() {
    let _turn = turn();
    let guard = inject(Call::Madvise, 1, libc::EINVAL);
    let (batches, _) = RecvBatch::pool(2, &SHAPE).expect("touched by hand");
    assert!(guard.has_fired() && batches.len() == 2);
}

/// Sends `count` numbered datagrams.
fn send_all(sender: &Socket, to: SocketAddr, count: u8) {
    let mut outgoing = numbered(to, count);
    assert_eq!(outgoing.flush(sender).expect("sent").sent, usize::from(count));
}

fn numbered(to: SocketAddr, count: u8) -> SendBatch {
    let mut outgoing = SendBatch::new(usize::from(count), 1).expect("memory");
    for number in 0..count {
        outgoing.push(&[number], Some(to)).expect("a free slot");
    }
    outgoing
}

/// The next `count` datagrams, each of which is one number.
fn numbers(socket: &Socket, count: usize) -> Vec<u8> {
    payloads(socket, count).concat()
}

#[test]
fn partial_sends_lose_nothing_and_send_nothing_twice() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    for most in 1..10 {
        let _first = inject_partial_send(1, most);
        let _second = inject_partial_send(2, 1);
        send_all(&sender, address, 10);
        assert_eq!(numbers(&socket, 10), (0..10).collect::<Vec<u8>>(), "first call sends {most}");
    }
    assert_eq!(batch(4, 16, Control::default()).receive(&socket, Wait::No).expect("receive"), 0);
}

#[test]
fn an_error_of_the_call_says_how_much_was_sent_and_the_rest_goes_out_later() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    for errno in [libc::EAGAIN, libc::ENOBUFS, libc::EBADF, libc::ENOMEM] {
        let mut outgoing = numbered(address, 10);
        let _partial = inject_partial_send(1, 4);
        let _failure = inject(Call::Sendmmsg, 2, errno);
        let failed = outgoing.flush(&sender).expect_err("injected");
        assert_eq!((failed.sent(), failed.error.raw_os_error()), (4, Some(errno)));
        assert_eq!(outgoing.len(), 6);
        let report = outgoing.flush(&sender).expect("no fault left");
        assert_eq!((report.sent, report.failed), (6, 0));
        assert_eq!(numbers(&socket, 10), (0..10).collect::<Vec<u8>>());
    }
}

#[test]
fn an_error_about_a_datagram_skips_that_datagram_alone() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    for errno in [libc::ENETDOWN, libc::EPERM, libc::EINVAL, libc::EDESTADDRREQ, libc::EADDRNOTAVAIL] {
        let mut outgoing = numbered(address, 10);
        let _partial = inject_partial_send(1, 4);
        let _failure = inject(Call::Sendmmsg, 2, errno);
        let report = outgoing.flush(&sender).expect("not an error of the call");
        assert_eq!((report.sent, report.failed), (9, 1));
        let failures: Vec<_> = outgoing.failures().iter().map(|failure| (failure.index, failure.errno)).collect();
        assert_eq!(failures, [(4, errno)]);
        assert_eq!(numbers(&socket, 9), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    }
}

#[test]
fn an_error_that_may_be_an_earlier_datagrams_is_tried_again_once() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    for errno in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES, libc::EMSGSIZE] {
        let _once = inject(Call::Sendmmsg, 1, errno);
        send_all(&sender, address, 3);
        assert_eq!(numbers(&socket, 3), [0, 1, 2]);

        let mut outgoing = numbered(address, 3);
        let _first = inject(Call::Sendmmsg, 1, errno);
        let _second = inject(Call::Sendmmsg, 2, errno);
        let report = outgoing.flush(&sender).expect("not an error of the call");
        assert_eq!((report.sent, report.failed, outgoing.failures()[0].index), (2, 1, 0));
        assert_eq!(numbers(&socket, 2), [1, 2]);
    }
}

/// A receiver that shows whether a train came glued: messages and datagrams of one flush.
fn glued(socket: &Socket, datagrams: u64) -> (usize, Vec<u8>) {
    let mut batch = batch(256, 65_536, Control::new().gro(true));
    while batch.summary().datagrams < datagrams {
        assert!(socket.wait_readable(DEADLINE).expect("poll"), "datagrams are missing: {batch:?}");
        batch.receive_more(socket, Wait::No).expect("receive");
    }
    (batch.messages(), batch.datagrams().flat_map(|datagram| datagram.payload().to_vec()).collect())
}

#[test]
fn segmentation_refused_at_any_time_is_replaced_by_single_datagrams_for_good() {
    let _turn = turn();
    let payload: Vec<u8> = (0..200).collect();
    for errno in [libc::EIO, libc::EINVAL] {
        let (socket, address) = bound(Family::V4, |socket| socket.set_gro(true).expect("GRO"));
        let sender = unbound(Family::V4);
        let mut outgoing = SendBatch::new(4, 200).expect("memory");
        let mut flush = |fault: bool| {
            outgoing.push_segmented(&payload, 33, Some(address)).expect("a free slot");
            let guard = fault.then(|| inject(Call::Sendmmsg, 1, errno));
            let report = outgoing.flush(&sender).expect("sent one way or another");
            assert!(guard.is_none_or(|guard| guard.has_fired()));
            assert_eq!((report.sent, report.datagrams, report.failed), (1, 7, 0));
            let (messages, bytes) = glued(&socket, 7);
            assert!(bytes == payload);
            (messages, report.segmentation_refused)
        };
        assert_eq!(flush(false), (1, false), "at first the route can do it");
        assert_eq!(flush(true), (7, true), "then it cannot");
        assert_eq!(flush(false), (7, true), "and it is not asked again");
    }
}

#[test]
fn a_message_too_long_to_be_segmented_does_not_end_segmentation() {
    let _turn = turn();
    let (socket, address) = bound(Family::V4, |socket| socket.set_gro(true).expect("GRO"));
    let sender = unbound(Family::V4);
    let mut outgoing = SendBatch::new(4, 200).expect("memory");
    for fault in [true, false] {
        outgoing.push_segmented(&[1; 100], 50, Some(address)).expect("a free slot");
        let _guard = fault.then(|| inject(Call::Sendmmsg, 1, libc::EMSGSIZE));
        assert!(!outgoing.flush(&sender).expect("sent").segmentation_refused);
        assert_eq!(glued(&socket, 2).0, if fault { 2 } else { 1 });
    }
}

#[test]
fn single_datagrams_of_a_train_survive_partial_sends_and_errors() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    let payload: Vec<u8> = (0..10).collect();
    let mut outgoing = SendBatch::new(4, 10).expect("memory");
    outgoing.push_segmented(&payload, 1, Some(address)).expect("a free slot");
    outgoing.push(&[10], Some(address)).expect("a free slot");
    outgoing.push_segmented(&[11, 12], 1, Some(address)).expect("a free slot");
    let _refused = inject(Call::Sendmmsg, 1, libc::EIO);
    let _partial = inject_partial_send(2, 3);
    let _one_segment = inject(Call::Sendmmsg, 3, libc::EPERM);
    let _partial_again = inject_partial_send(4, 2);
    let _the_call = inject(Call::Sendmmsg, 5, libc::ENOBUFS);
    let failed = outgoing.flush(&sender).expect_err("injected");
    assert_eq!((failed.sent(), failed.report.datagrams, failed.report.failed), (0, 5, 1));
    assert_eq!((outgoing.failures()[0].index, outgoing.len()), (0, 3));
    assert_eq!(numbers(&socket, 5), [0, 1, 2, 4, 5]);
    let report = outgoing.flush(&sender).expect("no fault left");
    assert_eq!((report.sent, report.datagrams), (2, 7), "the first message has failed in part and does not count");
    assert_eq!(numbers(&socket, 7), [6, 7, 8, 9, 10, 11, 12]);
}

fn two_members() -> (Group, SocketAddr) {
    let members = (0..2).map(|_| Arc::new(unbound(Family::V4))).collect();
    let mut group = Group::new(members, GroupSpread::Cpu((0..64).map(|core| (core, 1)).collect())).expect("a group");
    let address = group.bind(loopback(Family::V4)).expect("bound");
    (group, address)
}

#[test]
fn a_member_leaves_without_loss_where_the_kernel_refuses_the_wait_for_its_softirqs() {
    let _turn = turn();
    let (mut group, address) = two_members();
    send(address, [b"queued before"]);
    let guard = inject(Call::Membarrier, 1, libc::EINVAL);
    let left = group.shrink(|leaving| payloads(&leaving, 1));
    assert!(guard.has_fired());
    assert_eq!(left.expect("one less"), [b"queued before"]);
}

#[test]
fn a_member_that_may_not_leave_stays_and_is_steered_to_as_before() {
    let _turn = turn();
    let (mut group, address) = two_members();
    // The first option set is the program for one member, the second takes the member out.
    let guard = inject(Call::SetSockOpt, 2, libc::EPERM);
    let error = group.shrink(|_| panic!("it does not leave")).expect_err("injected");
    assert!(guard.has_fired() && error.raw_os_error() == Some(libc::EPERM), "{error}");
    send(address, [b"as before"]);
    assert_eq!((group.members().len(), payloads(&group.members()[1], 1)), (2, vec![b"as before".to_vec()]));
}

#[test]
fn a_counter_that_may_not_be_made_says_so_whichever_of_its_calls_fails() {
    let _turn = turn();
    for call in 1..=5 {
        let guard = inject(Call::Bpf, call, libc::EPERM);
        match CoreCounter::new() {
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
            Ok(_) => assert!(!guard.has_fired(), "a refusal was passed over"),
        }
    }
}

#[test]
fn a_filter_of_sources_that_may_not_be_made_says_so_whichever_of_its_calls_fails() {
    let _turn = turn();
    let make = |socket: &Socket| {
        let ranges = SourceRanges { v4_first: true, v4_turns: &[1], v6_first: true, v6_turns: &[1] };
        let filter = SourceTable::new(&ranges, &OwnRights)?.filter(socket, None, &OwnRights)?;
        filter.attach(socket)
    };
    if permitted("refusing sources in the kernel", CoreCounter::new()).is_none() {
        return;
    }
    for (call, count) in [(Call::Bpf, 4), (Call::Mmap, 3)] {
        for nth in 1..=count {
            let guard = inject(call, nth, libc::EPERM);
            let refused = make(&unbound(Family::V4)).expect_err("injected");
            assert!(guard.has_fired() && refused.raw_os_error() == Some(libc::EPERM), "{call:?}, {nth}: {refused}");
        }
    }
    // There is no room for it beside the one before, which goes first then.
    let socket = unbound(Family::V4);
    make(&socket).expect("the first");
    let guard = inject(Call::SetSockOpt, 1, libc::ENOMEM);
    make(&socket).expect("in its place");
    assert!(guard.has_fired());
}

#[test]
fn what_the_call_for_many_cannot_have_is_had_message_by_message() {
    let _turn = turn();
    let (socket, address) = bound_v4();
    send(address, (0..5_u8).map(|number| [number]));
    let mut batch = batch(8, 64, Control::default());
    let _always: Vec<_> = (1..4).map(|nth| inject(Call::Recvmmsg, nth, libc::ENOMEM)).collect();
    assert!(batch.receive(&socket, Wait::No).is_err());
    let interrupted = inject(Call::Recvmsg, 2, libc::EINTR);
    assert_eq!(batch.receive_each(&socket).expect("one by one"), 5);
    assert!(interrupted.has_fired());
    assert!(batch.datagrams().map(|datagram| datagram.payload()[0]).eq(0..5));
    // An error after the first message leaves what came before it, and is told next time if it lasts.
    send(address, [b"a", b"b"]);
    batch.clear();
    let _second = [inject(Call::Recvmsg, 2, libc::ENOMEM), inject(Call::Recvmsg, 3, libc::ENOMEM)];
    assert_eq!(batch.receive_each(&socket).expect("the first"), 1);
    assert!(batch.receive_each(&socket).is_err());
    assert_eq!(batch.receive_each(&socket).expect("the second"), 1);
    assert_eq!(batch.datagrams().count(), 2);
}
