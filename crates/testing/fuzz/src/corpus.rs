//! The inputs and the words that are kept of a target.

use std::fs;
use std::path::{Path, PathBuf};

/// What is kept of one target.
#[derive(Debug, Default)]
pub struct Corpus {
    /// Inputs, in the order of their names.
    pub inputs: Vec<(PathBuf, Vec<u8>)>,
    /// Inputs that other tests replay; changes of them are tried as well.
    pub others: Vec<(PathBuf, Vec<u8>)>,
    /// Words of the format.
    pub words: Vec<Vec<u8>>,
}

/// Reads what is kept of the target of that name.
///
/// # Panics
/// When a file cannot be read, or a dictionary is none.
pub fn corpus_of(name: &str) -> Corpus {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/corpus/fuzz");
    let dictionary = fs::read_to_string(root.join(format!("{name}.dict"))).unwrap_or_default();
    let lines = dictionary.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let words = lines.map(|line| word(line).unwrap_or_else(|| panic!("{name}.dict: not a word: {line}"))).collect();
    let others: &[&str] = if name == "toml" { &["../good", "../bad"] } else { &[] };
    let others = others.iter().flat_map(|folder| files(&root.join(folder))).collect();
    Corpus { inputs: files(&root.join(name)), others, words }
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// Reads a line of a dictionary: `"text"` with `\\`, `\"` and `\xAB`.
fn word(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix('"')?.strip_suffix('"')?.bytes();
    let mut word = Vec::new();
    while let Some(byte) = rest.next() {
        word.push(match byte {
            b'\\' => match rest.next()? {
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                quoted @ (b'\\' | b'"') => quoted,
                _ => return None,
            },
            byte => byte,
        });
    }
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_dictionary_is_read_as_libfuzzer_reads_it() {
        assert_eq!(word(r#""a\"b\\c\x00\xff""#), Some(b"a\"b\\c\0\xff".to_vec()));
        for wrong in ["", "a", "\"", "\"\"", "\"\\n\"", "\"\\x0\""] {
            assert_eq!(word(wrong), None, "{wrong}");
        }
    }
}
