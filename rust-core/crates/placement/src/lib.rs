//! Chooses cards for pods.
//!
//! A [`Cluster`] is the kept state: nodes with their cards, what is booked on them, and quotas. [`Cluster::reserve`]
//! decides about one pod and books it in the same step; nothing is rebuilt, and nothing is allocated where the pod
//! fits and its buffers have grown to their size. The same state and the same pod give the same answer on any
//! machine and in any order of arrival: among equal nodes the first by name wins, among equal cards the one listed
//! last in its node's inventory.
//!
//! How a pod travels: `ask` (what it wants) → `demand` (made ready) → `search` (every candidate) → `count` or `walk`
//! (one node) → `check` (one card) → `decision` (what it gets, or why not) → `booking`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ask;
mod best_set;
mod booking;
mod card;
mod ceiling;
mod change;
mod check;
mod cluster;
mod count;
mod decision;
mod demand;
mod explain;
mod explain_text;
mod failed;
mod family;
mod fgd;
mod groups;
mod growths;
mod host;
mod invariants;
mod mig;
mod mig_use;
mod names;
mod nearest;
mod node;
mod note;
mod pair_scores;
mod policy;
mod quota;
mod reason;
mod score;
mod search;
mod selection;
pub mod snapshot;
mod tally;
mod usage;
mod views;
mod walk;
mod workload;

pub use ask::{
    Ask, CardConstraint, ContainerAsk, ContainerKind, InvalidInput, PodAsk, Weights, MAX_CORES_PERCENT,
    MAX_MEMORY_MIB,
};
pub use booking::BookingState;
pub use card::{Amount, CardSpec};
pub use ceiling::Ceiling;
pub use change::{AskField, Change, FaultyCard, Shift};
pub use cluster::Cluster;
pub use decision::{Decision, PlacedShare, BEST_COUNT};
pub use explain::{CardVerdict, Detail, Explanation, NodeVerdict, QuotaVerdict};
pub use failed::FailedNodes;
pub use family::{Families, Family};
pub use host::HostAmount;
pub use mig::{MigInstance, MigPlacement, MigProfile, MIG_SLICES};
pub use nearest::NodeChange;
pub use note::{Note, Notes, NOTES};
pub use pair_scores::CardScores;
pub use policy::{CardPolicy, NodePolicy};
pub use reason::{Reason, ReasonRow, REASONS};
pub use search::Candidates;
pub use tally::reasons_text;
pub use views::{BookingView, BoundClaim, BoundPod, BoundShare, CardView};
pub use workload::WorkloadShape;
