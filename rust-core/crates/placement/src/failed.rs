//! The nodes that do not fit, told in ways that stay cheap for thousands of nodes: they share few texts.

use crate::decision::{Decision, FITS};
use crate::reason::{Reason, REASONS};

/// Nodes that do not fit, each with the number of its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedNodes<'a> {
    /// The texts kube-scheduler shows, each once.
    pub texts: Vec<String>,
    /// Sorted by name, with the place of the node's text.
    pub nodes: Vec<(&'a str, usize)>,
}

impl<'a> FailedNodes<'a> {
    /// Each node with its text.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &str)> {
        self.nodes.iter().map(|(name, text)| (*name, self.texts[*text].as_str()))
    }

    /// A JSON object from node to text.
    pub fn to_json(&self) -> String {
        let values: Vec<String> = self
            .texts
            .iter()
            .map(|text| {
                let mut value = String::with_capacity(text.len() + 4);
                value.push(':');
                push_json_string(&mut value, text);
                value
            })
            .collect();
        let room = self.nodes.iter().map(|(name, text)| name.len() + values[*text].len() + 3).sum::<usize>();
        let mut json = String::with_capacity(room + 2);
        json.push('{');
        for (number, (name, text)) in self.nodes.iter().enumerate() {
            if number > 0 {
                json.push(',');
            }
            push_json_string(&mut json, name);
            json.push_str(&values[*text]);
        }
        json.push('}');
        json
    }
}

/// Appends a JSON string. Names come from requests: they may hold anything.
fn push_json_string(json: &mut String, text: &str) {
    json.push('"');
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        for letter in text.chars() {
            match letter {
                '"' => json.push_str("\\\""),
                '\\' => json.push_str("\\\\"),
                letter if letter < ' ' => {
                    let digits = [u32::from(letter) / 16, u32::from(letter) % 16];
                    json.push_str("\\u00");
                    json.extend(digits.into_iter().filter_map(|digit| char::from_digit(digit, 16)));
                }
                letter => json.push(letter),
            }
        }
    } else {
        json.push_str(text);
    }
    json.push('"');
}

impl Decision {
    /// Nodes that do not fit. `never` Some: only those that never (or may yet) fit.
    ///
    /// Nodes that are not registered come last among the texts and count as not now.
    pub fn failed(&self, never: Option<bool>) -> FailedNodes<'_> {
        let mut failed = FailedNodes {
            texts: self.tallies.iter().map(|(tally, _)| tally.text()).collect(),
            nodes: self
                .rows
                .iter()
                .filter(|row| row.tally != FITS && never.is_none_or(|never| row.never == never))
                .map(|row| (self.name(row.node), row.tally as usize))
                .collect(),
        };
        if never != Some(true) && !self.unregistered.is_empty() {
            let text = failed.texts.len();
            failed.texts.push(Reason::NodeUnregistered.bare_text().to_string());
            failed.nodes.extend(self.unregistered.iter().map(|name| (name.as_str(), text)));
        }
        // By name; candidates most often come sorted, which costs one pass.
        failed.nodes.sort_unstable();
        failed
    }

    /// The text of each node that does not fit, by name; `never` as in [`Self::failed`].
    pub fn failed_nodes(&self, never: Option<bool>) -> Vec<(&str, String)> {
        self.failed(never).iter().map(|(name, text)| (name, text.to_string())).collect()
    }

    /// How many nodes never fit.
    pub fn never_count(&self) -> usize {
        self.rows.iter().filter(|row| row.tally != FITS && row.never).count()
    }

    /// For each reason met, on how many nodes, and the first `limit` of these by name; in the order of the codes.
    pub fn nodes_by_reason(&self, limit: usize) -> Vec<(Reason, usize, Vec<&str>)> {
        let failed = self.failed(None);
        let mut told: Vec<(Reason, usize, Vec<&str>)> =
            REASONS.iter().map(|row| (row.reason, 0, Vec::new())).collect();
        let reasons: Vec<Vec<Reason>> = self
            .tallies
            .iter()
            .map(|(tally, _)| tally.reasons().collect())
            .chain([vec![Reason::NodeUnregistered]])
            .collect();
        for (name, text) in failed.nodes {
            for reason in &reasons[text] {
                let (_, count, names) = &mut told[*reason as usize];
                *count += 1;
                if names.len() < limit {
                    names.push(name);
                }
            }
        }
        told.retain(|(_, count, _)| *count > 0);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_any_names_and_texts() {
        let failed = FailedNodes {
            texts: vec!["1/2 CardCordoned".into(), "a \"b\"".into()],
            nodes: vec![("a", 0), ("b\\\n\u{e9}", 1), ("c", 0)],
        };
        assert_eq!(
            failed.to_json(),
            "{\"a\":\"1/2 CardCordoned\",\"b\\\\\\u000a\u{e9}\":\"a \\\"b\\\"\",\"c\":\"1/2 CardCordoned\"}"
        );
        assert_eq!(FailedNodes::default().to_json(), "{}");
    }
}
