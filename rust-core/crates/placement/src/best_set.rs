//! The best-connected set of so many cards, found without looking at every set.
//!
//! A set's score is the sum of its pairs, each counted once, from the card that comes first to the one that comes
//! later. Of equal sets the first in lexicographic order of places wins. Sets are built in that order, card by card,
//! and a beginning is left as soon as a bound says that no set that starts so beats the best known one.

/// Up to so many cards the answer is always the best set, whatever the scores.
const ALWAYS_EXACT_CARDS: usize = 16;

/// With more cards the search ends after so many looks at a card, about a millisecond, with the best set found.
const MOST_LOOKS: usize = 1 << 18;

/// No set of that size can be built.
const IMPOSSIBLE: i64 = i64::MIN / 4;

/// Buffers of the search, kept from one to the next.
#[derive(Clone, Default)]
pub(crate) struct BestSet {
    cards: usize,
    wanted: usize,
    /// Row by row; only the part where the column is larger is used.
    pairs: Vec<i64>,
    /// Of each card, the sum of its so many best pairs with later cards.
    best_later: Vec<i64>,
    /// Of each level of the search, what each card has with the cards chosen before it.
    gains: Vec<i64>,
    /// Of each level, by first card, the most that the cards still to be chosen can bring.
    most: Vec<i64>,
    /// The same with one card less to choose.
    most_with_one_less: Vec<i64>,
    chosen: Vec<u16>,
    best: Vec<u16>,
    best_score: i64,
    /// Whether a card is the one before it once more.
    repeats: Vec<bool>,
    looks_left: usize,
    ended_early: bool,
}

impl BestSet {
    /// The places of the best `wanted` of `cards` cards, ascending, and whether it is certain that none is better.
    ///
    /// `score(a, b)` is asked for a before b. `repeats(b)`: the card is the one before it once more, with the same
    /// scores.
    pub(crate) fn find(
        &mut self,
        cards: usize,
        wanted: usize,
        score: impl Fn(usize, usize) -> i64,
        repeats: impl Fn(usize) -> bool,
    ) -> (&[u16], bool) {
        debug_assert!(0 < wanted && wanted < cards);
        self.cards = cards;
        self.wanted = wanted;
        self.pairs.clear();
        for first in 0..cards {
            self.pairs.extend((0..cards).map(|later| if later > first { score(first, later) } else { 0 }));
        }
        self.repeats.clear();
        self.repeats.extend((0..cards).map(|card| card > 0 && repeats(card)));
        self.sum_best_later();
        for room in [&mut self.gains, &mut self.most, &mut self.most_with_one_less] {
            room.clear();
            room.resize((cards + 1) * (wanted + 1), 0);
        }
        self.chosen.clear();
        self.looks_left = if cards <= ALWAYS_EXACT_CARDS { usize::MAX } else { MOST_LOOKS };
        self.ended_early = false;
        self.start_greedily();
        self.extend(0, 0);
        (&self.best, !self.ended_early)
    }

    fn sum_best_later(&mut self) {
        let cards = self.cards;
        self.best_later.clear();
        self.best_later.resize(cards * cards, 0);
        for card in 0..cards {
            let sums = &mut self.best_later[card * cards..][..cards];
            let later = cards - 1 - card;
            sums[1..=later].copy_from_slice(&self.pairs[card * cards..][card + 1..cards]);
            sums[1..=later].sort_unstable_by(|left, right| right.cmp(left));
            for count in 1..=later {
                sums[count] += sums[count - 1];
            }
            sums[later + 1..].fill(IMPOSSIBLE);
        }
    }

    /// From each card on, adds the card that brings most; the best of these sets is the one to beat.
    fn start_greedily(&mut self) {
        let cards = self.cards;
        self.best_score = i64::MIN;
        for start in 0..cards {
            let gains = &mut self.gains[..cards];
            gains.fill(0);
            self.chosen.clear();
            let mut next = start;
            let mut score = 0;
            loop {
                score += gains[next];
                self.chosen.push(next as u16);
                if self.chosen.len() == self.wanted {
                    break;
                }
                for (card, gain) in gains.iter_mut().enumerate() {
                    *gain += self.pairs[card.min(next) * cards + card.max(next)];
                }
                gains[next] = IMPOSSIBLE;
                next = (0..cards).max_by_key(|card| (gains[*card], std::cmp::Reverse(*card))).unwrap_or(0);
            }
            if score > self.best_score {
                self.best_score = score;
                self.best.clone_from(&self.chosen);
            }
        }
        self.best.sort_unstable();
        // An earlier set with the same score is to be found still.
        self.best_score -= 1;
        self.chosen.clear();
        self.gains[..cards].fill(0);
    }

    /// Tries every card from `from` on as the next one of a set that begins with `chosen` and has `score` so far.
    fn extend(&mut self, from: usize, score: i64) {
        let (cards, level) = (self.cards, self.chosen.len());
        let left = self.wanted - level;
        let row = level * (cards + 1);
        self.bound(from, left, row);
        let looks = (cards - from) * left;
        if looks > self.looks_left {
            self.ended_early = true;
            return;
        }
        self.looks_left -= looks;
        let mut card = from;
        while card + left <= cards {
            if score + self.most[row + card] <= self.best_score {
                return;
            }
            let with_card = score + self.gains[row + card];
            if left == 1 {
                if with_card > self.best_score {
                    self.best_score = with_card;
                    self.best.clone_from(&self.chosen);
                    self.best.push(card as u16);
                }
            } else {
                let rest = self.best_later[card * cards + left - 1];
                if with_card + rest + self.most_with_one_less[row + card + 1] > self.best_score {
                    let (here, below) = self.gains.split_at_mut(row + cards + 1);
                    let pairs = &self.pairs[card * cards..][..cards];
                    for later in card + 1..cards {
                        below[later] = here[row + later] + pairs[later];
                    }
                    self.chosen.push(card as u16);
                    self.extend(card + 1, with_card);
                    self.chosen.pop();
                    if self.ended_early {
                        return;
                    }
                }
            }
            card += 1;
            // A set without a card but with its repetition has an equal before it.
            while card < cards && self.repeats[card] {
                card += 1;
            }
        }
    }

