"""Late binding's Allocate: a fresh name, and placeholders that fail closed. Who it is for is found out later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami_model import env
from kubelet_api import deviceplugin_v1beta1_pb2 as pb

from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.core import cdi_spec

PLACEHOLDERS = {env.VISIBLE_CARDS: env.VISIBLE_CARDS_VOID, env.HANDOFF: env.HANDOFF_PENDING}


class LateBindingHandoff:
    """Answers kubelet where the hand-off is late binding."""

    prefers = False

    def __init__(self, late_binding: LateBinding, new_name: Callable[[], str]) -> None:
        self._late_binding = late_binding
        self._new_name = new_name

    async def preferred(self, requests: Sequence[pb.ContainerPreferredAllocationRequest]) -> list[list[str]]:
        """Any ids will do: they only count."""
        return [[] for _ in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[pb.ContainerAllocateResponse]:
        return [
            pb.ContainerAllocateResponse(
                envs=PLACEHOLDERS, cdi_devices=[pb.CDIDevice(name=cdi_spec.device_name(self._new_name()))]
            )
            for _ in requests
        ]

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._late_binding.pre_start(device_ids)
