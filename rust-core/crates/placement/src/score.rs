//! Scores, in 32-bit floating point as the wire's other writers compute them.

use crate::ask::Weights;
use crate::card::Amount;

const SCALE: f32 = 10.0;

/// How full a node is: the shares of its slots, cores and memory in use. 0 where a total is 0.
pub(crate) fn node_score(used: Amount, total: Amount) -> f32 {
    if total.slots == 0 || total.cores_percent == 0 || total.memory_mib == 0 {
        return 0.0;
    }
    let slots = used.slots as f32 / total.slots as f32;
    let cores = used.cores_percent as f32 / total.cores_percent as f32;
    let memory = used.memory_mib as f32 / total.memory_mib as f32;
    SCALE * (slots + cores + memory)
}

/// How full a card is, or would be with the share where `used` includes it. 0 where a total is 0.
pub(crate) fn card_score(used: Amount, total: Amount, weights: Weights) -> f32 {
    if total.slots == 0 || total.cores_percent == 0 || total.memory_mib == 0 {
        return 0.0;
    }
    let slots = used.slots as f32 / total.slots as f32;
    let cores = used.cores_percent as f32 / total.cores_percent as f32;
    let memory = used.memory_mib as f32 / total.memory_mib as f32;
    SCALE * (weights.slots as f32 * slots + weights.cores as f32 * cores + weights.memory as f32 * memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn node_scores_of_the_formula() {
        let total = Amount::new(16000, 200, 20);
        assert!((node_score(Amount::new(2000, 25, 1), total) - 3.0).abs() < 1e-5);
        assert!((node_score(Amount::new(6000, 75, 1), total) - 8.0).abs() < 1e-5);
        assert!(node_score(Amount::new(5, 5, 5), Amount::new(0, 1, 1)).abs() < f32::EPSILON);
    }

    #[test]
    fn card_score_counts_a_share_that_is_passed_in() {
        let used = Amount::new(2048, 1, 2).plus(Amount::new(1024, 1, 1));
        let score = card_score(used, Amount::new(8192, 4, 10), Weights::default());
        assert!((score - 11.75).abs() < 1e-5);
    }

    proptest! {
        /// What is not a number would compare as equal to everything, and the order would depend on the way of sorting.
        #[test]
        fn a_score_is_a_number(
            (used, total) in (any_amount(), any_amount()),
            weights in (0..=i64::MAX, 0..=i64::MAX, 1..=i64::MAX),
        ) {
            let weights = Weights::new(weights.0, weights.1, weights.2).unwrap();
            prop_assert!(node_score(used, total).is_finite());
            prop_assert!(card_score(used, total, weights).is_finite());
        }
    }

    /// As far as sums of accepted amounts can go.
    fn any_amount() -> impl Strategy<Value = Amount> {
        let any = || prop_oneof![-(1i64 << 50)..1 << 50, -2..=2i64];
        (any(), any(), any()).prop_map(|(memory, cores, slots)| Amount::new(memory, cores, slots))
    }
}
