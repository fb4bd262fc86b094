"""Lets these tests share the builders of other packages' tests."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for folder in (
    Path(__file__).parent,
    ROOT / "tests/conformance",
    ROOT / "services/scheduler/tests",
    ROOT / "services/node-agent/tests",
):
    sys.path.insert(0, str(folder))
