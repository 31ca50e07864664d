//! Tests of the ring that need to see inside it; the others are in tests/engines.rs.
#![cfg(not(miri))] // system calls throughout
#![allow(unsafe_code)]

use super::*;
use crate::addr::Family;
use crate::shape::BatchShape;

/// A ring and a batch for a socket of loopback, or nothing where the kernel refuses.
fn ring(slots: usize) -> Option<(Uring, RecvBatch, std::net::SocketAddr)> {
    Uring::supported().ok()?;
    let socket = Socket::new(Family::V4).expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = socket.local_addr().expect("bound");
    let shape = BatchShape::new(slots, 64);
    let (mut pool, _) = RecvBatch::pool(1 + Uring::reserve_batches(slots), &shape).expect("memory");
    let batch = pool.remove(0);
    Some((Uring::new(Arc::new(socket), pool, 0).expect("a ring"), batch, address))
}

#[test]
fn a_kernel_without_a_minimum_wait_gathers_and_then_waits_all_the_same() {
    let Some((mut uring, mut batch, address)) = ring(8) else { return };
    uring.ring.forget_minimum_wait();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for _ in 0..3 {
        sender.send_to(b"x", address).expect("sent");
    }
    assert_eq!(
        uring.receive_more(&mut batch, Wait::Gather(Duration::from_millis(20)), &WakeFlag::default()).expect("receive"),
        3
    );
    batch.clear();
    std::thread::scope(|scope| {
        let (due, heard) = std::sync::mpsc::channel();
        scope.spawn(move || {
            heard.recv().expect("the receiver is about to wait");
            sender.send_to(b"late", address).expect("sent");
        });
        due.send(()).expect("the sender listens");
        assert_eq!(
            uring
                .receive_more(&mut batch, Wait::Gather(Duration::from_nanos(1)), &WakeFlag::default())
                .expect("receive"),
            1
        );
    });
}

#[test]
fn a_block_is_in_one_place_at_any_time() {
    let Some((mut uring, mut batch, address)) = ring(4) else { return };
    let places = |uring: &Uring, batch: &RecvBatch| {
        // SAFETY: existing slots, and nothing is receiving.
        let in_batch = (0..batch.slots()).map(|slot| unsafe { batch.region().block(slot) });
        let mut blocks: Vec<*mut u8> = uring.blocks.iter().copied().chain(in_batch).collect();
        blocks.sort_unstable();
        blocks
    };
    let at_first = places(&uring, &batch);
    assert!(at_first.windows(2).all(|pair| pair[0] < pair[1]), "each block is there once");
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for copy_up_to in [0, 5, 64] {
        uring.copy_up_to = copy_up_to;
        for size in (0..70).cycle().take(500) {
            sender.send_to(&vec![7; size], address).expect("sent");
            batch.clear();
            assert_eq!(uring.receive_more(&mut batch, Wait::Block, &WakeFlag::default()).expect("receive"), 1);
            assert!(batch.datagrams().all(|one| one.length() == size && one.payload().iter().all(|byte| *byte == 7)));
            assert_eq!(places(&uring, &batch), at_first, "{size} bytes, copying up to {copy_up_to}");
        }
    }
}

#[test]
fn a_ring_receives_and_does_nothing_else_also_for_another_socket() {
    let Some((mut uring, mut batch, address)) = ring(4) else { return };
    let refused = |uring: &mut Uring| {
        let fd = io_uring::types::Fd(uring.socket.as_raw_fd());
        let path = c"/".as_ptr();
        let byte = b"x".as_ptr();
        let requests = [
            io_uring::opcode::Nop::new().build(),
            io_uring::opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), path).build(),
            io_uring::opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            io_uring::opcode::Send::new(fd, byte, 1).build(),
            io_uring::opcode::PollAdd::new(fd, 1).build().flags(io_uring::squeue::Flags::IO_LINK),
        ];
        for request in requests {
            let (answer, registered) = uring.ring.answers_to(request);
            assert_eq!(answer, -libc::EACCES);
            assert_eq!(registered.expect_err("refused").raw_os_error(), Some(libc::EACCES));
        }
    };
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let mut receives = |uring: &mut Uring, address| {
        sender.send_to(b"x", address).expect("sent");
        batch.clear();
        assert_eq!(uring.receive_more(&mut batch, Wait::Block, &WakeFlag::default()).expect("receive"), 1);
    };
    refused(&mut uring);
    receives(&mut uring, address);
    let socket = Socket::new(Family::V4).expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = socket.local_addr().expect("bound");
    uring.finish();
    uring.replace_socket(Arc::new(socket)).expect("another socket");
    refused(&mut uring);
    receives(&mut uring, address);
}

/// As measured on Linux 6.18 with `ulimit -l`: one page less, and the kernel refuses it.
#[test]
fn a_ring_says_how_much_memory_it_locks() {
    assert_eq!(Uring::locked_bytes(0), 12 << 10);
    assert_eq!(Uring::locked_bytes(64), 16 << 10);
    assert_eq!(Uring::locked_bytes(1024), 104 << 10);
}
