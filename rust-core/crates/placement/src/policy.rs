//! Which node and which cards are preferred. A policy is a list of sort keys; the table below names them all.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// Which of the fitting nodes wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePolicy {
    /// The fullest.
    Binpack,
    /// The emptiest.
    Spread,
    /// The one whose fragmentation grows least; among equals the fullest.
    Fgd,
}

impl NodePolicy {
    /// Any word but `spread` and `fgd` means binpack.
    pub fn parse(word: &str) -> Self {
        match word {
            "spread" => Self::Spread,
            "fgd" => Self::Fgd,
            _ => Self::Binpack,
        }
    }

    /// A score that is better by `gain`, whichever way better is.
    pub(crate) fn improved(self, score: f32, gain: f32) -> f32 {
        match self {
            Self::Binpack | Self::Fgd => score + gain,
            Self::Spread => score - gain,
        }
    }

    /// Less: the node with score `left` is preferred, as far as scores decide.
    pub(crate) fn compare(self, left: f32, right: f32) -> Ordering {
        let ascending = left.partial_cmp(&right).unwrap_or(Ordering::Equal);
        match self {
            Self::Binpack | Self::Fgd => ascending.reverse(),
            Self::Spread => ascending,
        }
    }
}

/// One key by which cards are ordered. The order is ascending: the last card is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SortKey {
    ScoreAscending,
    ScoreDescending,
    NumaAscending,
    NumaDescending,
    UsedSlotsDescending,
    IndexAscending,
    GrowthDescending,
}

/// What the keys look at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CardRank {
    pub(crate) score: f32,
    pub(crate) numa: i32,
    pub(crate) used_slots: i64,
    pub(crate) index: u32,
    /// By how much the share makes the node's fragmentation grow; 0 unless the policy names `fgd`.
    pub(crate) growth: i64,
    /// Place in the order before; decides among equals, which keeps the order stable.
    pub(crate) place: u16,
}

impl SortKey {
    fn compare(self, left: &CardRank, right: &CardRank) -> Ordering {
        let by_score = || left.score.partial_cmp(&right.score).unwrap_or(Ordering::Equal);
        match self {
            Self::ScoreAscending => by_score(),
            Self::ScoreDescending => by_score().reverse(),
            Self::NumaAscending => left.numa.cmp(&right.numa),
            Self::NumaDescending => right.numa.cmp(&left.numa),
            Self::UsedSlotsDescending => right.used_slots.cmp(&left.used_slots),
            Self::IndexAscending => left.index.cmp(&right.index),
            Self::GrowthDescending => right.growth.cmp(&left.growth),
        }
    }
}

use SortKey::{
    GrowthDescending, IndexAscending, NumaAscending, NumaDescending, ScoreAscending, ScoreDescending,
    UsedSlotsDescending,
};

/// A word that stands alone, with its keys without and with NUMA binding.
struct SinglePolicy {
    word: &'static str,
    keys: &'static [SortKey],
    numa_bound_keys: &'static [SortKey],
}

/// Single words. Words that are not here order cards as `spread` does.
const SINGLE: [SinglePolicy; 4] = [
    SinglePolicy {
        word: "spread",
        keys: &[ScoreDescending, NumaAscending],
        numa_bound_keys: &[NumaAscending, ScoreDescending],
    },
    SinglePolicy {
        word: "binpack",
        keys: &[ScoreAscending, NumaAscending],
        numa_bound_keys: &[NumaDescending, ScoreAscending],
    },
    SinglePolicy {
        word: "mutex",
        keys: &[UsedSlotsDescending, NumaAscending],
        numa_bound_keys: &[UsedSlotsDescending, NumaAscending],
    },
    SinglePolicy {
        word: "fgd",
        keys: &[GrowthDescending, ScoreAscending, NumaAscending],
        numa_bound_keys: &[NumaDescending, GrowthDescending, ScoreAscending],
    },
];

/// Words that order cards inside a comma chain; others have no key there.
const CHAIN: [(&str, SortKey); 4] = [
    ("binpack", ScoreAscending),
    ("spread", ScoreDescending),
    ("numa", NumaAscending),
    ("fgd", GrowthDescending),
];

/// Which cards of a node are preferred, and what the policy forbids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CardPolicy {
    text: String,
    keys: Vec<SortKey>,
    pub(crate) mutex: bool,
    pub(crate) topology: bool,
    /// Named `fgd`: of equally good choices the one that leaves the least fragmented cards.
    pub fgd: bool,
}

impl CardPolicy {
    /// Whether a policy word or a comma chain of words names this word.
    pub fn names(text: &str, word: &str) -> bool {
        text.split(',').any(|token| token.trim() == word)
    }

    /// Reads a policy word or a comma chain of words.
    pub fn parse(text: &str, numa_bind: bool) -> Self {
        let keys = if text.contains(',') || text == "numa" {
            Self::chain(text, numa_bind)
        } else {
            let single = SINGLE.iter().find(|policy| policy.word == text).unwrap_or(&SINGLE[0]);
            if numa_bind { single.numa_bound_keys } else { single.keys }.to_vec()
        };
        Self {
            text: text.into(),
            keys,
            mutex: Self::names(text, "mutex"),
            topology: Self::names(text, "topology-aware"),
            fgd: Self::names(text, "fgd"),
        }
    }

