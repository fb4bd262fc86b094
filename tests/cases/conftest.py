"""Failures that real users met, tried on running services. Lets these tests use the builders of the services' own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hami_sim.fake_kube import FakeKube

HERE = Path(__file__).parent
SERVICES = HERE.parents[1] / "services"
for folder in (HERE, *(SERVICES / service / "tests" for service in ("scheduler", "webhook", "node-agent"))):
    sys.path.insert(0, str(folder))


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()
