//! What a way of writing a value has to do: read it, say which values are right, and stand in where there is none.

use toml::de::DeTable;

use super::findings::{Findings, ValuePlace};
use super::keys::{KeyDeclaration, Keys, join};
use super::line::KeyFacts;
use super::table::{Field, TomlTable};
use crate::text::advice::ValueAdvice;

/// A way of writing a `T`.
pub trait ValueKind<T> {
    /// The value of `field`, as far as it is right. What is wrong goes to `findings`.
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<T>;

    /// As [`read`](Self::read), of a key that `older` is an older spelling of, with the one warning that it gets. What
    /// meant something else then says in the warning what it is read as.
    fn read_older(&self, field: &Field<'_>, older: &ValuePlace, findings: &mut Findings<'_>) -> Option<T> {
        let key = field.name();
        findings
            .warn(older, ValueAdvice::new(format!("is the older spelling of {key}"), format!("write {key} instead")));
        self.read(field, findings)
    }

    /// Which values are right, in words; "" says that the help does.
    fn bounds(&self) -> String {
        String::new()
    }

    /// What stands in for a value that is required and missing, which has been reported.
    fn nothing(&self) -> Option<T> {
        None
    }

    /// The keys that one declaration makes.
    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        vec![own]
    }

    /// The value of the key that `line` declares, or its default.
    fn take(&self, line: &KeyFacts, table: &mut TomlTable<'_>, findings: &mut Findings<'_>) -> T {
        let before = findings.count();
        let field = table.take_either(line.key, line.formerly, findings);
        if field.is_none() && line.is_required() {
            let path = join(&table.schema, line.key);
            let cure = format!("write {} = {}, for example", line.key, findings.keys.example(&path));
            findings.say(&table.place.inner(line.key), "is missing", cure);
        }
        let value = field.and_then(|field| match field.older.clone() {
            Some(older) => self.read_older(&field, &older, findings),
            None => self.read(&field, findings),
        });
        if findings.count() > before {
            table.note_wrong(line.key);
        }
        let value = value.or_else(|| if line.is_required() { self.nothing() } else { self.default(line) });
        value.unwrap_or_else(|| panic!("the default of {} is wrong: {}", line.key, line.default))
    }

    /// The default, read as if it were written.
    fn default(&self, line: &KeyFacts) -> Option<T> {
        let text = format!("{} = {}", line.key, line.default);
        let table = DeTable::parse(&text).ok()?.into_inner();
        let mut field = TomlTable::root(&table).take(line.key)?;
        field.written = false;
        let mut findings = Findings::new("default", &text, Keys::default());
        self.read(&field, &mut findings).filter(|_| findings.count() == 0)
    }
}
