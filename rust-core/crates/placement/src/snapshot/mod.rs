//! The state as one readable file, and back: a user's bug report becomes a test.
//!
//! A snapshot holds what went into the engine, not what it made of it: families, cards, quotas, bookings. Equal
//! states give equal bytes. It may also hold [`Operation`]s with the answers that were given, to be replayed.
//!
//! A new field of a type in here joins by `#[derive]`; give it `#[serde(default)]`, so that older files stay readable.
//! What a file says beyond what this version knows is refused: ignoring it could change a decision.

mod anonymise;
mod answer;
mod layout;
mod operation;
mod recording;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ask::{ContainerKind, InvalidInput};
use crate::booking::BookingState;
use crate::card::CardSpec;
use crate::family::Family;
use crate::host::HostAmount;
use crate::mig::MigInstance;
use crate::views::BoundClaim;
use crate::workload::WorkloadShape;

pub use answer::Answer;
pub use operation::{Operation, Question};
pub use recording::Recording;

/// What `format` says in a snapshot.
pub const FORMAT: &str = "hami-engine-snapshot";
/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// The state of a cluster, and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    format: String,
    version: u32,
    /// In the order in which the cluster knows them.
    pub families: Vec<Family>,
    /// The registered nodes, by name.
    pub nodes: Vec<NodeRecord>,
    /// Limits, by namespace and vendor.
    pub quotas: Vec<QuotaRecord>,
    /// What pods hold, by UID.
    pub bookings: Vec<BookingRecord>,
    /// The pods that the policy `fgd` expects. None: as those that are booked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Vec<WorkloadShape>>,
    /// To be done with the state, in this order.
    #[serde(default)]
    pub operations: Vec<Operation>,
}

/// A registered node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// In the order of its inventory; `healthy` is the present state.
    pub cards: Vec<CardSpec>,
    /// How well a card is connected with its peers, by their ids. Empty: the node tells none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pair_scores: BTreeMap<String, BTreeMap<String, i64>>,
    /// What of its host is free. None: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostAmount>,
}

/// Limits of one namespace and vendor. None: no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaRecord {
    /// The namespace.
    pub namespace: String,
    /// The vendor word.
    pub vendor: String,
    /// Memory in MiB.
    pub memory_mib: Option<i64>,
    /// Cores in percent of one card.
    pub cores_percent: Option<i64>,
}

/// What one pod holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BookingRecord {
    /// The pod's UID.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The node, registered or not.
    pub node: String,
    /// How firm the booking is.
    pub state: BookingState,
    /// Whether all one-shot init containers have ended.
    pub init_done: bool,
    /// Containers in their order.
    pub shares: Vec<ShareRecord>,
    /// MIG instances it claims beyond its shares, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<BoundClaim>,
    /// Cards that take no new pods while this pod stands, sorted.
    pub blocked_cards: Vec<String>,
}

/// One card's share of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRecord {
    /// Number of the container in its pod, init containers first.
    pub container: u16,
    /// When the container runs.
    pub kind: ContainerKind,
    /// The card's id.
    pub card_id: String,
    /// The vendor word.
    pub vendor: String,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Cores in percent of one card.
    pub cores_percent: i64,
    /// Where it lies on a card in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Arc<MigInstance>>,
}

/// Why a file is no state.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SnapshotError {
    /// Not JSON, or not of this shape.
    #[error("line {line}, column {column}{at}: {problem}", at = at(path))]
    Unreadable {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Place in the document (`nodes[3].cards[0].slots`); empty where it is the document.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// Another kind of file.
    #[error("format is {0:?}; a snapshot of the engine says {FORMAT:?}")]
    Format(String),
    /// Written by another version.
    #[error("the file has version {0} of the format, this program reads version {VERSION}; use the version of hami-engine that wrote it")]
    Version(u32),
    /// Readable, but the engine takes no such value.
    #[error("{path}: {problem}")]
    Invalid {
        /// Place in the document.
        path: String,
        /// What is wrong.
        problem: InvalidInput,
    },
    /// Readable, but something comes twice.
    #[error("{path}: {name:?} comes twice")]
    Twice {
        /// Place of the second one.
        path: String,
        /// What comes twice.
        name: String,
    },
}

fn at(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!(", {path}")
    }
}

/// Says where in the document a value was refused.
fn invalid(path: impl FnOnce() -> String) -> impl FnOnce(InvalidInput) -> SnapshotError {
    |problem| SnapshotError::Invalid { path: path(), problem }
}

#[derive(Deserialize)]
#[serde(expecting = "a snapshot")]
struct Header {
    format: String,
    version: u32,
}

/// Reads a snapshot. Any bytes give a snapshot or an error, nothing else.
///
/// # Errors
/// When the bytes are no snapshot of this version; the error names the place.
pub fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let header: Header = parse(bytes)?;
    if header.format != FORMAT {
        return Err(SnapshotError::Format(header.format));
    }
    if header.version != VERSION {
        return Err(SnapshotError::Version(header.version));
    }
    let mut snapshot: Snapshot = parse(bytes)?;
    for (number, shape) in snapshot.workload.iter_mut().flatten().enumerate() {
        shape.settle().map_err(invalid(|| format!("workload[{number}]")))?;
    }
    for (number, operation) in snapshot.operations.iter_mut().enumerate() {
        operation.settle().map_err(invalid(|| format!("operations[{number}]")))?;
    }
    Ok(snapshot)
}

/// The fast way where all is well, and once more with the path where it is not.
fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, SnapshotError> {
    serde_json::from_slice(bytes).map_err(|first| {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let tracked: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
        let path = tracked.err().map(|error| error.path().to_string()).filter(|path| path != ".");
        let text = first.to_string();
        let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_string();
        let (line, column) = (first.line(), first.column());
        SnapshotError::Unreadable { line, column, path: path.unwrap_or_default(), problem }
    })
}

impl Snapshot {
    /// The file: one line a card, a booking's share, or a part of an operation.
    pub fn write(&self) -> Vec<u8> {
        layout::write(self)
    }

    /// Adds an operation, to be done after those that are there.
    pub fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }
}
