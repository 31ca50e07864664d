//! Decides what a host should look like, setting by setting, from what it looks like and what is asked.
//!
//! What the host or its driver does not let happen becomes a note where the rest still makes sense, and an error with
//! its cure where it does not.

use super::cores::Cores;
use super::flows::{busiest_share, thousandths};
use super::parts::{Amount, Request, why_not};
use super::parts::{BALANCE_FLOWS, InterfacePlan, Plan, Target, Wanted};
use super::parts::{Note, PlanError, RequestField, refuse};
use super::seats::assign;
use super::seats::{InterfaceSeats, SeatRequest};
use crate::corelist::format_core_list;
use crate::ethtool::{Channels, Coalescing, Family, FlowHash, Rings};
use crate::model::{Host, Interface, Kind};

impl Plan {
    /// Makes the plan. `allowed` are the cores that this process may use.
    pub fn new(host: &Host, allowed: &[usize], request: &Request) -> Result<Self, PlanError> {
        let mut cores = Cores::new(host, allowed, request)?;
        let (mut interfaces, mut requests) = (Vec::new(), Vec::new());
        for interface in &host.interfaces {
            let (part, queues) = plan(interface, &cores, request)?;
            interfaces.push(part);
            let receivers = request.receivers.get(&interface.name).copied().unwrap_or(queues).max(1);
            let seated = request.seated.get(&interface.name).map_or(&[][..], Vec::as_slice);
            requests.push(SeatRequest { interface, queues, receivers, seated });
        }
        let seats = assign(&mut cores, &requests, request.placement);
        for (part, seats) in interfaces.iter_mut().zip(&seats) {
            part.seat(seats, &cores);
        }
        Ok(Self { interfaces })
    }
}

/// All but the seats, and how many queues there will be.
fn plan(interface: &Interface, cores: &Cores<'_>, request: &Request) -> Result<(InterfacePlan, usize), PlanError> {
    check_kind(interface)?;
    let mut part = InterfacePlan {
        name: interface.name.clone(),
        driver: interface.driver.get().map_or("?", String::as_str).to_owned(),
        node: interface.node,
        seats: Vec::new(),
        spare_seats: Vec::new(),
        dedicated: Vec::new(),
        wanted: Vec::new(),
        notes: Vec::new(),
        busiest_share_thousandths: 0,
    };
    let queues = part.want_queues(interface, cores, request)?;
    part.want_ring(interface, request)?;
    part.want_coalescing(interface, queues, request);
    part.want_dedicated(interface, queues, request)?;
    part.want_table(interface, queues, request);
    part.want_flow_hash(interface, request);
    Ok((part, queues))
}

/// Whether there is anything to steer at all.
fn check_kind(interface: &Interface) -> Result<(), PlanError> {
    let Interface { name, kind, members, .. } = interface;
    let below = |what: &str| {
        let what = format!("{name} is {what}, which has no queues of its own");
        let cure = match members.as_slice() {
            [] => "nothing is below it yet: name the interfaces that it will have".to_owned(),
            members => format!("name what is below it instead: {}", members.join(", ")),
        };
        Err(refuse(&[RequestField::Interfaces], what, cure))
    };
    let nothing = |what: &str| {
        let what = format!("{name} is {what}: it has no interrupts, so there is nothing to steer");
        Err(refuse(&[RequestField::Interfaces], what, "name an interface with a device behind it"))
    };
    match kind {
        Kind::Physical => Ok(()),
        Kind::Bond => below("a bond"),
        Kind::Bridge => below("a bridge"),
        Kind::Vlan => below("a VLAN"),
        Kind::Loopback => nothing("loopback"),
        Kind::Veth => nothing("one end of a virtual cable"),
        Kind::Tun => nothing("a TUN device, whose datagrams come from a program"),
        Kind::Wireless => nothing("a wireless device with one queue for everything"),
        Kind::Virtual(what) => nothing(&format!("a virtual device ({what})")),
    }
}

impl InterfacePlan {
    /// The seats, and what is wanted so that datagrams arrive there.
    fn seat(&mut self, seats: &InterfaceSeats<'_>, cores: &Cores<'_>) {
        self.seats = seats.seats(cores);
        self.spare_seats = seats.spare_seats(cores);
        self.want_interrupts(seats.interface);
        self.want_rps(seats.receivers.len(), &seats.rps_cores(cores));
        self.want_xps(seats.interface);
        self.notes.extend(seats.remarks(cores));
        self.busiest_share_thousandths = thousandths(busiest_share(BALANCE_FLOWS, seats.receivers.len()));
        if !seats.interface.is_up {
            self.note(&[], "the interface is down: its interrupts appear when it comes up; apply the plan again then");
        }
    }

