"""Lets the tests of this folder share their builders, and an API server."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hami_sim.fake_kube import FakeKube

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()
