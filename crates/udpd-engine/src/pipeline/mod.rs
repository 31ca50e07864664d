//! The pipeline: wires lanes to consumers and takes them apart again.
//!
//! Starting goes from the outside in: lanes are made on their cores, sinks are opened, sockets are bound in order, and
//! only then does anything run; whatever fails leaves nothing behind. Stopping goes the way of a datagram: arrivals are
//! refused, receivers drain their sockets and end, channels run empty, consumers flush and end, the books are closed.

mod beside;
mod bind;
mod books;
mod bypass;
mod chronicle;
mod closing;
pub mod consumer;
mod end;
mod ending;
mod entry;
mod files;
mod filters;
mod follower;
mod following;
mod going_on;
mod handing_over;
mod heir;
pub mod kept;
mod lane;
mod left;
mod multicast;
pub mod outlet;
mod queues;
pub mod receiver;
mod refusals;
mod relief;
mod replace;
mod running;
mod sampling;
mod setup;
mod socket;
mod start;
pub mod stay;
mod stocks;
pub mod successor;
mod sweep;
mod wiring;
mod writes;

pub use books::{Drops, Look, Progress};
pub use chronicle::Chronicle;
pub use files::Files;
pub use heir::{Forerunner, Heir, Turn};
pub use kept::{Claims, FromRunning, Kept, KeptSocket};
pub use left::{Known, Left};
pub use queues::Queues;
pub use running::{Lane, Pinned, Pipeline};
pub use setup::LaneSetup;
pub use start::Prepared;
