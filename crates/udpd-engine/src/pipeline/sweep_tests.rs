//! What is found in a socket that nobody reads.

use super::*;

#[test]
fn what_is_left_in_a_socket_is_counted_by_datagrams_also_when_it_is_trains() {
    for gro in [false, true] {
        let socket = Socket::new(mmsg::Family::V4).expect("a socket");
        if gro {
            socket.set_gro(true).expect("GRO");
        }
        socket.set_packet_info(true).expect("packet info");
        socket.set_timestamps(true).expect("timestamps");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let sender = mmsg::Socket::new(mmsg::Family::V4).expect("a socket");
        sender.connect(socket.local_addr().expect("bound")).expect("connected");
        let mut batch = mmsg::SendBatch::new(4, 65_000).expect("memory");
        for (size, count) in [(100, 40), (7, 1), (1_400, 12), (1, 64)] {
            batch.push_segmented(&vec![0; size * count], size as u16, None).expect("queued");
        }
        batch.flush(&sender).expect("sent");
        sender.interrupt().expect("interrupted");
        let count = || {
            let mut all = 0;
            count_out(&socket, |datagrams| all += datagrams).expect("readable");
            all
        };
        assert_eq!(count(), 40 + 1 + 12 + 64, "GRO {gro}");
        assert_eq!(count(), 0, "GRO {gro}");
    }
}
