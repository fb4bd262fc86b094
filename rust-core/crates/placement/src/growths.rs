//! How much each node's fragmentation would grow by a pod, kept from pod to pod: pods come in few shapes, and a node's
//! answer to one stays the same until the node changes.

use crate::ask::PodAsk;

/// Most rows kept of all tables together; 16 bytes each.
const MOST_ROWS: usize = 1 << 20;

/// The growths of one request.
struct Table {
    request: PodAsk,
    /// When it was last used.
    used: u64,
    /// By place: the version of the node, and the growth. No version is 0.
    rows: Vec<(u64, i64)>,
}

/// The tables of the requests met last.
#[derive(Default)]
pub(crate) struct Growths {
    tables: Vec<Table>,
    epoch: u64,
    uses: u64,
    /// The table of the request at hand, if its growths are kept at all.
    current: Option<usize>,
}

impl Growths {
    /// Turns to a request; `epoch` changes when no kept growth holds any more.
    pub(crate) fn turn_to(&mut self, request: &PodAsk, places: usize, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.tables.clear();
        }
        self.uses += 1;
        let found = self.tables.iter().position(|table| table.request.asks_as(request));
        let number = found.unwrap_or_else(|| {
            if (self.tables.len() + 1) * places > MOST_ROWS && !self.tables.is_empty() {
                let oldest =
                    (0..self.tables.len()).min_by_key(|number| self.tables[*number].used).unwrap_or(0);
                self.tables.swap_remove(oldest);
            }
            self.tables.push(Table { request: request.clone(), used: 0, rows: Vec::new() });
            self.tables.len() - 1
        });
        let table = &mut self.tables[number];
        table.used = self.uses;
        table.rows.resize(places, (0, 0));
        self.current = Some(number);
    }

    /// Turns to a request whose growths are not kept.
    pub(crate) fn turn_away(&mut self) {
        self.current = None;
    }

    #[inline]
    pub(crate) fn known(&self, place: u32, version: u64) -> Option<i64> {
        let row = self.tables[self.current?].rows[place as usize];
        (row.0 == version).then_some(row.1)
    }

    pub(crate) fn keep(&mut self, place: u32, version: u64, growth: i64) {
        if let Some(current) = self.current {
            self.tables[current].rows[place as usize] = (version, growth);
        }
    }
}
