//! What is to be known of every key of a file: how it is written, what it means, and what was probably meant by
//! another.
//!
//! The list is made from the declarations (see `declare`), so what the reader accepts, what a message suggests and what
//! the documentation explains cannot differ.

use crate::text::advice::nearest;

/// One key, or the header of a table.
#[derive(Debug, Clone)]
pub struct KeyDeclaration {
    /// From the top of the file, such as `listener.absorb.rate`; `*` stands for a name that the operator gives.
    pub path: String,
    /// As it would be written; `None` for what has to be written.
    pub default: Option<String>,
    /// A right value, as it would be written; that of a table without a parent is its header.
    pub example: String,
    /// Which values are right.
    pub bounds: String,
    pub help: String,
    /// What other programs call it, separated by spaces.
    pub elsewhere: &'static str,
}

impl KeyDeclaration {
    /// The header of a table, such as `[[listener]]` for `listener`.
    pub fn header(path: &str, example: &str, help: &str, elsewhere: &'static str) -> Self {
        let (path, example, help) = (path.to_owned(), example.to_owned(), help.to_owned());
        Self { path, default: None, example, bounds: String::new(), help, elsewhere }
    }

    /// The key within its table.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

/// The path of a key under `table`; `""` is the file itself.
pub fn join(table: &str, key: &str) -> String {
    match table {
        "" => key.to_owned(),
        _ => format!("{table}.{key}"),
    }
}

/// All keys of a file, in the order of the documentation.
#[derive(Debug, Default)]
pub struct Keys(pub Vec<KeyDeclaration>);

impl Keys {
    pub fn get(&self, path: &str) -> Option<&KeyDeclaration> {
        self.0.iter().find(|key| key.path == path)
    }

    /// The keys directly under `table`.
    pub fn under<'k>(&'k self, table: &'k str) -> impl Iterator<Item = &'k KeyDeclaration> {
        self.0.iter().filter(move |key| match table {
            "" => !key.path.contains('.'),
            _ => key.path.rsplit_once('.').is_some_and(|(parent, _)| parent == table),
        })
    }

    /// Gives a key an example that fits the file better.
    pub fn set_example(&mut self, path: &str, example: String) {
        if let Some(key) = self.0.iter_mut().find(|key| key.path == path) {
            key.example = example;
        }
    }

    /// A right value for the key at `path`, as it would be written.
    pub fn example(&self, path: &str) -> &str {
        self.get(path).map_or("", |key| &key.example)
    }

    /// What to do about a key that does not exist under `table`: the one that was probably meant, the table in which it
    /// does exist, or all that do exist here. `foreign` are keys of the table that do not belong into this one.
    pub fn cure_unknown(&self, table: &str, written: &str, foreign: &[String]) -> String {
        let here = || self.under(table).filter(|key| !foreign.iter().any(|other| other == key.name()));
        if let Some(own) = here().find(|key| key.elsewhere.split_whitespace().any(|other| other == written)) {
            let header = table.is_empty() && own.example.starts_with('[');
            let own_text = if header { own.example.clone() } else { format!("{} = {}", own.name(), own.example) };
            return format!("what is {written} elsewhere is {} here: {own_text}", own.name());
        }
        if let Some(near) = nearest(written, here().map(KeyDeclaration::name)) {
            return format!("did you mean {near}?");
        }
        // The inner tables of others are about something else.
        let is_near = |parent: &str| {
            let is_inner = table.is_empty() || parent.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
            is_inner || !parent.trim_end_matches(".*").contains('.')
        };
        let parent = self.0.iter().find_map(|key| {
            let (parent, last) = key.path.rsplit_once('.')?;
            (last == written && parent != table && is_near(parent)).then_some(parent)
        });
        match parent {
            Some(parent) => {
                let header = self.header_of(parent);
                format!("move it under {header}, where {written} belongs")
            }
            None => {
                let names: Vec<&str> = here().map(KeyDeclaration::name).collect();
                format!("remove it; the keys here are {}", names.join(", "))
            }
        }
    }

    /// How the table at `path` begins.
    fn header_of(&self, path: &str) -> String {
        match self.example(path) {
            header if header.starts_with('[') => header.to_owned(),
            _ => format!("[{}]", path.replace('*', "NAME")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let key = |path: &str, example: &str, elsewhere| KeyDeclaration::header(path, example, "", elsewhere);
        Keys(vec![
            key("daemon", "[daemon]", "global"),
            key("daemon.log_level", "\"info\"", ""),
            key("listener", "[[listener]]", "listeners"),
            key("listener.address", "\"0.0.0.0:514\"", "bind port"),
            key("listener.batch_size", "64", ""),
            key("listener.absorb", "{ weight = 512 }", ""),
            key("listener.absorb.weight", "512", ""),
            key("sink", "[sink.archive]", ""),
            key("sink.*.when_full", "\"block\"", "overflow"),
        ])
    }

    #[test]
    fn an_unknown_key_is_cured_by_its_name_elsewhere_its_likeness_its_table_or_the_list() {
        let cured = |table, written| {
            keys().cure_unknown(table, written, &["address".to_owned()][..usize::from(written == "size")])
        };
        assert!(cured("listener", "port").ends_with("is address here: address = \"0.0.0.0:514\""));
        assert!(cured("", "global").ends_with("elsewhere is daemon here: [daemon]"));
        for (written, meant) in [("adress", "address"), ("batchsize", "batch_size"), ("Batch_size", "batch_size")] {
            assert_eq!(cured("listener", written), format!("did you mean {meant}?"));
        }
        assert_eq!(cured("", "log_level"), "move it under [daemon], where log_level belongs");
        assert_eq!(cured("daemon", "batch_size"), "move it under [[listener]], where batch_size belongs");
        assert_eq!(cured("daemon", "when_full"), "move it under [sink.NAME], where when_full belongs");
        assert_eq!(cured("listener", "weight"), "move it under [listener.absorb], where weight belongs");
        assert_eq!(cured("sink.*", "weight"), "remove it; the keys here are when_full", "not into a table of others");
        assert_eq!(cured("listener", "colour"), "remove it; the keys here are address, batch_size, absorb");
        assert_eq!(
            cured("listener", "size"),
            "remove it; the keys here are batch_size, absorb",
            "address is of another"
        );
    }
}
