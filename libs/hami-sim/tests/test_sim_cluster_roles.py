"""Roles that were applied count before anybody who needs them begins."""

from __future__ import annotations

import pytest
from aiohttp import web
from hami_sim.cluster.artefacts import KUBERNETES_OBJECTS
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.objects import identities
from hami_sim.cluster.roles import wait_until_roles_count
from http_client import client_of


async def test_each_binding_is_asked_for_until_its_right_is_there():
    documents = identities(KUBERNETES_OBJECTS)
    refused_once: set[tuple[str, str]] = set()
    allowed: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        spec = (await request.json())["spec"]
        right = spec["user"], spec["resourceAttributes"]["namespace"]
        known = right in refused_once
        refused_once.add(right)
        if known:
            allowed.append(right)
        return web.json_response({"status": {"allowed": known}})

    async with client_of(answer) as client:
        await wait_until_roles_count(client, documents)
    prefix = "system:serviceaccount:hami-system:hami"
    assert set(allowed) == {
        (f"{prefix}-scheduler", ""),
        (f"{prefix}-scheduler", "hami-system"),
        (f"{prefix}-webhook", ""),
        (f"{prefix}-node-agent", ""),
        (f"{prefix}-monitor", ""),
        (f"{prefix}-kube-scheduler", "hami-system"),
    }


async def test_a_right_that_never_comes_is_named():
    async def refuse(_request: web.Request) -> web.Response:
        return web.json_response({"status": {"allowed": False}})

    async with client_of(refuse) as client:
        with pytest.raises(ClusterError, match=r"refuses system:serviceaccount:hami-system:hami-.*'verb': "):
            await wait_until_roles_count(client, identities(KUBERNETES_OBJECTS), timeout_seconds=0)