    /// Fills in the most that `left` cards can bring, by the first card they may be: each brings what it has with
    /// those chosen, and at best its best pairs with as many later cards as follow it in the set.
    fn bound(&mut self, from: usize, left: usize, row: usize) {
        let cards = self.cards;
        let gains = &self.gains[row..][..cards];
        let most = &mut self.most[row..=row + cards];
        let before = &mut self.most_with_one_less[row..=row + cards];
        most[from..].fill(0);
        for count in 1..=left {
            before[from..].copy_from_slice(&most[from..]);
            most[cards] = IMPOSSIBLE;
            for card in (from..cards).rev() {
                let with_card = gains[card] + self.best_later[card * cards + count - 1] + before[card + 1];
                most[card] = most[card + 1].max(with_card).max(IMPOSSIBLE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every set in lexicographic order; the first of the best.
    fn best_of_all(cards: usize, wanted: usize, pairs: &[i64]) -> Vec<u16> {
        let mut best: Option<(i64, Vec<u16>)> = None;
        let mut set: Vec<usize> = (0..wanted).collect();
        loop {
            let score = set
                .iter()
                .enumerate()
                .flat_map(|(place, card)| {
                    set[place + 1..].iter().map(move |later| pairs[card * cards + later])
                })
                .sum();
            if best.as_ref().is_none_or(|(most, _)| score > *most) {
                best = Some((score, set.iter().map(|card| *card as u16).collect()));
            }
            let Some(place) = (0..wanted).rev().find(|place| set[*place] < cards - wanted + place) else {
                break;
            };
            set[place] += 1;
            for later in place + 1..wanted {
                set[later] = set[later - 1] + 1;
            }
        }
        best.unwrap_or_default().1
    }

    fn find(cards: usize, wanted: usize, pairs: &[i64]) -> (Vec<u16>, bool) {
        let mut search = BestSet::default();
        let (best, certain) =
            search.find(cards, wanted, |card, later| pairs[card * cards + later], |_| false);
        (best.to_vec(), certain)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_set_found_is_the_first_of_the_best(
            (cards, wanted) in (2..=10usize).prop_flat_map(|cards| (Just(cards), 1..cards)),
            spread in prop::sample::select(vec![0, 1, 3, 1000, i64::from(i32::MAX)]),
            seeds in prop::collection::vec(-1.0..1.0f64, 100),
        ) {
            let pairs: Vec<i64> = seeds.iter().map(|seed| (seed * spread as f64) as i64).collect();
            let expected = best_of_all(cards, wanted, &pairs);
            prop_assert_eq!(find(cards, wanted, &pairs), (expected, true));
        }

        /// Cards that stand in the list several times, as those do that can give several shares.
        #[test]
        fn repeated_cards_are_chosen_from_like_others(
            repeats in prop::collection::vec(1..=4usize, 1..=4),
            wanted in 1..6usize,
            seeds in prop::collection::vec(-3..=3i64, 16),
        ) {
            let cards: Vec<usize> =
                repeats.iter().enumerate().flat_map(|(card, times)| vec![card; *times]).collect();
            prop_assume!(wanted < cards.len());
            let score = |first: usize, later: usize| seeds[cards[first] * 4 + cards[later]];
            let pairs: Vec<i64> = (0..cards.len() * cards.len())
                .map(|pair| score(pair / cards.len(), pair % cards.len()))
                .collect();
            let mut search = BestSet::default();
            let (best, certain) =
                search.find(cards.len(), wanted, score, |card| cards[card] == cards[card - 1]);
            prop_assert!(certain);
            prop_assert_eq!(best, best_of_all(cards.len(), wanted, &pairs));
        }
    }

    #[test]
    fn buffers_of_a_larger_search_do_not_disturb_a_smaller_one() {
        let mut search = BestSet::default();
        search.find(9, 5, |card, later| (card * later) as i64, |_| false);
        let (best, _) = search.find(4, 2, |card, later| i64::from((card, later) == (1, 2)), |_| false);
        assert_eq!(best, [1, 2]);
    }

    #[test]
    fn sixteen_cards_are_searched_to_the_end_and_a_search_among_more_ends() {
        let scattered = |card: usize, later: usize| ((card * 7919 + later * 104_729) % 1009) as i64;
        let mut search = BestSet::default();
        for wanted in 1..16 {
            let (best, certain) = search.find(16, wanted, scattered, |_| false);
            assert!(certain);
            assert_eq!(best.len(), wanted);
        }
        let (best, certain) = search.find(56, 28, scattered, |_| false);
        assert!(!certain);
        assert_eq!(best.len(), 28);
        assert!(best.is_sorted());
        // Eight cards that can give seven shares each are few different cards.
        let shares = |card: usize, later: usize| scattered(card / 7, later / 7);
        for wanted in [2, 4, 8] {
            assert!(search.find(56, wanted, shares, |card| card % 7 != 0).1, "{wanted}");
        }
        // Equal scores need no search: the first set is as good as any.
        let (best, certain) = search.find(56, 28, |_, _| 5, |_| false);
        assert!(certain);
        assert!(best.iter().copied().eq(0..28));
    }
}
