//! The tests of the program as its users see it, in one binary.
//!
//! A test belongs beside the code when it can be written there; here is what needs the built program or the whole tree.

// What they share: load, daemon, ledger.
mod util;

// How the tree must look: size, imports, unsafe code, dependencies, promises.
mod public_api;
mod tidy;
mod tidy_docs;
mod tidy_words;
// And what it may depend on.
mod tidy_dependencies;
// That the load generator itself can be believed.
mod load;
// Bad configurations never start.
mod config;
// And neither do those for which rights are missing, where that is asked for.
mod check_as;
// What was sent arrives.
mod command_line;
mod compression;
mod delivery;
mod examples;
mod files;
mod files_by_source;
mod files_of_others;
mod gro_auto;
mod inline;
mod jsonl_page;
mod relay;
mod replay;
mod spill;
// One configuration takes the place of another while datagrams come.
mod reload;
mod reload_pipeline;
// What cannot be taken is accounted for.
mod overload;
// And how much can wait.
mod stalls;
// What is refused, limited or joined as told.
mod kernel_filter;
mod lists;
mod policies;
// Both sides of a redundant pair, and each datagram once.
mod deduplicate;
// Who sent it, behind a relay.
mod proxied;
// What never reached any member of a fleet.
mod fleet_ledger;
// What never reached this host.
mod upstream;
mod user;
// Who else is on a port.
mod sandbox;
mod seats;
mod sharing;
// Who leaves a fleet, and how.
mod member;
// What the bench says of the traffic is what was done to it.
mod bench;
mod bench_ladder;
mod bench_max;
// And that it is done to nothing else.
mod bench_private;
// What it costs the host, also with a port for each customer.
mod many_listeners;
mod memory;
// Which lane a datagram goes to, and on which core it came.
mod steering;
mod steering_lasts;
// What it says of losses, its own and those of others.
mod explain;
// Who asks it, and who only sits there.
mod clients;
// And where it is found.
mod of_a_user;
// The first and the last moments.
mod shutdown;
mod signals;
mod start;
mod threads;
// And that none of them is a moment in which something is lost.
mod kept_sockets;
mod killed;
mod restarts;
// Without a service manager, too.
mod take_over;
mod take_over_fails;
// What a service manager hears of the time between them.
mod watchdog;
mod watching;
// What a package installs beside it.
mod packages;
