"""Free TCP ports on loopback for programs that cannot be told to choose their own."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
# Below Linux' default range for outgoing connections, so that none of these takes a port before its program binds it.
FIRST_PORT = 12_000
LAST_PORT = 32_000
ATTEMPTS = 2_000

_given: set[int] = set()
"""By this process, in its whole life: whoever was given one may not listen yet, or may listen there again."""
_choosing = threading.Lock()


class NoFreePortError(Exception):
    """Not enough ports of the range are free."""


def choose_free_ports(count: int) -> list[int]:
    """Different ports of 12000-32000 that nobody listens on now, at random so that neighbours rarely collide.

    A process gets no port twice. Raises NoFreePortError.
    """
    chooser = random.SystemRandom()
    with _choosing, ExitStack() as held:
        ports: list[int] = []
        for _ in range(ATTEMPTS):
            if len(ports) == count:
                break
            port = chooser.randint(FIRST_PORT, LAST_PORT)
            listener = _bound(port) if port not in _given else None
            if listener is not None:
                held.enter_context(listener)  # held to the end, so that no port is chosen twice
                ports.append(port)
    if len(ports) < count:
        raise NoFreePortError(f"only {len(ports)} of {count} ports between {FIRST_PORT} and {LAST_PORT} are free")
    _given.update(ports)
    return ports


def are_free(ports: list[int]) -> bool:
    """Whether nobody listens on any of these ports now."""
    for port in ports:
        listener = _bound(port)
        if listener is None:
            return False
        listener.close()
    return True


def _bound(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As Go's servers do: a port whose last connections are in TIME_WAIT is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError:
        listener.close()
        return None
    return listener
