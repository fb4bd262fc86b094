//! Explanations in words.

use crate::ceiling::Ceiling;
use crate::change::{AskField, Change, Shift};
use crate::check::Check;
use crate::explain::{Explanation, NodeVerdict};
use crate::nearest::NodeChange;
use crate::reason::Reason;

/// How many pods or cards a sentence names.
const NAMED_MOST: usize = 4;

impl Explanation {
    /// Why the pod waits and what would help, in one line. `pod_name` gives the name that users know a UID by.
    pub fn sentence(&self, pod_name: &dyn Fn(&str) -> String) -> String {
        if self.candidates == 0 {
            return "there is no node to look at".into();
        }
        let nodes = grouped(self.candidates as i64);
        if self.fitting > 0 {
            return format!("fits on {} of {nodes} nodes", grouped(self.fitting as i64));
        }
        let mut parts: Vec<String> = self.ceilings.iter().map(Ceiling::sentence).collect();
        parts.extend(self.change.as_ref().and_then(|found| self.shortfall(found)));
        parts.push(self.changes_sentence(pod_name));
        format!("fits on none of {nodes} nodes: {}", parts.join("; "))
    }

    fn changes_sentence(&self, pod_name: &dyn Fn(&str) -> String) -> String {
        let looked = if self.searched < self.candidates {
            format!(" (of the {} nodes that miss least)", self.searched)
        } else {
            String::new()
        };
        let Some(found) = &self.change else {
            if self.texts.keys().all(|text| text == Reason::NodeUnregistered.bare_text()) {
                return "none has registered cards".into();
            }
            if self.searched == 0 {
                return "what would help was not looked for".into();
            }
            return format!("no change of one kind was found that suffices{looked}");
        };
        let others = self.nodes.iter().find(|verdict| verdict.node == found.node);
        let second =
            others.and_then(|verdict| verdict.changes.iter().find(|other| other.change != found.change));
        let or = second.map(|other| format!(", or {}", other.condition(pod_name))).unwrap_or_default();
        format!("{}{or}{looked}", found.sentence(pod_name))
    }

    /// What is short on the card that the smallest change would give.
    fn shortfall(&self, found: &NodeChange) -> Option<String> {
        let verdict = self.nodes.iter().find(|verdict| verdict.node == found.node)?;
        verdict.shortfall(found.cards.first()?)
    }
}

impl NodeVerdict {
    /// What is short on a card: "8,000 MiB asked; 7,200 free on card gpu-3 of node-a".
    pub fn shortfall(&self, card_id: &str) -> Option<String> {
        let card = self.cards.iter().find(|card| card.card_id == card_id)?;
        let (asked, used, total) = (card.asked?, card.used?, card.total?);
        let (asked, free) = (grouped(asked), grouped(total - used));
        let node = &self.node;
        let first = *card.reasons.first()?;
        let unit = [(Check::Memory, "MiB"), (Check::Cores, "% of the cores")]
            .into_iter()
            .find_map(|(check, unit)| (check.reason() == first).then_some(unit))?;
        Some(format!("{asked} {unit} asked; {free} free on card {card_id} of {node}"))
    }
}

impl NodeChange {
    /// "would fit on node-a (card gpu-3) when pod x ends".
    pub fn sentence(&self, pod_name: &dyn Fn(&str) -> String) -> String {
        let cards = match self.cards.as_slice() {
            [] => String::new(),
            [card] => format!(" (card {card})"),
            cards => format!(" (cards {})", listed(cards.iter().cloned())),
        };
        format!("would fit on {}{cards} {}", self.node, self.condition(pod_name))
    }

    fn condition(&self, pod_name: &dyn Fn(&str) -> String) -> String {
        match &self.change {
            Change::RestoreCards { cards } => {
                let card = |card: &crate::change::FaultyCard| {
                    let words = match (card.unhealthy, card.cordoned) {
                        (true, true) => "healthy and uncordoned",
                        (true, false) => "healthy",
                        _ => "uncordoned",
                    };
                    format!("card {} were {words}", card.card_id)
                };
                format!("if {}", listed(cards.iter().map(card)))
            }
            Change::RaiseQuota { namespace, vendor, memory_mib, cores_percent } => {
                let raised = |shift: &Shift, unit: &str| {
                    format!("{} {unit} (now {})", grouped(shift.to), grouped(shift.from))
                };
                let memory = memory_mib.iter().map(|shift| raised(shift, "MiB"));
                let cores = cores_percent.iter().map(|shift| raised(shift, "% of the cores"));
                let limits = listed(memory.chain(cores));
                format!("if the quota of namespace {namespace} for {vendor} allowed {limits}")
            }
            Change::LowerAsk { container, vendor, lowered, .. } => {
                let lower = |(field, shift): &(AskField, Shift)| {
                    let to = grouped(shift.to);
                    let what = match field {
                        AskField::MemoryMib => format!("{to} MiB of each card"),
                        AskField::MemoryPercent => format!("{to} % of each card's memory"),
                        AskField::CoresPercent => format!("{to} % of each card's cores"),
                        AskField::Count if shift.to == 1 => "1 card".into(),
                        AskField::Count => format!("{to} cards"),
                    };
                    format!("{what} (asks {})", grouped(shift.from))
                };
                let parts = listed(lowered.iter().map(lower));
                format!("if container {container} asked {vendor} for at most {parts}")
            }
            Change::EndPods { uids } => match uids.as_slice() {
                [uid] => format!("when pod {} ends", pod_name(uid)),
                uids => format!("when pods {} end", listed(uids.iter().map(|uid| pod_name(uid)))),
            },
        }
    }
}

impl Ceiling {
    /// What is asked beyond the largest there is.
    pub fn sentence(&self) -> String {
        let Self { container, vendor, .. } = self;
        let (asked, largest) = (grouped(self.asked), grouped(self.largest));
        match self.field {
            AskField::Count if self.largest == 0 => {
                format!("no node has any {vendor} card that the rules for container {container} accept")
            }
            AskField::Count => format!(
                "container {container} asks for {asked} {vendor} cards; no node has more than {largest} that it may use"
            ),
            AskField::CoresPercent => format!(
                "container {container} asks for {asked} % of each {vendor} card's cores; no card that it may use has \
                 more than {largest}"
            ),
            AskField::MemoryMib | AskField::MemoryPercent => format!(
                "container {container} asks for {asked} MiB of each {vendor} card; no card that it may use has more \
                 than {largest} MiB"
            ),
        }
    }
}

/// With commas between thousands.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "a", "a and b", "a, b and 7 more".
fn listed(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.len() > NAMED_MOST {
        let rest = items.len() - (NAMED_MOST - 1);
        return format!("{} and {rest} more", items[..NAMED_MOST - 1].join(", "));
    }
    match items.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lists() {
        assert_eq!([0, 999, 1000, -1_234_567].map(grouped), ["0", "999", "1,000", "-1,234,567"]);
        let list = |count: usize| listed((0..count).map(|number| number.to_string()));
        assert_eq!([1, 2, 4, 6].map(list), ["0", "0 and 1", "0, 1, 2 and 3", "0, 1, 2 and 3 more"]);
    }
}
