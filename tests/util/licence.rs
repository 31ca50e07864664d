//! Whether a licence expression can be met with the licences we accept.
//!
//! The expressions of Cargo.toml: names joined by AND, OR and WITH, with brackets; AND binds tighter. Old packages
//! write "/" for OR.

/// True when some choice of the expression's alternatives uses accepted licences only. `A WITH B` is accepted as that
/// whole text or, since an exception only ever grants more, as `A`.
pub(crate) fn is_met(expression: &str, accepted: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { tokens: &tokens, accepted };
    let met = reader.either();
    met && reader.tokens.is_empty()
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    accepted: &'a [String],
}

impl Reader<'_> {
    fn take(&mut self, wanted: &str) -> bool {
        let found = self.tokens.first() == Some(&wanted);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn either(&mut self) -> bool {
        let mut met = self.both();
        while self.take("OR") {
            // Not `||`: the right side has to be read even when the left side is enough.
            met |= self.both();
        }
        met
    }

    fn both(&mut self) -> bool {
        let mut met = self.one();
        while self.take("AND") {
            met &= self.one();
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.take("(") {
            let met = self.either();
            return self.take(")") && met;
        }
        let Some((name, rest)) = self.tokens.split_first() else { return false };
        self.tokens = rest;
        let mut met = self.accepted.iter().any(|accepted| accepted == name);
        if self.take("WITH")
            && let Some((exception, rest)) = self.tokens.split_first()
        {
            self.tokens = rest;
            let whole = format!("{name} WITH {exception}");
            met |= self.accepted.contains(&whole);
        }
        met
    }
}