    pub(super) fn want(&mut self, target: Target, why: impl Into<String>) {
        let disruption = disruption(&self.driver, &target);
        self.wanted.push(Wanted { target, why: why.into(), disruption });
    }

    pub(super) fn note(&mut self, fields: &[RequestField], text: impl Into<String>) {
        self.notes.push(Note { text: text.into(), fields: fields.to_vec() });
    }

    /// Returns how many queues there will be.
    fn want_queues(&mut self, interface: &Interface, cores: &Cores<'_>, request: &Request) -> Result<usize, PlanError> {
        let now = interface.queues.len();
        let name = &interface.name;
        if now == 0 {
            let what = format!("{name} shows no receive queues");
            return Err(refuse(&[RequestField::Interfaces], what, "name another interface"));
        }
        let Some(channels) = interface.channels.get() else {
            if request.rx_queues != Amount::Keep {
                self.note(
                    &[],
                    format!("the number of queues stays {now}: {}", why_not(&interface.channels, "channels")),
                );
            }
            return Ok(now);
        };
        // A device has either combined queues or separate ones; where it has both, the combined ones are what it uses.
        let (most, is_combined) =
            if channels.combined_max > 0 { (channels.combined_max, true) } else { (channels.rx_max, false) };
        let count = match request.rx_queues {
            Amount::Keep => return Ok(now),
            Amount::Max => self.capped(most, cores),
            Amount::Number(number) if number <= most && number > 0 => number,
            Amount::Number(number) => {
                let what = format!("the request asks for {number} queues, and {name} can have 1 to {most}");
                return Err(refuse(
                    &[RequestField::RxQueues],
                    what,
                    format!("ask for at most {most}, or for the maximum"),
                ));
            }
        };
        let channels =
            if is_combined { Channels { combined: count, ..*channels } } else { Channels { rx: count, ..*channels } };
        self.want(
            Target::Channels(channels),
            format!("the request asks for {count} {}", if count == 1 { "queue" } else { "queues" }),
        );
        Ok(count as usize)
    }

    /// The most queues that can have a core each.
    fn capped(&mut self, most: u32, cores: &Cores<'_>) -> u32 {
        let usable = cores.usable();
        let count = u32::try_from(usable.len()).unwrap_or(u32::MAX);
        if count < most {
            let text = format!(
                "{} can have {most} queues and there are {count} core(s) for them ({}): the plan asks for {count}",
                self.name,
                format_core_list(usable)
            );
            self.note(&[RequestField::RxQueues, RequestField::Cores], text);
        }
        count.min(most)
    }

    fn want_ring(&mut self, interface: &Interface, request: &Request) -> Result<(), PlanError> {
        if request.ring == Amount::Keep {
            return Ok(());
        }
        let Some(rings) = interface.rings.get() else {
            self.note(&[], format!("the ring stays as it is: {}", why_not(&interface.rings, "ring lengths")));
            return Ok(());
        };
        let length = match request.ring {
            Amount::Number(number) if number == 0 || number > rings.rx_max => {
                let (name, most) = (&interface.name, rings.rx_max);
                let what = format!("the request asks for a ring of {number}, and {name} can have 1 to {most}");
                return Err(refuse(&[RequestField::Ring], what, format!("ask for at most {most}, or for the maximum")));
            }
            Amount::Number(number) => number,
            Amount::Max | Amount::Keep => rings.rx_max,
        };
        self.want(Target::Ring(Rings { rx: length, ..*rings }), format!("the request asks for {length} descriptors"));
        Ok(())
    }

    /// How long a device may wait before its interrupt: that delays datagrams, and bounds the interrupts a second.
    fn want_coalescing(&mut self, interface: &Interface, queues: usize, request: &Request) {
        let Some(rx_usecs) = request.coalesce_usecs() else { return };
        let Some(now) = interface.coalescing.get() else {
            let why_not = why_not(&interface.coalescing, "coalescing");
            self.note(&[], format!("how long the device waits before an interrupt stays as it is: {why_not}"));
            return;
        };
        if let Some(why_not) = interface.why_not_coalesced() {
            self.note(&[], format!("how long the device waits before an interrupt stays as it is: {why_not}"));
            return;
        }
        let frames = match now.rx_frames {
            0 | 1 => String::new(),
            frames => format!(", or until {frames} datagrams are there"),
        };
        let why = match 1_000_000_u32.checked_div(rx_usecs) {
            Some(most) => format!(
                "a datagram then waits {rx_usecs} us at most for its interrupt{frames}, and {queues} {} at most {most} \
                 interrupts a second{}",
                if queues == 1 { "queue makes" } else { "queues make" },
                if queues == 1 { "" } else { " each" }
            ),
            None => "no datagram then waits for its interrupt, and nothing bounds the interrupts a second".to_owned(),
        };
        self.want(Target::Coalescing(Coalescing { rx_usecs, adaptive_rx: false, ..*now }), why);
    }

