//! How results are told: sentences for a person, JSON lines for a program.

use std::io::{self, Write};

use placement::snapshot::{Answer, Operation, Question, Snapshot};
use placement::NodeVerdict;
use serde_json::{json, Value};

/// One decision.
pub(crate) struct Step<'a> {
    pub(crate) number: usize,
    pub(crate) operation: &'a Operation,
    pub(crate) question: &'a Question,
    pub(crate) answer: &'a Answer,
    /// None: no answer was recorded.
    pub(crate) same: Option<bool>,
    pub(crate) verdicts: Option<&'a [NodeVerdict]>,
}

#[derive(Default)]
pub(crate) struct Totals {
    decisions: usize,
    unrecorded: usize,
    pub(crate) differ: usize,
}

impl Totals {
    pub(crate) fn count(&mut self, same: Option<bool>) {
        self.decisions += 1;
        self.unrecorded += usize::from(same.is_none());
        self.differ += usize::from(same == Some(false));
    }
}

pub(crate) trait Form {
    fn began(&self, out: &mut dyn Write, snapshot: &Snapshot) -> io::Result<()>;
    fn decided(&self, out: &mut dyn Write, step: &Step<'_>) -> io::Result<()>;
    fn ended(&self, out: &mut dyn Write, totals: &Totals, faults: &[String]) -> io::Result<()>;
    fn checked(&self, out: &mut dyn Write, snapshot: &Snapshot, faults: &[String]) -> io::Result<()>;
}

pub(crate) fn form(json: bool) -> &'static dyn Form {
    if json {
        &Json
    } else {
        &Sentences
    }
}

fn cards(snapshot: &Snapshot) -> usize {
    snapshot.nodes.iter().map(|node| node.cards.len()).sum()
}

fn verb(operation: &Operation) -> &'static str {
    if matches!(operation, Operation::Reserve(_)) {
        "reserve"
    } else {
        "what-if"
    }
}

struct Sentences;

impl Form for Sentences {
    fn began(&self, out: &mut dyn Write, snapshot: &Snapshot) -> io::Result<()> {
        writeln!(
            out,
            "{} nodes, {} cards, {} bookings, {} quotas; {} operations",
            snapshot.nodes.len(),
            cards(snapshot),
            snapshot.bookings.len(),
            snapshot.quotas.len(),
            snapshot.operations.len()
        )
    }

    fn decided(&self, out: &mut dyn Write, step: &Step<'_>) -> io::Result<()> {
        let compared = match step.same {
            Some(true) => "as recorded",
            Some(false) => "DIFFERS",
            None => "not recorded",
        };
        let (verb, pod) = (verb(step.operation), &step.question.pod);
        write!(
            out,
            "operations[{}] {verb} {}/{} ({}): ",
            step.number,
            pod.namespace(),
            pod.name(),
            pod.uid()
        )?;
        writeln!(out, "{compared}: {}", sentence(step.answer))?;
        if let (Some(false), Some(recorded)) = (step.same, &step.question.answer) {
            writeln!(out, "  recorded: {}", sentence(recorded))?;
        }
        for verdict in step.verdicts.unwrap_or_default() {
            explain(out, verdict)?;
        }
        Ok(())
    }

    fn ended(&self, out: &mut dyn Write, totals: &Totals, faults: &[String]) -> io::Result<()> {
        let Totals { decisions, unrecorded, differ } = totals;
        writeln!(out, "{decisions} decisions, {differ} differ, {unrecorded} without a recorded answer")?;
        faults.iter().try_for_each(|fault| writeln!(out, "inconsistent: {fault}"))
    }

    fn checked(&self, out: &mut dyn Write, snapshot: &Snapshot, faults: &[String]) -> io::Result<()> {
        self.began(out, snapshot)?;
        faults.iter().try_for_each(|fault| writeln!(out, "inconsistent: {fault}"))?;
        writeln!(out, "{} inconsistencies", faults.len())
    }
}

