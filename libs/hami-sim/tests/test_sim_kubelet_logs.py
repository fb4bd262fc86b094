"""Logs of containers, as the API server asks for them."""

import asyncio

import aiohttp
from kubelet_node import container


async def test_logs_are_served(prefix_node):
    node = prefix_node
    async with node.kubelet(), aiohttp.ClientSession(f"http://127.0.0.1:{node.log_port}") as session:
        node.run(container(f"echo one; echo two; while [ ! -e {node.root}/go ]; do sleep 0.05; done; echo three"))
        await node.running()
        while node.log().count("\n") < 2:  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        path = "/containerLogs/default/pod/main"

        async def get(query: str) -> tuple[int, str]:
            async with session.get(path + query) as response:
                return response.status, await response.text()

        assert await get("") == (200, "one\ntwo\n")
        assert await get("?tailLines=1") == (200, "two\n")
        assert await get("?tailLines=0") == (200, "")
        assert await get("?limitBytes=5") == (200, "one\nt")
        assert (await get("?timestamps=true"))[0] == 400
        assert (await get("?previous=true"))[0] == 404
        async with session.get(path + "?follow=true&tailLines=1") as following:
            assert await following.content.readline() == b"two\n"
            (node.root / "go").touch()
            assert await following.content.read() == b"three\n"
        async with session.get("/containerLogs/default/none/main") as response:
            assert response.status == 404
