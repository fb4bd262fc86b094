"""Root task: looks at the per-node file again and again; what changed in it holds at once where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent
from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_chassis.log import get_logger
from hami_model.errors import HamiError

from hami_node_agent.core.node_options import NodeOptions, taken_over

log = get_logger("per-node-file")

NEEDS_RESTART: Final = "NodeConfigurationNeedsRestart"
UNUSABLE: Final = "NodeConfigurationUnusable"
_LOOK_SECONDS: Final = 5.0
"""Kubelet itself takes up to a minute to show a changed ConfigMap."""


class OverridesWatch:
    """What cannot be used changes nothing, and is told once."""

    def __init__(
        self,
        started: NodeOptions,
        read: Callable[[], NodeOptions],
        use: Sequence[Callable[[NodeOptions], None]],
        *,
        recorder: EventRecorder,
        node_name: str,
        clock: Clock,
    ) -> None:
        """`read` answers what the file says now; it raises Permanent or NodeOptionsError, and blocks."""
        self._started = started
        self._running = started
        self._read = read
        self._use = tuple(use)
        self._recorder = recorder
        self._node_name = node_name
        self._clock = clock
        self._told = ""

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Reads the file once."""
        try:
            found = await asyncio.to_thread(self._read)
        except (Permanent, HamiError) as error:
            self._tell(UNUSABLE, f"{error}; what held before holds on")
            return
        wanted, waiting = taken_over(self._started, found)
        if waiting:
            self._tell(
                NEEDS_RESTART,
                f"the per-node file changed {', '.join(waiting)}, which holds only once the node-agent is started anew",
            )
        else:
            self._told = ""
        if wanted == self._running:
            return
        for warning in wanted.warnings:
            if warning not in self._running.warnings:
                log.warning("per-node-configuration", problem=warning)
        log.info("per-node-file-changed")
        self._running = wanted
        for use in self._use:
            use(wanted)

    def _tell(self, reason: str, message: str) -> None:
        if message == self._told:
            return
        self._told = message
        log.warning("node-event", reason=reason, message=message)
        about = ObjectReference(kind="Node", name=self._node_name, uid=self._node_name)
        self._recorder.emit(about, reason=reason, message=message, event_type="Warning")
