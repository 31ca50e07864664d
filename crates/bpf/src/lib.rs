//! Small eBPF programs for Linux, assembled at run time and loaded with `bpf(2)`.
//!
//! A program that is assembled for one task contains exactly what the task needs: a table search as deep as the table,
//! a frame with the headers of its family. It needs neither a compiler nor a library, only the right to load it. An
//! error of the kernel is returned unchanged; when the verifier refuses a program, the error has the end of its log.
//!
//! # The files
//!
//! From the top down; imports run downwards and never back. `unsafe` is in those marked `!`.
//!
//! - `calls` `!`: [`Map`], [`Program`], what a program is attached to, and test runs (`BPF_MAP_CREATE`,
//!   `BPF_PROG_LOAD`, `BPF_LINK_CREATE`, `BPF_PROG_TEST_RUN`, ...)
//! - `assembler`: [`Assembler`], instructions and labels, pure
//! - `mapped` `!`: [`MappedArray`], an array map as memory of this process (`BPF_F_MMAPABLE`)
//! - `btf`: [`Types`], where the kernel keeps what (`/sys/kernel/btf/vmlinux`), pure
//! - `fault_gate`: what a system call passes first, and how tests make one fail

#[cfg(not(target_os = "linux"))]
compile_error!("udpd-bpf is written against the system calls of Linux and builds for no other system");

mod assembler;
mod btf;
mod calls;
mod fault_gate;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
mod mapped;

pub use assembler::{Assembler, Instruction, Label, Operation, Register, When, Width, helper};
pub use btf::Types;
pub use calls::{
    CORES_MAX, Map, Program, ProgramKind, Ran, TestRun, XDP_GENERIC, XDP_NATIVE, attach_to_interface,
    attach_to_tracepoint, replace_program, run,
};
#[cfg(mmsg_faults)]
pub use fault_gate::fault;
pub use fault_gate::{Call, gate};
pub use mapped::MappedArray;
