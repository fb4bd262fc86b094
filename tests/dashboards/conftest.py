"""Lets the tests of this folder share their files, and the end-to-end tests' words."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "e2e", HERE.parents[1] / "tools/observability"):
    sys.path.insert(0, str(folder))
