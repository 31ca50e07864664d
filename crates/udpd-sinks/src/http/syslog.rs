//! The fields of a line of syslog, RFC 3164 and 5424.
