//! A second, slow computation of every kept sum, to compare with the kept one.

use crate::card::{Amount, Card, ScannedCard};
use crate::cluster::Cluster;
use crate::mig::MIG_SLICES;
use crate::node::{Node, UNREGISTERED};
use crate::score::node_score;
use crate::workload::BookedShapes;

impl Cluster {
    /// Every difference between a kept value and its recomputation from the bookings; empty when all is well.
    pub fn check_invariants(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (place, node) in self.nodes.all() {
            self.check_node(place, node, &mut faults);
        }
        self.check_bookings(&mut faults);
        self.check_quotas(&mut faults);
        self.check_workload(&mut faults);
        faults
    }

    fn check_node(&self, place: u32, node: &Node, faults: &mut Vec<String>) {
        let name = self.nodes.name(place);
        let exists = node.registered || !node.bookings.is_empty();
        if exists != (self.nodes.find(name) == Some(place)) {
            faults.push(format!("node {name}: its name does not lead to it"));
        }
        let mut used = vec![Amount::default(); node.cards.len()];
        let mut blocks = vec![0; node.known.len()];
        self.check_slices(node, name, faults);
        for number in &node.bookings {
            let booking = &self.bookings.slots[*number];
            if booking.node != place {
                faults.push(format!("pod {}: booked on another node than {name}", booking.uid));
            }
            for held in &booking.held {
                let position = node.known[held.card as usize].position;
                if position != UNREGISTERED {
                    let sum = &mut used[usize::from(position)];
                    *sum = sum.plus(held.amount);
                }
            }
            for card in &booking.blocked {
                blocks[*card as usize] += 1;
            }
        }
        for (position, card) in node.cards.iter().enumerate() {
            let id = node.id_at(position);
            if card.used != used[position] {
                faults.push(format!(
                    "card {id} of {name}: keeps {:?}, bookings give {:?}",
                    card.used, used[position]
                ));
            }
            let known = &node.known[card.known as usize];
            if usize::from(known.position) != position {
                faults.push(format!("card {id} of {name}: its id does not lead to it"));
            }
            if card.faults.blocked != (known.blocks > 0) {
                faults.push(format!("card {id} of {name}: blocked by {} bookings", known.blocks));
            }
        }
        for (known, count) in node.known.iter().zip(blocks) {
            if known.blocks != count {
                faults.push(format!(
                    "card {} of {name}: keeps {} blocks, bookings give {count}",
                    known.id, known.blocks
                ));
            }
        }
        let used_sum = used.iter().fold(Amount::default(), |sum, amount| sum.plus(*amount));
        let total_sum = node.cards.iter().fold(Amount::default(), |sum, card| sum.plus(card.total));
        if (node.used, node.total) != (used_sum, total_sum) {
            faults.push(format!("node {name}: its sums are not those of its cards"));
        }
        let scanned = self.nodes.scanned()[place as usize];
        if scanned.score.to_bits() != node_score(used_sum, total_sum).to_bits() {
            faults.push(format!("node {name}: its score is not that of its sums"));
        }
        let rows = self.nodes.scanned_cards(scanned);
        let same = |(row, card): (&ScannedCard, &Card)| {
            *row == ScannedCard::new(card.kind, card.total, card.used, card.faults)
        };
        if scanned.registered != node.registered
            || rows.len() != node.cards.len()
            || !rows.iter().zip(&node.cards).all(same)
        {
            faults.push(format!("node {name}: scans read other than what is kept"));
        }
    }

    /// Which memory slices are taken and by how many pods, and which cards are held as their mode does not allow.
    fn check_slices(&self, node: &Node, name: &str, faults: &mut Vec<String>) {
        let mut pods = vec![[0; MIG_SLICES as usize]; node.cards.len()];
        let mut unclear = vec![0; node.known.len()];
        for number in &node.bookings {
            let booking = &self.bookings.slots[*number];
            let held = booking.held.iter().map(|held| (held.card, held.slices));
            for (card, slices) in held.chain(booking.claims.iter().map(|claim| (claim.card, claim.slices())))
            {
                let position = node.known[card as usize].position;
                if position == UNREGISTERED {
                    continue;
                }
                let is_cut = node.slices_of(usize::from(position)).is_some();
                unclear[card as usize] += u32::from(if is_cut { slices.unplaced } else { slices.placed });
                let counts = pods[usize::from(position)].iter_mut().enumerate();
                counts.for_each(|(slice, count)| *count += u32::from(slices.mask >> slice & 1 != 0));
            }
        }
        for (position, card) in node.cards.iter().enumerate() {
            let id = node.id_at(position);
            if let Some(slices) = node.slices_of(position) {
                let mask = (0..)
                    .zip(&pods[position])
                    .fold(0, |mask, (slice, count)| mask | u64::from(*count > 0) << slice);
                if (slices.pods(), slices.mask()) != (&pods[position], mask) {
                    faults.push(format!("card {id} of {name}: keeps other memory slices than bookings give"));
                }
            }
            let known = &node.known[card.known as usize];
            let counted = unclear[card.known as usize];
            if known.unclear != counted || card.faults.unclear_instances != (counted > 0) {
                faults.push(format!(
                    "card {id} of {name}: {counted} bookings are unclear about their instances"
                ));
            }
        }
    }

    fn check_bookings(&self, faults: &mut Vec<String>) {
        let mut listed = 0;
        for (_, node) in self.nodes.all() {
            for number in &node.bookings {
                let booking = &self.bookings.slots[*number];
                listed += 1;
                if self.bookings.find(&booking.uid) != Some(*number) {
                    faults.push(format!("pod {}: its UID does not lead to it", booking.uid));
                }
                let mut again = booking.clone();
                again.sum_up();
                if again.held != booking.held {
                    faults.push(format!("pod {}: holds other than its shares give", booking.uid));
                }
            }
        }
        if listed != self.bookings.count() {
            faults.push(format!("{} bookings, but nodes list {listed}", self.bookings.count()));
        }
    }

    fn check_workload(&self, faults: &mut Vec<String>) {
        let mut booked = BookedShapes::default();
        for (_, node) in self.nodes.all() {
            for number in &node.bookings {
                booked.count(&self.bookings.slots[*number].held, node, &self.families, true);
            }
        }
        if !booked.counts_as(&self.workload.booked) {
            faults.push("the shapes of booked pods are not those of the bookings".into());
        }
    }

    fn check_quotas(&self, faults: &mut Vec<String>) {
        for (place, quota) in self.quotas.entries() {
            let charges = self
                .nodes
                .all()
                .flat_map(|(_, node)| &node.bookings)
                .flat_map(|number| &self.bookings.slots[*number].charges)
                .filter(|charge| charge.quota == place);
            let (memory, cores) = charges.fold((0, 0), |(memory, cores), charge| {
                (memory + charge.memory_mib, cores + charge.cores_percent)
            });
            if (quota.used_memory_mib, quota.used_cores_percent) != (memory, cores) {
                faults.push(format!(
                    "{}: keeps {} MiB and {} %, bookings give {memory} MiB and {cores} %",
                    self.quotas.describe(place),
                    quota.used_memory_mib,
                    quota.used_cores_percent
                ));
            }
        }
    }
}
