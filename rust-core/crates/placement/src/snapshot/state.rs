//! From the kept state to its snapshot and back.

use std::collections::BTreeMap;

use super::{
    invalid, BookingRecord, NodeRecord, QuotaRecord, ShareRecord, Snapshot, SnapshotError, FORMAT, VERSION,
};
use crate::ask::{ContainerKind, InvalidInput};
use crate::booking::{Booking, BookingState, Claim, Share};
use crate::card::CardSpec;
use crate::cluster::Cluster;
use crate::family::Families;
use crate::host::HostAmount;
use crate::pair_scores::CardScores;
use crate::views::{BoundClaim, BoundPod, BoundShare};

impl Cluster {
    /// What went into this state, sorted: equal states give equal snapshots.
    pub fn snapshot(&self) -> Snapshot {
        // A new part of the state must be named here: it is an input that the snapshot holds, or it follows from them.
        let Self { families, nodes: _, kinds: _, bookings: _, quotas: _, search: _, workload } = self;
        Snapshot {
            format: FORMAT.into(),
            version: VERSION,
            families: families.all().to_vec(),
            nodes: self.nodes().into_iter().map(|name| self.node_record(name)).collect(),
            quotas: self.quota_records(),
            bookings: self.booking_records(),
            workload: workload.given.clone(),
            operations: Vec::new(),
        }
    }

    /// The state of a snapshot, before its operations.
    ///
    /// # Errors
    /// When a value cannot enter the engine, or something comes twice; the error names the place.
    pub fn from_snapshot(snapshot: &Snapshot) -> Result<Self, SnapshotError> {
        let families = Families::new(snapshot.families.clone()).map_err(invalid(|| "families".into()))?;
        let mut cluster = Self::new(families);
        for (number, node) in snapshot.nodes.iter().enumerate() {
            let path = || format!("nodes[{number}]");
            if cluster.nodes.find(&node.name).is_some() {
                return Err(SnapshotError::Twice { path: path(), name: node.name.clone() });
            }
            cluster.register(node).map_err(invalid(path))?;
        }
        for (number, quota) in snapshot.quotas.iter().enumerate() {
            if cluster.quotas.find(&quota.namespace, &quota.vendor).is_some() {
                let name = format!("{} in {}", quota.vendor, quota.namespace);
                return Err(SnapshotError::Twice { path: format!("quotas[{number}]"), name });
            }
            cluster.limit(quota);
        }
        for (number, booking) in snapshot.bookings.iter().enumerate() {
            let path = || format!("bookings[{number}]");
            if cluster.bookings.find(&booking.uid).is_some() {
                return Err(SnapshotError::Twice { path: path(), name: booking.uid.clone() });
            }
            cluster.restore(booking).map_err(invalid(path))?;
        }
        cluster.set_workload(snapshot.workload.clone());
        Ok(cluster)
    }

    fn node_record(&self, name: &str) -> NodeRecord {
        let cards = self.node_cards(name).into_iter().map(|card| card.spec).collect();
        let scores = self.node_pair_scores(name).into_iter();
        let pair_scores = scores.map(|(card_id, peers)| (card_id, peers.into_iter().collect())).collect();
        let host = self.nodes.find(name).and_then(|place| self.nodes[place].host);
        NodeRecord { name: name.into(), cards, pair_scores, host }
    }

    pub(super) fn register(&mut self, node: &NodeRecord) -> Result<(), InvalidInput> {
        let NodeRecord { name, cards, pair_scores, host } = node;
        let scores: Vec<CardScores> = pair_scores
            .iter()
            .map(|(card_id, peers)| {
                (card_id.clone(), peers.iter().map(|(id, score)| (id.clone(), *score)).collect())
            })
            .collect();
        self.set_node_with_pair_scores(name, cards, &scores)?;
        if let Some(free) = host {
            self.set_node_host(name, Some(HostAmount::new(free.cpu_milli, free.memory_mib)?));
        }
        Ok(())
    }

    fn quota_records(&self) -> Vec<QuotaRecord> {
        let mut records: Vec<QuotaRecord> = self
            .quotas
            .entries()
            .filter(|(_, quota)| quota.memory_limit.is_some() || quota.cores_limit.is_some())
            .map(|(_, quota)| {
                let (namespace, vendor) = quota.key();
                QuotaRecord {
                    namespace: namespace.into(),
                    vendor: vendor.into(),
                    memory_mib: quota.memory_limit,
                    cores_percent: quota.cores_limit,
                }
            })
            .collect();
        records.sort_unstable_by(|left, right| {
            (&left.namespace, &left.vendor).cmp(&(&right.namespace, &right.vendor))
        });
        records
    }

