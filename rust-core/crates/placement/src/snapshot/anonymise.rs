//! Names that tell something are replaced, so that a user dares to hand a snapshot on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Answer, BookingRecord, NodeRecord, Operation, Question, QuotaRecord, ShareRecord, Snapshot};
use crate::ask::{ContainerAsk, PodAsk};
use crate::card::CardSpec;
use crate::decision::PlacedShare;
use crate::views::BoundClaim;

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Node,
    Card,
    Pod,
    Uid,
    Namespace,
    Container,
}

impl Named {
    fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Card => "card",
            Self::Pod => "pod",
            Self::Uid => "uid",
            Self::Namespace => "namespace",
            Self::Container => "container",
        }
    }
}

impl Snapshot {
    /// The same with names of nodes, cards, pods, namespaces and containers, and UIDs, replaced by numbers.
    ///
    /// Names keep their order, which breaks ties between nodes, so decisions stay what they were. Vendors, models,
    /// modes, sizes and policies stay as they are.
    #[must_use]
    pub fn anonymised(mut self) -> Self {
        let mut names: BTreeSet<(Named, String)> = BTreeSet::new();
        self.visit(&mut |named, name| {
            names.insert((named, name.clone()));
        });
        let mut counts: BTreeMap<Named, usize> = BTreeMap::new();
        for (named, _) in &names {
            *counts.entry(*named).or_default() += 1;
        }
        let mut numbers: BTreeMap<(Named, String), String> = BTreeMap::new();
        let mut next: BTreeMap<Named, usize> = BTreeMap::new();
        for key in names {
            let number = next.entry(key.0).or_default();
            // As many digits for each: numbers sort as the names did.
            let width = counts[&key.0].to_string().len();
            numbers.insert(key.clone(), format!("{}-{number:0width$}", key.0.word()));
            *number += 1;
        }
        self.visit(&mut |named, name| {
            let key = (named, std::mem::take(name));
            name.push_str(&numbers[&key]);
        });
        self
    }

    fn visit(&mut self, see: &mut impl FnMut(Named, &mut String)) {
        let Self { format: _, version: _, families: _, nodes, quotas, bookings, workload, operations } = self;
        for shape in workload.iter_mut().flatten() {
            visit_pod(&mut shape.pod, see);
        }
        for node in nodes {
            visit_node(node, see);
        }
        for quota in quotas {
            visit_quota(quota, see);
        }
        for booking in bookings {
            visit_booking(booking, see);
        }
        for operation in operations {
            match operation {
                Operation::SetNode(node) => visit_node(node, see),
                Operation::RemoveNode { name } => see(Named::Node, name),
                Operation::SetCardHealth { node, card_id, healthy: _ } => {
                    see(Named::Node, node);
                    see(Named::Card, card_id);
                }
                Operation::SetNodeHost { node, free: _ } => see(Named::Node, node),
                Operation::SetWorkload { shapes } => {
                    for shape in shapes.iter_mut().flatten() {
                        visit_pod(&mut shape.pod, see);
                    }
                }
                Operation::SetQuota(quota) => visit_quota(quota, see),
                Operation::Charge(booking) => visit_booking(booking, see),
                Operation::Confirm { uid } | Operation::Release { uid } => see(Named::Uid, uid),
                Operation::Reserve(question) | Operation::WhatIf(question) => visit_question(question, see),
            }
        }
    }
}

fn visit_node(node: &mut NodeRecord, see: &mut impl FnMut(Named, &mut String)) {
    let NodeRecord { name, cards, pair_scores, host: _ } = node;
    see(Named::Node, name);
    for (mut card_id, peers) in std::mem::take(pair_scores) {
        see(Named::Card, &mut card_id);
        let seen = |(mut peer, score)| {
            see(Named::Card, &mut peer);
            (peer, score)
        };
        pair_scores.insert(card_id, peers.into_iter().map(seen).collect());
    }
    for card in cards {
        let CardSpec {
            id,
            vendor: _,
            model: _,
            index: _,
            slots: _,
            memory_mib: _,
            cores_percent: _,
            numa: _,
            mode: _,
            healthy: _,
            cordoned: _,
            mig_profiles: _,
            group: _,
        } = card;
        see(Named::Card, id);
    }
}

fn visit_quota(quota: &mut QuotaRecord, see: &mut impl FnMut(Named, &mut String)) {
    see(Named::Namespace, &mut quota.namespace);
}

fn visit_booking(booking: &mut BookingRecord, see: &mut impl FnMut(Named, &mut String)) {
    let BookingRecord { uid, namespace, node, state: _, init_done: _, shares, claims, blocked_cards } =
        booking;
    see(Named::Uid, uid);
    see(Named::Namespace, namespace);
    see(Named::Node, node);
    for share in shares {
        let ShareRecord {
            container: _,
            kind: _,
            card_id,
            vendor: _,
            memory_mib: _,
            cores_percent: _,
            instance: _,
        } = share;
        see(Named::Card, card_id);
    }
    for BoundClaim { card_id, instance: _ } in claims {
        see(Named::Card, card_id);
    }
    for card_id in blocked_cards {
        see(Named::Card, card_id);
    }
}

fn visit_question(question: &mut Question, see: &mut impl FnMut(Named, &mut String)) {
    let Question { pod, candidates, answer } = question;
    visit_pod(pod, see);
    for node in candidates.iter_mut().flatten() {
        see(Named::Node, node);
    }
    if let Some(Answer::Placed { node, shares, score: _, fitting_nodes: _, candidate_nodes: _ }) = answer {
        see(Named::Node, node);
        for share in shares {
            let PlacedShare {
                container: _,
                card_id,
                vendor: _,
                memory_mib: _,
                cores_percent: _,
                instance: _,
            } = share;
            let mut id = card_id.to_string();
            see(Named::Card, &mut id);
            *card_id = Arc::from(id);
        }
    }
}

fn visit_pod(pod: &mut PodAsk, see: &mut impl FnMut(Named, &mut String)) {
    let PodAsk {
        uid,
        namespace,
        name,
        containers,
        constraints,
        node_policy: _,
        card_policy: _,
        numa_bind: _,
        weights: _,
        host: _,
    } = pod;
    see(Named::Uid, uid);
    see(Named::Namespace, namespace);
    see(Named::Pod, name);
    for container in containers {
        let ContainerAsk { name, kind: _, asks: _ } = container;
        see(Named::Container, name);
    }
    for (_, constraint) in constraints {
        constraint
            .use_ids
            .iter_mut()
            .chain(&mut constraint.avoid_ids)
            .flatten()
            .for_each(|card_id| see(Named::Card, card_id));
    }
}