fn sentence(answer: &Answer) -> String {
    match answer {
        Answer::Placed { node, score, shares, fitting_nodes, candidate_nodes } => {
            let share = |share: &placement::PlacedShare| {
                let placement::PlacedShare { container, card_id, memory_mib, cores_percent, .. } = share;
                format!("container {container}: {card_id} {memory_mib} MiB {cores_percent} %")
            };
            let shares: Vec<String> = shares.iter().map(share).collect();
            format!(
                "node {node}, score {score:.4}, {fitting_nodes} of {candidate_nodes} fit; {}",
                shares.join("; ")
            )
        }
        Answer::Rejected { reasons, never_nodes, candidate_nodes } => {
            let reasons: Vec<String> =
                reasons.iter().map(|(code, nodes)| format!("{nodes} {code}")).collect();
            format!("none of {candidate_nodes} nodes fits, {never_nodes} never would: {}", reasons.join(", "))
        }
    }
}

fn explain(out: &mut dyn Write, verdict: &NodeVerdict) -> io::Result<()> {
    let said = match (verdict.fits, verdict.never) {
        (true, _) => "fits",
        (false, true) => "never fits",
        (false, false) => "does not fit now",
    };
    let container = verdict.container.as_ref().map(|name| format!(", container {name}")).unwrap_or_default();
    let reason = if verdict.reason.is_empty() { String::new() } else { format!(": {}", verdict.reason) };
    writeln!(out, "  {} {said}{container}{reason}", verdict.node)?;
    for card in &verdict.cards {
        let said = card.reason.map_or("passes", |reason| reason.code());
        let numbers = match (card.asked, card.used, card.total) {
            (Some(asked), Some(used), Some(total)) => format!(" (asked {asked}, used {used} of {total})"),
            _ => String::new(),
        };
        writeln!(out, "    {} {said}{numbers}", card.card_id)?;
    }
    Ok(())
}

struct Json;

fn line(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value}")
}

fn sizes(snapshot: &Snapshot) -> Value {
    json!({
        "nodes": snapshot.nodes.len(), "cards": cards(snapshot), "bookings": snapshot.bookings.len(),
        "quotas": snapshot.quotas.len(), "operations": snapshot.operations.len(),
    })
}

impl Form for Json {
    fn began(&self, out: &mut dyn Write, snapshot: &Snapshot) -> io::Result<()> {
        line(out, &json!({ "state": sizes(snapshot) }))
    }

    fn decided(&self, out: &mut dyn Write, step: &Step<'_>) -> io::Result<()> {
        let pod = &step.question.pod;
        let mut decision = json!({
            "operation": step.number, "verb": verb(step.operation), "uid": pod.uid(), "namespace": pod.namespace(),
            "name": pod.name(), "same": step.same, "answer": step.answer, "recorded": step.question.answer,
        });
        if let Some(verdicts) = step.verdicts {
            decision["nodes"] = verdicts.iter().map(verdict_value).collect();
        }
        line(out, &decision)
    }

    fn ended(&self, out: &mut dyn Write, totals: &Totals, faults: &[String]) -> io::Result<()> {
        let Totals { decisions, unrecorded, differ } = totals;
        line(
            out,
            &json!({ "decisions": decisions, "differ": differ, "unrecorded": unrecorded, "inconsistent": faults }),
        )
    }

    fn checked(&self, out: &mut dyn Write, snapshot: &Snapshot, faults: &[String]) -> io::Result<()> {
        line(out, &json!({ "state": sizes(snapshot), "inconsistent": faults }))
    }
}

fn verdict_value(verdict: &NodeVerdict) -> Value {
    let card = |card: &placement::CardVerdict| {
        json!({
            "card_id": card.card_id, "code": card.reason.map(placement::Reason::code), "asked": card.asked,
            "used": card.used, "total": card.total,
        })
    };
    json!({
        "node": verdict.node, "fits": verdict.fits, "never": verdict.never, "score": verdict.score,
        "container": verdict.container, "reason": verdict.reason,
        "cards": verdict.cards.iter().map(card).collect::<Value>(),
    })
}
