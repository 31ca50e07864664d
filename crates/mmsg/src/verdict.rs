//! What an error number of `sendmmsg` is about: this message, perhaps an earlier one, or the call. The kernel does not
//! say; these lists do, and `send.rs` acts on them.

/// Errors that may stem from the ICMP answer to an earlier datagram.
pub(crate) fn is_pending(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
            | libc::EMSGSIZE
            | libc::EOPNOTSUPP
    )
}

/// Errors that say something of the message or its destination, and nothing of the socket.
pub(crate) fn is_about_a_message(errno: i32) -> bool {
    is_pending(errno)
        || matches!(
            errno,
            libc::ENETDOWN
                | libc::EPERM
                | libc::EINVAL
                | libc::EIO
                | libc::EDESTADDRREQ
                | libc::EAFNOSUPPORT
                | libc::EADDRNOTAVAIL
        )
}
