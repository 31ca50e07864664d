//! `allow_files` and `deny_files`: a file of networks, one by line.
//!
//! Such files come from elsewhere: feeds of bad senders, exports of an inventory. So a bare address is that one host,
//! and what follows `#` or `;` is a comment. Bits behind the length are refused as in the configuration, because their
//! meaning is a guess. The file is read line by line and never held as a whole.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ipnet::IpNet;
use nix::fcntl::OFlag;

use super::settings::parse_network;
use udpd_base::text::advice::ValueAdvice;

/// The most networks that all files of a listener may hold, each counted as often as it is written.
pub const NETWORKS_MAX: usize = 4_000_000;

/// A larger file is no list of networks.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The longest line, with its comment.
const LINE_BYTES_MAX: u64 = 1024;

/// After so many wrong lines the rest is not read.
const WRONG_LINES_MAX: usize = 10_000;

/// Reads the file: `take` gets each network, and `refuse` what is wrong with a line. The error is of the whole file.
pub fn read(
    path: &Path,
    take: impl FnMut(IpNet, u32),
    refuse: impl FnMut(u32, ValueAdvice),
) -> Result<(), ValueAdvice> {
    let unreadable = |error: io::Error| ValueAdvice::new(format!("cannot be read: {error}"), cure_for(&error, path));
    // The open file is checked, because the path may name another a moment later. It is opened without waiting, because
    // opening a pipe otherwise waits until a process writes into it.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "is a directory" } else { "is not a regular file" };
        return Err(ValueAdvice::new(what, "write the networks into a file, one by line, and name that"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(ValueAdvice::new("is larger than 256 MiB", "name a list of networks, not some other file"));
    }
    // It may grow meanwhile.
    read_lines(BufReader::with_capacity(64 << 10, file).take(FILE_BYTES_MAX), take, refuse).map_err(unreadable)
}

pub(crate) fn read_lines(
    mut text: impl BufRead,
    mut take: impl FnMut(IpNet, u32),
    mut refuse: impl FnMut(u32, ValueAdvice),
) -> io::Result<()> {
    let mut line = Vec::new();
    let (mut number, mut wrong) = (0, 0);
    while wrong < WRONG_LINES_MAX {
        line.clear();
        if text.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        if line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            let what = format!("the line is longer than {LINE_BYTES_MAX} bytes");
            refuse(number, ValueAdvice::new(what, "name a list of networks, one by line; the rest was not read"));
            break;
        }
        let content = if number == 1 { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line) } else { &line };
        match parse_line(content) {
            Ok(None) => {}
            Ok(Some(network)) => take(network, number),
            Err(advice) => {
                wrong += 1;
                refuse(number, advice);
            }
        }
    }
    Ok(())
}

/// The network of a line, if it has one.
fn parse_line(line: &[u8]) -> Result<Option<IpNet>, ValueAdvice> {
    let end = line.iter().position(|byte| matches!(byte, b'#' | b';')).unwrap_or(line.len());
    let content = line[..end].trim_ascii();
    if content.is_empty() {
        return Ok(None);
    }
    let text = str::from_utf8(content).ok().filter(|text| text.len() <= TEXT_BYTES_MAX);
    let Some(text) = text else {
        let shown: String = String::from_utf8_lossy(content).chars().take(TEXT_BYTES_MAX).collect();
        return Err(ValueAdvice::new(format!("{shown:?} is not a network"), EXAMPLE));
    };
    match text.parse::<IpAddr>() {
        // The cure must show the network without quotes, as a line has it.
        Err(_) => {
            parse_network(text).map(Some).map_err(|advice| ValueAdvice { cure: advice.cure.replace('"', ""), ..advice })
        }
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => parse_line(format!("{v6}/128").as_bytes()),
        Ok(address) => Ok(Some(address.into())),
    }
}

/// Longer than any network that can be written.
const TEXT_BYTES_MAX: usize = 60;

const EXAMPLE: &str = "write an address and a length, such as 10.0.0.0/8 or 2001:db8::/32, or one address";

fn cure_for(error: &io::Error, path: &Path) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => "create it, or take it from the list of files".to_owned(),
        io::ErrorKind::PermissionDenied => {
            format!(
                "let the user that runs udpd read it and enter its directories: namei -l {shown} shows their rights"
            )
        }
        _ => format!("check that {shown} is a readable file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken, and what is said, of which line.
    type Outcome = (Vec<(String, u32)>, Vec<(u32, String)>);

    fn read_text(text: &[u8]) -> Outcome {
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let take = |network: IpNet, line| taken.push((network.to_string(), line));
        read_lines(text, take, |line, advice| refused.push((line, advice.to_string()))).expect("read");
        (taken, refused)
    }

    #[test]
    fn a_list_is_read_as_feeds_write_it() {
        let text = b"\xEF\xBB\xBF# a feed\r\n\r\n10.0.0.0/8\r\n192.0.2.1 ; SBL1\n\t2001:db8::/32# note\n2001:db8::1\n\
                     0.0.0.0/0";
        let (taken, refused) = read_text(text);
        let taken: Vec<_> = taken.iter().map(|(network, line)| (network.as_str(), *line)).collect();
        let expected =
            [("10.0.0.0/8", 3), ("192.0.2.1/32", 4), ("2001:db8::/32", 5), ("2001:db8::1/128", 6), ("0.0.0.0/0", 7)];
        assert_eq!(taken, expected);
        assert_eq!(refused, []);
    }

    #[test]
    fn every_wrong_line_is_named_with_what_would_be_right() {
        let text = b"10.1.2.3/8\n10.0.0.0/8\nlocalhost\n10.0.0.0/33\n::ffff:10.0.0.1\n\xFF\xFE\n1.2.3.4 5.6.7.8\n";
        let (taken, refused) = read_text(text);
        assert_eq!(taken, [("10.0.0.0/8".to_owned(), 2)]);
        let expected = [
            (1, "write 10.0.0.0/8 for that network, or 10.1.2.3/32 for the one address"),
            (3, "\"localhost\" is not a network"),
            (4, "is not a length of 0 to 32 bits"),
            (5, "write 10.0.0.1/32"),
            (6, "is not a network"),
            (7, "\"1.2.3.4 5.6.7.8\" is not a network"),
        ];
        assert_eq!(refused.len(), expected.len(), "{refused:?}");
        for ((line, said), (expected_line, words)) in refused.iter().zip(expected) {
            assert_eq!(*line, expected_line, "{said}");
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn what_is_no_list_is_not_read_to_its_end() {
        let (taken, refused) = read_text(&[b'x'; 100_000]);
        assert!(taken.is_empty());
        assert_eq!(refused.len(), 1);
        assert!(refused[0].1.contains("longer than 1024 bytes"), "{refused:?}");
        let (_, refused) = read_text(&b"x\n".repeat(20_000));
        assert_eq!(refused.len(), WRONG_LINES_MAX);
    }

    #[test]
    fn a_pipe_a_directory_and_a_file_that_is_not_there_are_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        for (path, words) in [
            (pipe.as_path(), "is not a regular file"),
            (folder.path(), "is a directory"),
            (&folder.path().join("none"), "No such file"),
        ] {
            let advice = read(path, |_, _| {}, |_, _| {}).expect_err("refused");
            assert!(advice.to_string().contains(words), "{advice}");
        }
    }
}
