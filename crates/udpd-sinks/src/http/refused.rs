//! The capture of datagrams that a server has refused for good, which `udpd replay` can send again.
