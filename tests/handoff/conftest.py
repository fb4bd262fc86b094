"""From Allocate to the container's start, over real sockets: lives of pods, restarts, changes of the hand-off."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for folder in (
    Path(__file__).parent,
    ROOT / "tests" / "cases",
    *(ROOT / "services" / service / "tests" for service in ("scheduler", "webhook", "node-agent")),
):
    sys.path.insert(0, str(folder))