    fn want_flow_hash(&mut self, interface: &Interface, request: &Request) {
        let families = [(Family::V4, &interface.flow_hash_v4), (Family::V6, &interface.flow_hash_v6)];
        for (family, now) in families {
            match (request.flow_hash_udp, now.get()) {
                // virtio_net without RSS answers the question like this, and refuses every setting.
                (Some(_), Some(FlowHash(0))) if interface.rss.get().is_none_or(|rss| rss.indirection.is_empty()) => {
                    let text = format!(
                        "the hash of UDP over {family} stays as it is: the device hashes nothing, because its host \
                         gave it no RSS"
                    );
                    self.note(&[], text);
                }
                (Some(hash), Some(_)) => {
                    let why = format!("the request asks for \"{}\"", hash.letters());
                    self.want(Target::FlowHash(family, hash), why);
                }
                (Some(_), None) => {
                    let why_not = why_not(now, "a choice of what it hashes");
                    self.note(&[], format!("the hash of UDP over {family} stays as it is: {why_not}"));
                }
                (None, Some(now)) if *now == FlowHash::ADDRESSES => {
                    let text = format!(
                        "the device hashes only the addresses of UDP over {family}: all datagrams between two hosts \
                         land in one queue; a hash of \"sdfn\" spreads them by port too"
                    );
                    self.note(&[RequestField::FlowHash], text);
                }
                (None, _) => {}
            }
        }
    }

    fn want_interrupts(&mut self, interface: &Interface) {
        for seat in self.seats.clone() {
            let Some(core) = seat.interrupt_core else { continue };
            let interrupt_of = |queue: usize| interface.queues.get(queue).and_then(|queue| queue.interrupt.get());
            let interrupt = interrupt_of(seat.queue);
            // One that the kernel manages stays; one that several queues share is set once.
            let is_shared =
                |earlier: usize| interrupt_of(earlier).map(|other| other.number) == interrupt.map(|own| own.number);
            if interrupt.is_some_and(|own| !own.is_settable || (0..seat.queue).any(is_shared)) {
                continue;
            }
            let why = format!("the receiver of queue {} runs on core {}", seat.queue, seat.receiver_core);
            self.want(Target::Interrupt { queue: seat.queue, cores: vec![core] }, why);
        }
    }

    /// RPS only where it is the only way: more receivers than the device has queues. Otherwise it has to be off,
    /// because it would take the datagrams away from the core that the interrupt brings them to.
    fn want_rps(&mut self, receivers: usize, cores: &[usize]) {
        let queues = self.seats.len();
        for queue in 0..queues {
            let why = match cores {
                [] => format!("the interrupt alone decides where the datagrams of queue {queue} are processed"),
                _ => format!("{queues} queue(s) feed {receivers} receivers, so RPS spreads the flows over all of them"),
            };
            self.want(Target::Rps { queue, cores: cores.to_vec() }, why);
        }
    }
}

/// What changing a setting costs on a driver, according to its source code.
fn disruption(driver: &str, target: &Target) -> Option<String> {
    let cost = match (target, driver) {
        (Target::Interrupt { .. } | Target::Rps { .. } | Target::Xps { .. } | Target::Indirection(_), _) => {
            return None;
        }
        (Target::Coalescing(_) | Target::Rule { .. }, _) => return None,
        (Target::Ntuple(_), "ixgbe" | "i40e" | "iavf") => {
            "where it was off the driver resets the device: it receives nothing for a moment"
        }
        (Target::Ntuple(_), _) => return None,
        (Target::Channels(_), "virtio_net") => return None,
        (Target::FlowHash(..), "ixgbe") => {
            "no gap, but the driver warns in the kernel log that fragments may arrive out of order"
        }
        (Target::FlowHash(..), "virtio_net") => "no gap; the device does the same with plain IP",
        (Target::FlowHash(..), _) => return None,
        (Target::Ring(_), "virtio_net") => "the driver resets each queue in turn: what is in its ring is lost",
        (Target::Ring(_), "vmxnet3") => "the driver stops and resets the device: it receives nothing for a moment",
        (Target::Channels(_), "mlx5_core") => "a new set of queues replaces the old one: a short gap",
        (Target::Channels(_) | Target::Ring(_), "ena" | "ixgbe" | "bnxt_en" | "i40e" | "ice" | "iavf" | "gve") => {
            "the driver closes and opens the interface: it receives nothing for a moment"
        }
        (Target::Channels(_) | Target::Ring(_), _) => "unknown for this driver: expect a gap",
    };
    Some(cost.to_owned())
}