    /// The words it was read from.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn chain(text: &str, numa_bind: bool) -> Vec<SortKey> {
        let mut keys: Vec<SortKey> = Vec::with_capacity(CHAIN.len() + 1);
        for token in text.split(',') {
            if let Some((_, key)) = CHAIN.iter().find(|(word, _)| *word == token.trim()) {
                if !keys.contains(key) {
                    keys.push(*key);
                }
            }
        }
        if keys.is_empty() {
            keys.push(ScoreDescending);
        }
        if numa_bind && keys[0] != NumaAscending {
            keys.retain(|key| *key != NumaAscending);
            keys.insert(0, NumaAscending);
        }
        keys.push(IndexAscending);
        keys
    }

    pub(crate) fn compare(&self, left: &CardRank, right: &CardRank) -> Ordering {
        self.keys
            .iter()
            .map(|key| key.compare(left, right))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| left.place.cmp(&right.place))
    }
}

/// Without NUMA binding, which the pod knows.
impl From<String> for CardPolicy {
    fn from(text: String) -> Self {
        Self::parse(&text, false)
    }
}

impl From<CardPolicy> for String {
    fn from(policy: CardPolicy) -> Self {
        policy.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_give_their_keys() {
        let cases: [(&str, bool, &[SortKey]); 15] = [
            ("binpack", false, &[ScoreAscending, NumaAscending]),
            ("binpack", true, &[NumaDescending, ScoreAscending]),
            ("spread", false, &[ScoreDescending, NumaAscending]),
            ("spread", true, &[NumaAscending, ScoreDescending]),
            ("Binpack", false, &[ScoreDescending, NumaAscending]),
            ("", true, &[NumaAscending, ScoreDescending]),
            ("mutex", true, &[UsedSlotsDescending, NumaAscending]),
            ("fgd", false, &[GrowthDescending, ScoreAscending, NumaAscending]),
            ("fgd", true, &[NumaDescending, GrowthDescending, ScoreAscending]),
            ("numa,fgd", false, &[NumaAscending, GrowthDescending, IndexAscending]),
            ("numa", false, &[NumaAscending, IndexAscending]),
            ("binpack, numa,binpack", false, &[ScoreAscending, NumaAscending, IndexAscending]),
            ("binpack,numa", true, &[NumaAscending, ScoreAscending, IndexAscending]),
            ("mutex,else", false, &[ScoreDescending, IndexAscending]),
            (",", true, &[NumaAscending, ScoreDescending, IndexAscending]),
        ];
        for (text, numa_bind, keys) in cases {
            assert_eq!(CardPolicy::parse(text, numa_bind).keys, keys, "{text:?} {numa_bind}");
        }
    }

    #[test]
    fn filters_are_read_from_chains_and_single_words() {
        for text in ["mutex", "spread, mutex", "mutex,topology-aware"] {
            assert!(CardPolicy::parse(text, false).mutex, "{text}");
        }
        assert!(!CardPolicy::parse("mutexes", false).mutex);
        assert!(CardPolicy::parse("binpack,topology-aware", false).topology);
        assert!(!CardPolicy::parse("spread", false).topology);
        assert!(CardPolicy::parse("binpack,fgd", false).fgd);
        assert!(!CardPolicy::parse("fgdx", false).fgd);
    }

    #[test]
    fn node_policy_words_other_than_spread_pack() {
        assert_eq!(NodePolicy::parse("spread").compare(1.0, 2.0), Ordering::Less);
        for word in ["binpack", "", "Spread", "topology-aware"] {
            assert_eq!(NodePolicy::parse(word).compare(2.0, 1.0), Ordering::Less, "{word}");
        }
    }

    fn any_policy() -> impl Strategy<Value = CardPolicy> {
        let words = ["binpack", "spread", "numa", "mutex", "fgd", "topology-aware", "other", ""];
        let chain = prop::collection::vec(prop::sample::select(words.to_vec()), 1..5);
        (chain, prop::bool::ANY).prop_map(|(words, numa_bind)| CardPolicy::parse(&words.join(","), numa_bind))
    }

    /// Ranks of cards in their places, of few different values, so that many are equal.
    fn any_ranks() -> impl Strategy<Value = Vec<CardRank>> {
        let values = (0..3u8, 0..3i32, 0..3i64, 0..3u32, 0..3i64);
        prop::collection::vec(values, 1..20).prop_map(|found| {
            let rank = |(place, (score, numa, used_slots, index, growth)): (usize, (u8, _, _, _, _))| {
                CardRank { score: f32::from(score), numa, used_slots, index, growth, place: place as u16 }
            };
            found.into_iter().enumerate().map(rank).collect()
        })
    }

    proptest! {
        #[test]
        fn the_order_of_cards_is_total(policy in any_policy(), ranks in any_ranks()) {
            for left in &ranks {
                for right in &ranks {
                    let order = policy.compare(left, right);
                    prop_assert_eq!(order, policy.compare(right, left).reverse());
                    prop_assert_eq!(order.is_eq(), left.place == right.place);
                    for third in &ranks {
                        if order.is_lt() && policy.compare(right, third).is_lt() {
                            prop_assert!(policy.compare(left, third).is_lt());
                        }
                    }
                }
            }
        }

        #[test]
        fn cards_of_equal_keys_keep_their_order(policy in any_policy(), ranks in any_ranks()) {
            let places = |ranks: &[CardRank]| ranks.iter().map(|rank| rank.place).collect::<Vec<_>>();
            let by_keys = |left: &CardRank, right: &CardRank| {
                policy.keys.iter().fold(Ordering::Equal, |order, key| order.then(key.compare(left, right)))
            };
            let mut stable = ranks.clone();
            stable.sort_by(by_keys);
            let mut unstable = ranks;
            unstable.sort_unstable_by(|left, right| policy.compare(left, right));
            prop_assert_eq!(places(&unstable), places(&stable));
        }
    }
}
