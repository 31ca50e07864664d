//! A fuzz target: the kernel's description of its types.

use crate::Types;

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("kernel_types", types)]
}

/// Whatever the description claims, each search ends, and finds nothing beyond it.
fn types(input: &[u8]) {
    let Some(types) = Types::parse(input) else { return };
    for name in ["sk_buff", "skb_shared_info", ""] {
        let _ = types.function(name).inspect(|number| assert!(*number as usize <= input.len()));
        for field in ["vlan_all", "head", "end", ""] {
            let _ = types.field(name, field);
        }
    }
}
