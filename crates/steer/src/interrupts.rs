//! From a receive queue to its interrupt, by the best source that answers, or to the reason why it is unknown.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::device::Device;
use crate::model::{Interrupt, Known, Source};
use crate::names::{Named, is_known_driver, read_names};
use crate::netdev::NetdevQueue;
use crate::topology::{read_if_any, read_list, read_list_if_any, try_numbered};

/// One interrupt of a device and what its drivers call it.
struct Vector {
    number: u32,
    name: String,
}

/// Where interrupts describe themselves.
pub(crate) struct Roots<'a> {
    pub(crate) sys: &'a Path,
    pub(crate) proc: &'a Path,
}

impl Roots<'_> {
    /// The interrupt of each of `queues`, in their order.
    pub(crate) fn interrupts(
        &self,
        device: &Device,
        driver: Option<&str>,
        queues: &[usize],
        kernel: &io::Result<Vec<NetdevQueue>>,
    ) -> io::Result<Vec<Known<Interrupt>>> {
        let vectors = self.vectors(device)?;
        let names: Vec<&str> = vectors.iter().map(|vector| vector.name.as_str()).collect();
        let named = driver.map(|driver| read_names(driver, &names)).unwrap_or_default();
        let by_name =
            |wanted: Named| named.iter().position(|named| *named == Some(wanted)).map(|place| &vectors[place]);
        queues
            .iter()
            .map(|&queue| {
                let told = kernel.iter().flatten().find(|told| told.queue as usize == queue);
                let told = told.and_then(|told| told.interrupt);
                if let Some(number) = told {
                    return self.describe(number, Source::Netlink).map(Known::Is);
                }
                if let Some(vector) = by_name(Named::Queue(queue)).or_else(|| by_name(Named::AllQueues)) {
                    return self.describe(vector.number, Source::DriverName).map(Known::Is);
                }
                if let ([_], [vector]) = (queues, vectors.as_slice()) {
                    return self.describe(vector.number, Source::OnlyOne).map(Known::Is);
                }
                let silent = kernel.as_ref().err().map_or(String::new(), |error| format!(" ({error})"));
                Ok(Known::Unknown(why_unknown(driver, queue, vectors.len()) + &silent))
            })
            .collect()
    }

    /// The numbers and names of all the device's interrupts.
    pub(crate) fn names(&self, device: &Device) -> io::Result<Vec<(u32, String)>> {
        Ok(self.vectors(device)?.into_iter().map(|vector| (vector.number, vector.name)).collect())
    }

    /// The device's own vectors. A device that is not on PCI has no list of them; a virtio device is then found by its
    /// own name, which its interrupts carry and which no other device has.
    fn vectors(&self, device: &Device) -> io::Result<Vec<Vector>> {
        let own = device.vectors()?;
        let all = if own.is_empty() {
            try_numbered(&self.sys.join("kernel/irq"), "")?
                .into_iter()
                .filter_map(|number| u32::try_from(number).ok())
                .collect()
        } else {
            own.clone()
        };
        let mut vectors = Vec::new();
        for number in all {
            // A line that several devices share has several names.
            let names = read_if_any(&self.sys.join(format!("kernel/irq/{number}/actions")))?.unwrap_or_default();
            for name in names.trim().split(',').filter(|name| !name.is_empty()) {
                let is_ours = device.name().filter(|device| device.starts_with("virtio")).is_some_and(|device| {
                    name.strip_prefix(device).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
                });
                if is_ours || !own.is_empty() {
                    vectors.push(Vector { number, name: name.to_owned() });
                }
            }
        }
        Ok(vectors)
    }

    fn describe(&self, number: u32, source: Source) -> io::Result<Interrupt> {
        let affinity = self.proc.join(format!("irq/{number}/smp_affinity_list"));
        let requested = read_list(&affinity)?;
        let effective = self.effective(number)?;
        // The kernel takes the right to write away from what it manages itself.
        let is_settable = fs::metadata(&affinity)?.permissions().mode() & 0o200 != 0;
        let name = read_if_any(&self.sys.join(format!("kernel/irq/{number}/actions")))?.unwrap_or_default();
        let effective = if effective.is_empty() { requested.clone() } else { effective };
        Ok(Interrupt { number, name: name.trim().to_owned(), requested, effective, is_settable, source })
    }
}

impl Roots<'_> {
    /// The cores where an interrupt fires; none where the kernel does not tell.
    pub(crate) fn effective(&self, number: u32) -> io::Result<Vec<usize>> {
        read_list_if_any(&self.proc.join(format!("irq/{number}/effective_affinity_list")))
    }

    /// How often an interrupt has fired since the machine was started.
    pub(crate) fn fired(&self, number: u32) -> io::Result<u64> {
        let path = self.sys.join(format!("kernel/irq/{number}/per_cpu_count"));
        let unread = |why: String| io::Error::other(format!("cannot read {}: {why}", path.display()));
        let text = fs::read_to_string(&path).map_err(|error| unread(error.to_string()))?;
        let counts = text.trim().split(',').map(str::parse::<u64>);
        counts.sum::<Result<u64, _>>().map_err(|_| unread(format!("{text:?} is no list of numbers")))
    }
}

fn why_unknown(driver: Option<&str>, queue: usize, vectors: usize) -> String {
    match driver {
        None => "neither ethtool nor sysfs names the driver".to_owned(),
        Some(driver) if !is_known_driver(driver) => {
            format!("the kernel does not say which it is, and how the driver {driver} names its interrupts is unknown")
        }
        Some(_) if vectors == 0 => "the device shows no interrupts; an interface that is down has none".to_owned(),
        Some(driver) => {
            format!("none of the device's {vectors} interrupts has a name that {driver} would give to queue {queue}")
        }
    }
}
