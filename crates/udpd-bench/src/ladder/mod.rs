//! `udpd bench ladder`: receiving a million datagrams a second as measured steps, on the machine of whoever asks.

mod advice;
mod command;
mod ground;
mod measure;
mod placements;
mod row;
mod show;
mod sizes;
mod step;
mod trial;

pub use command::{Arguments, execute};
pub use measure::{Report, Task, run};
pub use step::Step;
