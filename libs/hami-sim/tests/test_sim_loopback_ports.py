"""Free ports are different, free, and outside the range of outgoing connections."""

from __future__ import annotations

import socket

import pytest
from hami_sim.loopback_ports import NoFreePortError, are_free, choose_free_ports


def test_ports_are_different_and_free() -> None:
    ports = choose_free_ports(20)
    assert len(set(ports)) == 20
    assert are_free(ports)
    assert all(12_000 <= port <= 32_000 for port in ports)


def test_a_port_is_given_once_though_nobody_listens_there_yet() -> None:
    """A cluster's services and its control plane choose theirs one after the other, and listen later."""
    chosen = [port for _ in range(100) for port in choose_free_ports(10)]
    assert len(set(chosen)) == len(chosen)


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not are_free([server.getsockname()[1]])


def test_too_many_ports_are_refused() -> None:
    with pytest.raises(NoFreePortError, match="of 3000 ports"):
        choose_free_ports(3000)
