//! How well the cards of a node are connected with each other, pair by pair.

/// One card's scores: its id, and the score to each peer by the peer's id.
pub type CardScores = (String, Vec<(String, i64)>);

/// A pair without a score.
const MISSING: i32 = i32::MIN;

/// The scores between the registered cards of one node. Empty where the node has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairScores {
    cards: usize,
    /// Row by row: the score of the card at one position to the card at another.
    scores: Vec<i32>,
}

impl PairScores {
    /// Reads the scores of the cards with these ids, in the order of the inventory. Of several entries of a card the
    /// first counts; ids that are not among the cards are left out; a score beyond 32 bits is read as the nearest.
    pub(crate) fn new(ids: &[&str], given: &[CardScores]) -> Self {
        if given.is_empty() {
            return Self::default();
        }
        let cards = ids.len();
        let mut scores = vec![MISSING; cards * cards];
        for (row, id) in ids.iter().enumerate() {
            let Some((_, peers)) = given.iter().find(|(card, _)| card == id) else { continue };
            for (column, peer) in ids.iter().enumerate() {
                if let Some((_, score)) = peers.iter().find(|(card, _)| card == peer) {
                    let nearest = (*score).clamp(i64::from(MISSING) + 1, i64::from(i32::MAX));
                    scores[row * cards + column] = nearest as i32;
                }
            }
        }
        Self { cards, scores }
    }

    /// The score of one card to another, by their places in the inventory; None: the node gives none.
    pub(crate) fn get(&self, card: u16, peer: u16) -> Option<i32> {
        let place = usize::from(card) * self.cards + usize::from(peer);
        self.scores.get(place).copied().filter(|score| *score != MISSING)
    }

    /// What `new` would have to be given, for the cards with these ids.
    pub(crate) fn by_id(&self, ids: &[&str]) -> Vec<CardScores> {
        let row = |(card, id): (usize, &&str)| {
            let peers = ids.iter().enumerate().filter_map(|(peer, peer_id)| {
                let score = self.get(card as u16, peer as u16)?;
                Some(((*peer_id).to_string(), i64::from(score)))
            });
            ((*id).to_string(), peers.collect::<Vec<_>>())
        };
        if self.scores.is_empty() {
            return Vec::new();
        }
        ids.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, peers: &[(&str, i64)]) -> CardScores {
        (id.into(), peers.iter().map(|(peer, score)| ((*peer).to_string(), *score)).collect())
    }

    #[test]
    fn scores_are_found_by_place_and_the_first_entry_of_a_card_counts() {
        let given = [
            row("b", &[("a", 7), ("x", 1), ("c", i64::MIN)]),
            row("b", &[("a", 8)]),
            row("c", &[("b", i64::MAX)]),
        ];
        let scores = PairScores::new(&["a", "b", "c"], &given);
        assert_eq!(scores.get(1, 0), Some(7));
        assert_eq!(scores.get(0, 1), None);
        assert_eq!(scores.get(1, 2), Some(-i32::MAX));
        assert_eq!(scores.get(2, 1), Some(i32::MAX));
        assert_eq!(scores.by_id(&["a", "b", "c"])[1], row("b", &[("a", 7), ("c", -i64::from(i32::MAX))]));
        assert_eq!(PairScores::default().get(0, 1), None);
        assert_eq!(PairScores::new(&["a"], &[]), PairScores::default());
    }
}
