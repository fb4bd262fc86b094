//! Doing what a snapshot says, step by step.

use std::io::{self, Write};

use placement::Cluster;
use placement::{snapshot::Snapshot, Detail};

use crate::report::{Form, Step, Totals};
use crate::{DIFFERS, SAME};

/// Steps between two lines of progress.
const PROGRESS_STEPS: usize = 1000;

/// Performs the operations and compares the answers. The exit status; `Err` inside: the output cannot be written.
///
/// # Errors
/// When an operation holds a value that cannot enter the engine.
pub(crate) fn replay(
    snapshot: &Snapshot,
    mut cluster: Cluster,
    explain: bool,
    form: &dyn Form,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> Result<io::Result<u8>, String> {
    let mut totals = Totals::default();
    let mut written = form.began(out, snapshot);
    for (number, operation) in snapshot.operations.iter().enumerate() {
        let question = operation.question();
        let verdicts = question
            .filter(|_| explain)
            .map(|question| {
                question.with_candidates(|pod, candidates| {
                    cluster.explain(pod, candidates, Detail::default()).nodes
                })
            })
            .map(|mut verdicts| {
                verdicts.sort_by(|left, right| left.node.cmp(&right.node));
                verdicts
            });
        let answer =
            cluster.perform(operation).map_err(|problem| format!("operations[{number}]: {problem}"))?;
        if let (Some(question), Some(answer)) = (question, answer) {
            let same = question.answer.as_ref().map(|recorded| recorded.agrees_with(&answer));
            totals.count(same);
            let step =
                Step { number, operation, question, answer: &answer, same, verdicts: verdicts.as_deref() };
            written = written.and_then(|()| form.decided(out, &step));
        }
        if (number + 1) % PROGRESS_STEPS == 0 {
            // Progress that cannot be shown is no fault.
            let _ = writeln!(progress, "{} of {} operations", number + 1, snapshot.operations.len());
        }
    }
    let faults = cluster.check_invariants();
    let status = if totals.differ == 0 && faults.is_empty() { SAME } else { DIFFERS };
    Ok(written.and_then(|()| form.ended(out, &totals, &faults)).map(|()| status))
}

/// Performs the operations and puts the answers in place of the recorded ones.
///
/// # Errors
/// When an operation holds a value that cannot enter the engine.
pub(crate) fn record(snapshot: &mut Snapshot, mut cluster: Cluster) -> Result<(), String> {
    for (number, operation) in snapshot.operations.iter_mut().enumerate() {
        let answer =
            cluster.perform(operation).map_err(|problem| format!("operations[{number}]: {problem}"))?;
        if let Some(question) = operation.question_mut() {
            question.answer = answer;
        }
    }
    Ok(())
}
