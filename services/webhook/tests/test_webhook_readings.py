"""What an admitted user is told where a number counts as another."""

import pytest
from webhook_builders import container, gpu_pod, pod, review_pod


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        pytest.param({"gpu": "1", "gpucores": "130"}, "nvidia.com/gpucores 130 is more than one card", id="cores"),
        pytest.param({"gpu": "1", "gpucores": "4294967346"}, "counts as 100", id="cores beyond 32 bits"),
        pytest.param(
            {"gpu": "1", "gpumem": "1000", "gpumem-percentage": "50"}, "does not count beside nvidia.com/gpumem",
            id="memory and percentage",
        ),
        pytest.param({"gpu": "1", "gpumem-percentage": "0"}, "0 counts as not given", id="percentage of nothing"),
        pytest.param({"gpu": "1", "gpucores": "100"}, None, id="a whole card"),
        pytest.param({"gpu": "1", "gpumem": "0", "gpumem-percentage": "50"}, None, id="no memory, a percentage"),
        pytest.param({"gpu": "1", "gpucores": "-1"}, None, id="what the API server refuses"),
        pytest.param({"gpu": "0", "gpucores": "130"}, None, id="no card"),
    ],
)  # fmt: skip
def test_the_user_is_told_what_a_quantity_counts_as(limits: dict[str, str], told: str | None) -> None:
    reviewed = review_pod(gpu_pod(**limits))
    assert reviewed.allowed
    if told is None:
        assert reviewed.warnings == []
    else:
        (warning,) = reviewed.warnings
        assert "container main: " in warning
        assert told in warning


def test_init_containers_and_the_pods_own_scheduler_are_looked_at_alike() -> None:
    document = pod(container())
    document["spec"]["initContainers"] = [
        container("prepare", limits={"nvidia.com/gpu": "1", "nvidia.com/gpucores": "101"})
    ]
    (warning,) = review_pod(document).warnings
    assert warning.startswith("container prepare: nvidia.com/gpucores 101")
    document["spec"]["schedulerName"] = "another"
    assert review_pod(document).warnings == []
