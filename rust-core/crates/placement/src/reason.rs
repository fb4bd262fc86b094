//! The one table of reasons: why a card or a node was not taken.

/// Why a card, or a whole node, does not take a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Fewer cards passed than were asked.
    AllocatedCardsInsufficientRequest,
    /// A malformed allocation names the card.
    CardBlocked,
    /// A share without cores meets a card whose cores are all given away.
    CardComputeUnitsExhausted,
    /// An operator excluded the card.
    CardCordoned,
    /// Too few cores are left on the card.
    CardInsufficientCore,
    /// Too little memory is left on the card.
    CardInsufficientMemory,
    /// A pod holds of the card what its mode does not allow, so nobody knows what is free.
    CardMigReservationUnclear,
    /// No profile with enough memory has a free placement on the card.
    CardMigTopologyInfeasible,
    /// The card is unhealthy.
    CardNotHealth,
    /// No slot is left on the card.
    CardTimeSlicingExhausted,
    /// The pod's model or mode rules exclude the card.
    CardTypeMismatch,
    /// The pod's id rules exclude the card.
    CardUuidMismatch,
    /// The vendor word is unknown.
    DeviceTypeNotFound,
    /// Exclusive use meets a card in use.
    ExclusiveDeviceAllocateConflict,
    /// The node does not share its cards in the mode that the pod asks for.
    ModeNotFit,
    /// The node has fewer cards of the vendor than one container asks.
    NodeInsufficientDevice,
    /// The node has not registered cards.
    NodeUnregistered,
    /// Cards that passed lie on different NUMA nodes.
    NumaNotFit,
    /// The namespace's quota would be exceeded.
    ResourceQuotaNotFit,
}

/// One row of the table of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonRow {
    /// The reason.
    pub reason: Reason,
    /// The engine's code, and the word kube-scheduler's users see unless [`Reason::word`] says otherwise.
    pub code: &'static str,
    /// The value of metric labels.
    pub label: &'static str,
    /// One sentence for a person.
    pub sentence: &'static str,
    /// When cards that meet it never serve the pod; empty: it may always pass.
    pub never: &'static str,
    /// What a person can do.
    pub remedy: &'static str,
}

const fn row(
    reason: Reason,
    code: &'static str,
    label: &'static str,
    sentence: &'static str,
    never: &'static str,
    remedy: &'static str,
) -> ReasonRow {
    ReasonRow { reason, code, label, sentence, never, remedy }
}

