"""Following the events of a cluster."""

from __future__ import annotations

import pytest
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.follow_events import follow


@pytest.mark.parametrize("subject", ["two words", "hami..v1", "hami."])
async def test_what_is_no_subject_is_an_error_that_names_it(nats_url: str, subject: str) -> None:
    with pytest.raises(ClusterError, match=f"'{subject}' is no subject of NATS"):
        await anext(follow(nats_url, subject))
