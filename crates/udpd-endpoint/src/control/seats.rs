//! Where the lanes of a running daemon sit, as it tells others: `udpd steer` compares the host with these seats and
//! puts interrupts to suit them, and a second daemon takes other cores.
//!
//! Scripts and other versions of udpd read it, so keys are only ever added; what an older daemon does not tell is read
//! as nothing.

use serde::{Deserialize, Serialize};

/// What a daemon answers to `seats`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seats {
    pub version: String,
    pub pid: u32,
    /// The network namespace in which the names and numbers of its interfaces mean something: the inode of its file
    /// below /proc.
    pub network_namespace: Option<u64>,
    /// Every interface that it steers or that a listener is bound to.
    pub interfaces: Vec<SteeredInterface>,
    /// The lanes of listeners that are bound to none.
    pub lanes: Vec<LaneSeat>,
}

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SteeredInterface {
    pub name: String,
    /// The number that it had when the daemon planned; null when that could not be read.
    pub index: Option<u32>,
    /// True when it is one of `[steer] interfaces` and has a plan; otherwise its queues have no seats.
    pub is_steered: bool,
    /// How many receive queues the plan has; 0 without one.
    pub queues: usize,
    /// The seat of each queue, and behind them those of receivers beyond the queues.
    pub seats: Vec<QueueCores>,
    pub lanes: Vec<LaneSeat>,
}

/// The cores of one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueCores {
    pub queue: usize,
    /// Which of the receivers takes it; a lane of that number where the listener has so many.
    pub receiver: usize,
    pub interrupt_cpu: Option<usize>,
    pub receiver_cpu: usize,
    /// The cores that the receiver may run on.
    pub receiver_cpus: Vec<usize>,
    /// The cores that RPS hands its datagrams on to; empty without RPS.
    pub rps_cpus: Vec<usize>,
    pub node: Option<usize>,
}

/// One lane as it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneSeat {
    pub listener: String,
    pub lane: usize,
    /// The receive queues that feed it by the plan.
    pub queues: Vec<usize>,
    /// The core that its receiver runs on; null when it is pinned to none.
    pub cpu: Option<usize>,
    pub node: Option<usize>,
    /// Where its datagrams should arrive; empty when no plan says.
    pub arrival_cpus: Vec<usize>,
}

impl Seats {
    /// Every lane, wherever its datagrams come from.
    pub fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneSeat> {
        self.interfaces.iter_mut().flat_map(|interface| &mut interface.lanes).chain(&mut self.lanes)
    }

    /// Every core that one of its receivers or of the interrupts that feed them has for itself.
    pub fn cores(&self) -> Vec<usize> {
        let seats = self.interfaces.iter().flat_map(|interface| &interface.seats);
        let lanes = self.interfaces.iter().flat_map(|interface| &interface.lanes).chain(&self.lanes);
        let of_seats = seats.flat_map(|seat| seat.interrupt_cpu.into_iter().chain([seat.receiver_cpu]));
        let mut cores: Vec<usize> = of_seats.chain(lanes.filter_map(|lane| lane.cpu)).collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn example() -> Seats {
        let seat = QueueCores {
            queue: 0,
            receiver: 0,
            interrupt_cpu: Some(2),
            receiver_cpu: 3,
            receiver_cpus: vec![3],
            rps_cpus: Vec::new(),
            node: Some(0),
        };
        let lane = |listener: &str, queues: &[usize], cpu| LaneSeat {
            listener: listener.to_owned(),
            lane: 0,
            queues: queues.to_vec(),
            cpu: Some(cpu),
            node: Some(0),
            arrival_cpus: queues.iter().map(|_| 2).collect(),
        };
        let interface = SteeredInterface {
            name: "eth0".to_owned(),
            index: Some(7),
            is_steered: true,
            queues: 1,
            seats: vec![seat],
            lanes: vec![lane("bound", &[0], 3)],
        };
        Seats {
            version: "0.1.0".to_owned(),
            pid: 42,
            network_namespace: Some(4_026_531_840),
            interfaces: vec![interface],
            lanes: vec![lane("free", &[], 5)],
        }
    }

    /// What scripts rely on. A key may be added here and none may be changed.
    const GOLDEN: &str = concat!(
        r#"{"version":"0.1.0","pid":42,"network_namespace":4026531840,"#,
        r#""interfaces":[{"name":"eth0","index":7,"is_steered":true,"queues":1,"#,
        r#""seats":[{"queue":0,"receiver":0,"interrupt_cpu":2,"receiver_cpu":3,"receiver_cpus":[3],"rps_cpus":[],"#,
        r#""node":0}],"#,
        r#""lanes":[{"listener":"bound","lane":0,"queues":[0],"cpu":3,"node":0,"arrival_cpus":[2]}]}],"#,
        r#""lanes":[{"listener":"free","lane":0,"queues":[],"cpu":5,"node":0,"arrival_cpus":[]}]}"#,
    );

    #[test]
    fn the_keys_of_the_answer_stay_as_they_are() {
        assert_eq!(serde_json::to_string(&example()).unwrap(), GOLDEN);
        assert_eq!(serde_json::from_str::<Seats>(GOLDEN).unwrap(), example());
    }

    #[test]
    fn another_version_may_tell_less_and_more() {
        let told = r#"{"pid": 7, "interfaces": [{"name": "eth0", "colour": "red"}], "mood": null}"#;
        let seats: Seats = serde_json::from_str(told).unwrap();
        assert_eq!((seats.pid, seats.interfaces[0].name.as_str(), seats.cores()), (7, "eth0", Vec::new()));
    }

    #[test]
    fn the_cores_of_receivers_and_of_interrupts_are_taken() {
        assert_eq!(example().cores(), [2, 3, 5]);
    }
}