/// Every reason, in the order of its enum (which is that of the codes).
pub const REASONS: [ReasonRow; 19] = [
    row(
        Reason::AllocatedCardsInsufficientRequest,
        "AllocatedCardsInsufficientRequest",
        "too_few_fitting_cards",
        "Some cards fit, but fewer than the container asks.",
        "when too few cards of the node could ever serve the container",
        "Ask for fewer cards, or free what the other reasons of the node name.",
    ),
    row(
        Reason::CardBlocked,
        "CardBlocked",
        "card_blocked",
        "A pod with a malformed allocation names this card; it takes no new pods until that pod is mended or gone.",
        "",
        "Mend or delete the pod whose allocation annotation cannot be read.",
    ),
    row(
        Reason::CardComputeUnitsExhausted,
        "CardComputeUnitsExhausted",
        "compute_exhausted",
        "All cores of the card are given away, so a share without cores of its own would get nothing.",
        "",
        "Wait for a pod on the card to end, or use another card.",
    ),
    row(
        Reason::CardCordoned,
        "CardCordoned",
        "card_cordoned",
        "An operator excluded the card from new allocations.",
        "",
        "Uncordon the card.",
    ),
    row(
        Reason::CardInsufficientCore,
        "CardInsufficientCore",
        "insufficient_cores",
        "The card has fewer free cores than asked.",
        "when the whole card has fewer cores than asked",
        "Ask for fewer cores, or wait for a pod on the card to end.",
    ),
    row(
        Reason::CardInsufficientMemory,
        "CardInsufficientMemory",
        "insufficient_memory",
        "The card has less free memory than asked.",
        "when the whole card has less memory than asked",
        "Ask for less memory, or wait for a pod on the card to end.",
    ),
    row(
        Reason::CardMigReservationUnclear,
        "CardMigReservationUnclear",
        "mig_reservation_unclear",
        "A pod holds a share of the card without a usable MIG reservation, or a MIG reservation on a card that is not in MIG mode.",
        "",
        "Mend or delete the pod whose MIG reservation cannot be read.",
    ),
    row(
        Reason::CardMigTopologyInfeasible,
        "CardMigTopologyInfeasible",
        "mig_placement_infeasible",
        "No MIG profile with enough memory has a free placement on the card.",
        "when no profile of the card has as much memory as asked",
        "Ask for less memory, or wait for an instance of the card to be given back.",
    ),
    row(Reason::CardNotHealth, "CardNotHealth", "card_unhealthy", "The card is unhealthy.",
        "",
        "Repair the card; its node tells when it works again.",
    ),
    row(
        Reason::CardTimeSlicingExhausted,
        "CardTimeSlicingExhausted",
        "slots_exhausted",
        "Every slot of the card is in use.",
        "when the card is registered without slots",
        "Wait for a pod on the card to end, or let the node share its cards among more pods.",
    ),
    row(
        Reason::CardTypeMismatch,
        "CardTypeMismatch",
        "type_mismatch",
        "The pod's rules on card models or modes exclude the card.",
        "always",
        "Change the pod's annotations on card models and modes.",
    ),
    row(
        Reason::CardUuidMismatch,
        "CardUuidMismatch",
        "uuid_mismatch",
        "The pod's rules on card ids exclude the card.",
        "always",
        "Change the pod's annotations on card ids.",
    ),
    row(
        Reason::DeviceTypeNotFound,
        "DeviceTypeNotFound",
        "device_type_not_found",
        "The pod asks for a vendor that the engine does not know.",
        "always",
        "Correct the resource name, or add the vendor to the device configuration.",
    ),
    row(
        Reason::ExclusiveDeviceAllocateConflict,
        "ExclusiveDeviceAllocateConflict",
        "exclusive_conflict",
        "The pod wants the card for itself, and the card is in use.",
        "",
        "Wait for the pods on the card to end, or do not ask for the whole card.",
    ),
    row(
        Reason::ModeNotFit,
        "ModeNotFit",
        "mode_not_offered",
        "The node does not share its cards in the mode that the pod asks for.",
        "always",
        "Ask for the mode in which nodes share their cards, or for none.",
    ),
    row(
        Reason::NodeInsufficientDevice,
        "NodeInsufficientDevice",
        "node_too_few_cards",
        "The node has fewer cards of the vendor than the container asks.",
        "always",
        "Ask for fewer cards in one container.",
    ),
    row(
        Reason::NodeUnregistered,
        "NodeUnregistered",
        "node_unregistered",
        "The node has not registered any cards.",
        "",
        "See why the node's agent does not register its cards.",
    ),
    row(
        Reason::NumaNotFit,
        "NumaNotFit",
        "numa_not_fit",
        "The cards that fit lie on different NUMA nodes, and the pod wants one.",
        "when no NUMA node has enough cards",
        "Ask for fewer cards, or do not bind the pod to one NUMA node.",
    ),
    row(
        Reason::ResourceQuotaNotFit,
        "ResourceQuotaNotFit",
        "quota_exceeded",
        "The share would exceed the quota of the pod's namespace.",
        "",
        "Raise the quota of the namespace, ask for less, or end pods of the namespace.",
    ),
];

impl Reason {
    /// Its row of the table.
    pub fn row(self) -> &'static ReasonRow {
        &REASONS[self as usize]
    }

    /// Its code.
    pub fn code(self) -> &'static str {
        self.row().code
    }

    /// The word in texts for kube-scheduler, whose readers know the words that were there before this engine.
    pub fn word(self) -> &'static str {
        match self {
            Self::CardMigReservationUnclear => Self::CardNotHealth.code(),
            _ => self.code(),
        }
    }

    /// The text of a reason that stands alone, without counts of cards.
    pub fn bare_text(self) -> &'static str {
        match self {
            Self::NodeUnregistered => "node unregistered",
            Self::DeviceTypeNotFound => "Device type not found",
            _ => self.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_finds_its_own_row_and_codes_are_sorted_and_unique() {
        for (index, row) in REASONS.iter().enumerate() {
            assert_eq!(row.reason as usize, index);
            assert_eq!(row.reason.row(), row);
        }
        assert!(REASONS.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[test]
    fn labels_are_unique_words_for_metrics() {
        let mut labels: Vec<_> = REASONS.iter().map(|row| row.label).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), REASONS.len());
        assert!(labels
            .iter()
            .all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
    }
}
