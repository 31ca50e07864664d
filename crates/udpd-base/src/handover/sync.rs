//! What the threads of the hand-over share and sleep by. The crate `interleavings` compiles the files beside this one
//! a second time with a model in the place of this one, and runs their threads in every order.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
pub(super) use std::sync::{Arc, OnceLock};
pub(super) use std::thread::{self, Thread};

pub(super) use crossbeam_channel::{Receiver, Sender, bounded, select};
pub(super) use crossbeam_queue::ArrayQueue;
