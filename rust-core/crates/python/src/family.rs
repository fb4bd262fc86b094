//! Families of accelerators.

use pyo3::prelude::*;

/// One family of accelerators: what distinguishes it by data.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Family(pub(crate) placement::Family);

#[pymethods]
impl Family {
    #[new]
    #[pyo3(signature = (*, word, model_contains="", whole_card_is_exclusive=true, zero_cores_need_free_cores=true, most_cores_percent=100, partitioned_mode="", has_pair_scores=false, selection="first", group_weight=0.0))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a value")]
    fn new(
        word: &str,
        model_contains: &str,
        whole_card_is_exclusive: bool,
        zero_cores_need_free_cores: bool,
        most_cores_percent: i64,
        partitioned_mode: &str,
        has_pair_scores: bool,
        selection: &str,
        group_weight: f32,
    ) -> Self {
        Self(placement::Family {
            word: word.into(),
            model_contains: model_contains.to_lowercase(),
            whole_card_is_exclusive,
            zero_cores_need_free_cores,
            most_cores_percent,
            partitioned_mode: partitioned_mode.into(),
            has_pair_scores,
            selection: selection.into(),
            group_weight,
        })
    }
}
