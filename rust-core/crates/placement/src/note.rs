//! What is to be said about a placement that is valid: where something was missing, or a choice was not the best.

/// What is to be said about how a node's cards were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Note {
    /// The search for the best-connected cards was cut short.
    CardChoiceCutShort,
    /// Cards were to be chosen by their connections, of which the node gives no score for some or all.
    PairScoresMissing,
}

/// Every note with its code and one sentence for a person, in the order of the codes.
pub const NOTES: [(Note, &str, &str); 2] = [
    (
        Note::CardChoiceCutShort,
        "CardChoiceCutShort",
        "So many cards could be combined that not every set was compared; a better connected one may exist.",
    ),
    (
        Note::PairScoresMissing,
        "PairScoresMissing",
        "The node gives no score for some of the pairs of cards compared; they counted as not connected.",
    ),
];

impl Note {
    /// The word for machines.
    pub fn code(self) -> &'static str {
        NOTES[self as usize].1
    }

    /// One sentence for a person.
    pub fn sentence(self) -> &'static str {
        NOTES[self as usize].2
    }
}

/// A set of notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes(u8);

impl Notes {
    pub(crate) fn add(&mut self, note: Note) {
        self.0 |= 1 << note as u8;
    }

    /// The notes in the order of their codes.
    pub fn iter(self) -> impl Iterator<Item = Note> {
        NOTES.into_iter().map(|(note, _, _)| note).filter(move |note| self.0 & (1 << *note as u8) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_notes_and_of_the_codes() {
        let mut all = Notes::default();
        for (place, (note, code, _)) in NOTES.iter().enumerate() {
            assert_eq!(*note as usize, place);
            assert_eq!(note.code(), *code);
            all.add(*note);
        }
        assert!(NOTES.is_sorted_by_key(|(_, code, _)| *code));
        assert_eq!(all.iter().count(), NOTES.len());
        assert_eq!(Notes::default().iter().count(), 0);
    }
}
