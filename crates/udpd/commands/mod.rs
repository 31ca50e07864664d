//! What a person can ask of the program: a room for each command. They end with an answer or an exit code.

pub mod bench;
pub mod check;
pub mod explain;
pub mod man;
pub mod replay;
pub mod run;
pub mod stats;
pub mod steer;
pub mod top;
pub mod warden;
