//! Taking over: a process that starts asks the one that runs for its sockets, over the control socket, and then takes
//! its place.
//!
//! ```text
//! new                                               old
//! take-over                                   -->             same user? then it tells of itself
//!                                             <--   offer
//! send_all                                    -->
//!                                             <--   sockets   descriptors and their names, the record among them
//!   makes and checks all it can                       receives on
//! ready, with the names it goes on with       -->   ends receivers, drains, closes files
//!                                             <--   stopped
//!   opens files, binds
//! open                                        -->
//!                                             <--   gone      it goes back only if the other one is dead
//!   receives
//! bye                                         -->   closes its windows, writes its ledger, ends
//! ```
//!
//! The sockets come before anything else is made, so that the new process has them should the old one die. In the
//! record the old one writes down until its end how far it has counted.
//!
//! Up to `ready` the old process does nothing but answer. Up to `gone` it goes back to work when the new one fails, is
//! killed or takes too long, because its sockets are still open here. One process says `gone` and the other hears it,
//! so never do both receive. What arrives in between waits in the sockets.
//!
//! Some changes need an address that the old process must close first. Then it ends with `stopped`, and there is no way
//! back.

mod newcomer;
mod predecessor;
mod wire;
mod words;

pub(super) use newcomer::TakeOvers;
pub use newcomer::{Asked, Heard, Newcomer, Offered};
pub use predecessor::{Left, Predecessor, Reached};
pub use words::Offer;
