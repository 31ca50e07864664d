//! What the commands of the bench have in common on the command line where they measure on a cable.

use super::lay;
use super::wire::Cable;
use crate::options::usage;
use crate::send::parse_mix;
use udpd_base::exit::Failure;
use udpd_base::text::advice::ValueAdvice;

/// What `--interface` has for a name where none is written.
const OWN: &str = "";

/// The options of the commands that measure on a cable.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Measure on a cable instead of loopback: receive at this interface what --from sends; without a name on a virtual
    /// pair in a network namespace of its own. Needs root
    #[arg(long, value_name = "IF", num_args = 0..=1, default_missing_value = OWN)]
    interface: Option<String>,
    /// The other end of the cable: frames for --interface leave by this one
    #[arg(long, value_name = "IF", requires = "interface")]
    from: Option<String>,
    /// Send frames by --from although a default route leaves by it
    #[arg(long, requires = "from")]
    despite_default_route: bool,
    /// Which flow a frame on the cable is of: uniform, round-robin, hot:20%, zipf:1.1 [default: uniform]
    #[arg(long, value_name = "MIX", requires = "interface")]
    mix: Option<String>,
}

impl Options {
    /// Those of somebody who has asked for what only a cable can do, and for none.
    pub fn with_cable(&self) -> Self {
        Self { interface: self.interface.clone().or_else(|| Some(OWN.to_owned())), ..self.clone() }
    }

    /// Whether it is to be laid in a namespace of its own.
    pub fn is_own(&self) -> bool {
        self.interface.as_deref() == Some(OWN)
    }

    pub fn is_wanted(&self) -> bool {
        self.interface.is_some()
    }

    /// The cable, laid if need be; none where loopback is wanted. Whatever this process starts afterwards is where the
    /// cable is.
    pub fn cable(&self) -> Result<Option<Cable>, Failure> {
        let Some(receiver) = self.interface.as_deref() else { return Ok(None) };
        let mix = parse_mix(self.mix.as_deref().unwrap_or("uniform")).map_err(|advice| usage("--mix", &advice))?;
        let cable = match (receiver, self.from.as_deref()) {
            (OWN, None) => lay::own(mix)?,
            (OWN, Some(_)) => {
                let advice =
                    ValueAdvice::new("it is one end of a cable", "write --interface IF, which is the other end");
                return Err(usage("--from", &advice));
            }
            (receiver, None) => {
                let what = format!("nothing sends to {receiver}");
                let cure = "write --from IF, an interface that is wired to it; without a name there is a virtual pair";
                return Err(usage("--interface", &ValueAdvice::new(what, cure)));
            }
            (receiver, Some(sender)) => Cable::between(receiver, sender, mix, self.despite_default_route)?,
        };
        Ok(Some(cable))
    }

    /// As they were written, for a report.
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({ "interface": self.interface, "from": self.from, "mix": self.mix })
    }
}
