//! What the commands of `bpf(2)` are given: the parts of the kernel's `union bpf_attr` that this crate uses, each as
//! long as what it knows of. A kernel that knows of more takes the rest as zeroes.

/// What `bpftool` shows: up to 15 letters, digits, `_` and `.`.
pub(crate) type Name = [u8; 16];

#[repr(C)]
pub(super) struct MapCreate {
    pub(super) kind: u32,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
    pub(super) inner_map: u32,
    pub(super) node: u32,
    pub(super) name: Name,
}

#[repr(C)]
pub(super) struct ProgramLoad {
    pub(super) kind: u32,
    pub(super) count: u32,
    pub(super) instructions: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_bytes: u32,
    pub(super) log: u64,
    pub(super) kernel_version: u32,
    pub(super) flags: u32,
    pub(super) name: Name,
    pub(super) interface: u32,
    pub(super) attach_kind: u32,
}

#[repr(C)]
pub(super) struct MapElement {
    pub(super) map: u32,
    pub(super) padding: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct MapElements {
    pub(super) in_batch: u64,
    pub(super) out_batch: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) count: u32,
    pub(super) map: u32,
    pub(super) element_flags: u64,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct ProgramRun {
    pub(super) program: u32,
    pub(super) returned: u32,
    pub(super) data_bytes: u32,
    pub(super) data_out_bytes: u32,
    pub(super) data: u64,
    pub(super) data_out: u64,
    pub(super) repeat: u32,
    pub(super) duration_ns: u32,
    pub(super) context_bytes: u32,
    pub(super) context_out_bytes: u32,
    pub(super) context: u64,
    pub(super) context_out: u64,
    pub(super) flags: u32,
    pub(super) core: u32,
    pub(super) batch: u32,
    pub(super) padding: u32,
}

#[repr(C)]
pub(super) struct LinkCreate {
    pub(super) program: u32,
    pub(super) target: u32,
    pub(super) attach_kind: u32,
    pub(super) flags: u32,
}

#[repr(C)]
pub(super) struct LinkUpdate {
    pub(super) link: u32,
    pub(super) program: u32,
    pub(super) flags: u32,
    pub(super) program_before: u32,
}

#[repr(C)]
pub(super) struct RawTracepointOpen {
    pub(super) name: u64,
    pub(super) program: u32,
    pub(super) padding: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_are_those_of_the_kernel() {
        assert_eq!(size_of::<MapCreate>(), 44);
        assert_eq!(size_of::<ProgramLoad>(), 72);
        assert_eq!(size_of::<MapElement>(), 32);
        assert_eq!(size_of::<MapElements>(), 56);
        assert_eq!(size_of::<ProgramRun>(), 80);
        assert_eq!(size_of::<LinkCreate>(), 16);
        assert_eq!(size_of::<LinkUpdate>(), 16);
        assert_eq!(size_of::<RawTracepointOpen>(), 16);
    }
}
