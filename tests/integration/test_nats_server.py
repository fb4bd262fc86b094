"""The local nats-server: JetStream works, its streams outlive it, and a stop leaves nothing."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest
from hami_sim.loopback_ports import are_free
from hami_sim.nats_server import NatsServer
from hami_sim.processes import ProcessError


async def test_the_shared_server_has_jetstream(nats_url: str) -> None:
    client = await nats.connect(nats_url)
    account = await client.jetstream(timeout=120).account_info()
    assert account.limits is not None
    await client.close()


async def test_a_stream_outlives_its_server(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server:
        client = await nats.connect(server.url)
        await client.jetstream(timeout=120).add_stream(name="KEPT", subjects=["kept.>"])
        await client.jetstream(timeout=120).publish("kept.one", b"body", stream="KEPT")
        await client.close()
    assert not server.program.is_alive()
    assert are_free([server.port, server.monitor_port])

    async with await NatsServer.start(tmp_path, port=server.port, monitor_port=server.monitor_port) as again:
        client = await nats.connect(again.url)
        kept = await client.jetstream(timeout=120).get_last_msg("KEPT", "kept.one")
        assert kept.data == b"body"
        await client.close()


async def test_a_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="nats-server ended while it was starting"):
        await NatsServer.start(tmp_path, extra_arguments=("--no-such-flag",))