    fn booking_records(&self) -> Vec<BookingRecord> {
        let mut records: Vec<BookingRecord> = self
            .nodes
            .all()
            .flat_map(|(_, node)| &node.bookings)
            .map(|number| self.booking_record(&self.bookings.slots[*number]))
            .collect();
        records.sort_unstable_by(|left, right| left.uid.cmp(&right.uid));
        records
    }

    fn booking_record(&self, booking: &Booking) -> BookingRecord {
        let Booking { uid, namespace, node, state, init_done, shares, claims, blocked, held: _, charges: _ } =
            booking;
        let card_id = |card: &u32| self.nodes[*node].known[*card as usize].id.to_string();
        let share = |share: &Share| {
            let Share { container, kind, card, vendor, memory_mib, cores_percent, instance } = share;
            ShareRecord {
                container: *container,
                kind: *kind,
                card_id: card_id(card),
                vendor: vendor.to_string(),
                memory_mib: *memory_mib,
                cores_percent: *cores_percent,
                instance: instance.clone(),
            }
        };
        let claim = |Claim { card, instance }: &Claim| BoundClaim {
            card_id: card_id(card),
            instance: instance.clone(),
        };
        let mut claims: Vec<BoundClaim> = claims.iter().map(claim).collect();
        claims.sort_unstable();
        let mut blocked_cards: Vec<String> = blocked.iter().map(card_id).collect();
        blocked_cards.sort_unstable();
        BookingRecord {
            uid: uid.clone(),
            namespace: namespace.clone(),
            node: self.nodes.name(*node).into(),
            state: *state,
            init_done: *init_done,
            shares: shares.iter().map(share).collect(),
            claims,
            blocked_cards,
        }
    }

    pub(super) fn limit(&mut self, quota: &QuotaRecord) {
        self.set_quota(&quota.namespace, &quota.vendor, quota.memory_mib, quota.cores_percent);
    }

    /// Books what a record says in place of whatever was booked for its UID.
    pub(super) fn restore(&mut self, record: &BookingRecord) -> Result<(), InvalidInput> {
        let count = record.shares.iter().map(|share| usize::from(share.container) + 1).max().unwrap_or(0);
        let mut containers = vec![(ContainerKind::App, Vec::new()); count];
        for share in &record.shares {
            let (kind, shares) = &mut containers[usize::from(share.container)];
            *kind = share.kind;
            let bound =
                BoundShare::new(&share.card_id, &share.vendor, share.memory_mib, share.cores_percent)?;
            shares.push(BoundShare { instance: share.instance.clone(), ..bound });
        }
        self.charge(&BoundPod {
            uid: &record.uid,
            namespace: &record.namespace,
            node: &record.node,
            containers: &containers,
            init_done: record.init_done,
            blocked_cards: &record.blocked_cards,
            claims: &record.claims,
        });
        if record.state == BookingState::Reserved {
            let number = self.bookings.find(&record.uid).expect("it was booked just now");
            self.bookings.slots[number].state = BookingState::Reserved;
        }
        Ok(())
    }
}

impl NodeRecord {
    /// A node as it is registered.
    pub fn of(name: &str, cards: &[CardSpec], scores: &[CardScores]) -> Self {
        let mut pair_scores = BTreeMap::new();
        for (card_id, peers) in scores {
            // Of several entries of a card the first counts.
            pair_scores.entry(card_id.clone()).or_insert_with(|| first_of_each(peers));
        }
        Self { name: name.into(), cards: cards.to_vec(), pair_scores, host: None }
    }
}

fn first_of_each(peers: &[(String, i64)]) -> BTreeMap<String, i64> {
    let mut first = BTreeMap::new();
    for (peer, score) in peers {
        first.entry(peer.clone()).or_insert(*score);
    }
    first
}

impl BookingRecord {
    /// What a bound pod holds, as it is charged.
    pub fn of(pod: &BoundPod<'_>) -> Self {
        let BoundPod { uid, namespace, node, containers, init_done, blocked_cards, claims } = *pod;
        let of_container = |(container, (kind, shares)): (u16, &(ContainerKind, Vec<BoundShare>))| {
            let kind = *kind;
            let record = move |share: &BoundShare| {
                let BoundShare { card_id, vendor, memory_mib, cores_percent, instance } = share;
                ShareRecord {
                    container,
                    kind,
                    card_id: card_id.clone(),
                    vendor: vendor.to_string(),
                    memory_mib: *memory_mib,
                    cores_percent: *cores_percent,
                    instance: instance.clone(),
                }
            };
            shares.iter().map(record).collect::<Vec<_>>()
        };
        Self {
            uid: uid.into(),
            namespace: namespace.into(),
            node: node.into(),
            state: BookingState::Bound,
            init_done,
            shares: (0..).zip(containers).flat_map(of_container).collect(),
            claims: claims.to_vec(),
            blocked_cards: blocked_cards.to_vec(),
        }
    }
}
