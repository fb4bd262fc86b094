//! What no card, and no node, of the candidates could give, whatever else is running.

use crate::ask::PodAsk;
use crate::change::AskField;
use crate::cluster::Cluster;

/// A number of an ask that is beyond the largest there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Name of the container.
    pub container: String,
    /// The vendor word.
    pub vendor: String,
    /// What is asked too much of: memory in MiB of a card, cores in percent of a card, or cards of a node.
    pub field: AskField,
    /// What is asked.
    pub asked: i64,
    /// The most that one card, or for the count one node, of the candidates has, of cards the pod's rules accept.
    pub largest: i64,
}

impl Cluster {
    /// Every number of the pod's asks that is beyond what the named nodes have.
    pub(crate) fn ceilings(&mut self, pod: &PodAsk, nodes: &[(&str, usize)]) -> Vec<Ceiling> {
        self.prepare(pod);
        let mut found = Vec::new();
        for demand in &self.search.demands.list {
            let needs = self.search.demands.needs(demand);
            let rules = demand.id_rules(pod);
            let (mut memory, mut cores, mut most_cards) = (0, 0, 0);
            let (mut asked_cores, mut partitioned) = (0, false);
            for place in nodes.iter().filter_map(|(name, _)| self.registered_place(name)) {
                let node = &self.nodes[place];
                let mut cards = 0;
                for (position, card) in node.cards.iter().enumerate() {
                    let need = &needs[usize::from(card.kind)];
                    let admitted = need.admits_model()
                        && rules.is_none_or(|rules| rules.admits_id(node.id_at(position)));
                    if admitted {
                        memory = memory.max(card.total.memory_mib);
                        cores = cores.max(card.total.cores_percent);
                        asked_cores = need.cores_percent.max(0);
                        partitioned |= need.partitioned;
                        cards += 1;
                    }
                }
                most_cards = most_cards.max(cards);
            }
            let container = &pod.containers[usize::from(demand.container)];
            let ask = &container.asks[usize::from(demand.ask)];
            let mut beyond = |field: AskField, asked: i64, largest: i64| {
                if asked > largest {
                    found.push(Ceiling {
                        container: container.name.clone(),
                        vendor: ask.vendor().to_string(),
                        field,
                        asked,
                        largest,
                    });
                }
            };
            // One partitioned card can serve an ask for several.
            if !(demand.accepts_partitioned && partitioned) {
                beyond(AskField::Count, i64::from(demand.count), most_cards);
            }
            if most_cards > 0 {
                beyond(AskField::MemoryMib, ask.memory_mib, memory);
                beyond(AskField::CoresPercent, asked_cores, cores);
            }
        }
        found
    }
}
