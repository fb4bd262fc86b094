//! Quotas by namespace and vendor: limits, and what live bookings use.

use std::sync::Arc;

use crate::names::{PlaceByKey, Slots};

/// Limits and use of one namespace and vendor. Memory in MiB, cores in percent of one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quota {
    namespace: String,
    vendor: Option<Arc<str>>,
    /// None: no limit. 0 blocks.
    pub(crate) memory_limit: Option<i64>,
    pub(crate) cores_limit: Option<i64>,
    pub(crate) used_memory_mib: i64,
    pub(crate) used_cores_percent: i64,
    /// How many bookings refer to this entry.
    bookings: u32,
}

impl Quota {
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.namespace, self.vendor.as_deref().unwrap_or(""))
    }
}

/// What one booking takes of one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) quota: u32,
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
}

/// All quotas. An entry exists while it has a limit or a booking.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    slots: Slots<Quota>,
    places: PlaceByKey,
}

impl Quotas {
    pub(crate) fn find(&self, namespace: &str, vendor: &str) -> Option<u32> {
        self.places.find((namespace, vendor), |place| self.slots[place].key())
    }

    pub(crate) fn get(&self, place: u32) -> &Quota {
        &self.slots[place]
    }

    fn find_or_add(&mut self, namespace: &str, vendor: &str) -> u32 {
        self.find(namespace, vendor).unwrap_or_else(|| {
            let place = self.slots.take();
            self.slots[place] =
                Quota { namespace: namespace.into(), vendor: Some(vendor.into()), ..Quota::default() };
            self.places.insert(place, |place| self.slots[place].key());
            place
        })
    }

    fn drop_if_unused(&mut self, place: u32) {
        let quota = &self.slots[place];
        if quota.bookings == 0 && quota.memory_limit.is_none() && quota.cores_limit.is_none() {
            self.places.remove(place, |place| self.slots[place].key());
            self.slots.give_back(place);
        }
    }

    pub(crate) fn set_limits(
        &mut self,
        namespace: &str,
        vendor: &str,
        memory: Option<i64>,
        cores: Option<i64>,
    ) {
        let place = self.find_or_add(namespace, vendor);
        self.slots[place].memory_limit = memory;
        self.slots[place].cores_limit = cores;
        self.drop_if_unused(place);
    }

    /// Charges a booking and returns the entry it now refers to.
    pub(crate) fn charge(
        &mut self,
        namespace: &str,
        vendor: &str,
        memory_mib: i64,
        cores_percent: i64,
    ) -> Charge {
        let place = self.find_or_add(namespace, vendor);
        let quota = &mut self.slots[place];
        quota.bookings += 1;
        quota.used_memory_mib += memory_mib;
        quota.used_cores_percent += cores_percent;
        Charge { quota: place, memory_mib, cores_percent }
    }

    pub(crate) fn give_back(&mut self, charge: Charge) {
        let quota = &mut self.slots[charge.quota];
        quota.bookings -= 1;
        quota.used_memory_mib -= charge.memory_mib;
        quota.used_cores_percent -= charge.cores_percent;
        self.drop_if_unused(charge.quota);
    }

    /// Every entry in use, with its place, namespace and vendor.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, &Quota)> {
        let live = |place: &u32| {
            let (namespace, vendor) = self.slots[*place].key();
            self.find(namespace, vendor) == Some(*place)
        };
        (0..self.slots.len() as u32).filter(live).map(|place| (place, &self.slots[place]))
    }

    pub(crate) fn describe(&self, place: u32) -> String {
        let (namespace, vendor) = self.slots[place].key();
        format!("quota of {vendor} in {namespace}")
    }
}
