"""Every NATS subject, built here and nowhere else. Below `<prefix>.v1`:

    inventory.<node>.<vendor>
    health.<node>.<device>
    admission.<namespace>.<admitted|rejected>
    placement.<namespace>.<pod-uid>.<placed|unschedulable>
    allocation.<namespace>.<node>.<pod-uid>.<phase>
    usage.<namespace>.<node>.<pod-uid>
    usage.<namespace>.<node>.<pod-uid>.not-enforced
    usage-node.<node>
    usage-node.<node>.out-of-band
    query.<state|explain|what-if|snapshot>

Publishers pass names; readers may pass ANY for a name, which gives a subscription. A name becomes one token whatever
it holds, so text from outside never adds a token or a wildcard.
"""

from __future__ import annotations

import re
from enum import Enum
from hashlib import sha256
from typing import Final

from hami_model.errors import HamiError

DEFAULT_PREFIX: Final = "hami"
VERSION: Final = "v1"
FAMILIES: Final = ("inventory", "health", "admission", "placement", "allocation", "usage", "usage-node")

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_PREFIX_MAX: Final = 64
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_TOKEN_MAX: Final = 256
"""No legal name is longer (a node name has up to 253); longer ones would break the server's limit of a line."""
_TOKEN_KEPT: Final = 180
_EMPTY: Final = "="


class Wildcard(Enum):
    """Its one member stands for any name in a subscription; no text does."""

    ANY = "*"


ANY: Final = Wildcard.ANY
Part = str | Wildcard


class InvalidPrefixError(HamiError):
    """The configured subject prefix cannot be used; the message says what may be."""


def check_prefix(prefix: str) -> str:
    """The prefix itself. Raises InvalidPrefixError."""
    if len(prefix) > _PREFIX_MAX or not _PREFIX.fullmatch(prefix):
        raise InvalidPrefixError(
            f"subject prefix {prefix[:_PREFIX_MAX]!r}: use letters, digits, '-' and '_', in parts joined by single "
            f"dots, at most {_PREFIX_MAX} characters"
        )
    return prefix


def token(text: str) -> str:
    """A name as one token: dots become `_`, other characters than letters, digits and `-` become `=` and their bytes
    in hexadecimal. Different names give different tokens (very long ones by their digest).

    >>> token("node-1.example.org"), token("a b*")
    ('node-1_example_org', 'a=20b=2A')
    """
    raw = text.encode("utf-8", "surrogatepass")
    escaped = "".join(chr(byte) if byte in _PLAIN else "_" if byte == ord(".") else f"={byte:02X}" for byte in raw)
    if len(escaped) > _TOKEN_MAX:
        return f"{escaped[:_TOKEN_KEPT]}=={sha256(raw).hexdigest()[:32]}"
    return escaped or _EMPTY


def inventory(node: Part, vendor: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    return _subject(prefix, "inventory", node, vendor)


def health(node: Part, device: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    return _subject(prefix, "health", node, device)


def admission(namespace: Part, verdict: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    """`verdict`: admitted or rejected."""
    return _subject(prefix, "admission", namespace, verdict)


def placement(namespace: Part, pod_uid: Part, verdict: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    """`verdict`: placed or unschedulable."""
    return _subject(prefix, "placement", namespace, pod_uid, verdict)


def allocation(namespace: Part, node: Part, pod_uid: Part, phase: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    """`phase`: a `lifecycle.Phase`."""
    return _subject(prefix, "allocation", namespace, node, pod_uid, phase)


def usage(namespace: Part, node: Part, pod_uid: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    return _subject(prefix, "usage", namespace, node, pod_uid)


def not_enforced(namespace: Part, node: Part, pod_uid: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    """Beside the pod's samples, so that the last of those stays the last on its subject."""
    return _subject(prefix, "usage", namespace, node, pod_uid, "not-enforced")


def usage_node(node: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    return _subject(prefix, "usage-node", node)


def out_of_band(node: Part, *, prefix: str = DEFAULT_PREFIX) -> str:
    """Beside the node's samples, so that the last of those stays the last on its subject."""
    return _subject(prefix, "usage-node", node, "out-of-band")


def query(name: str, *, prefix: str = DEFAULT_PREFIX) -> str:
    """Where the service answers a request: state, explain or what-if."""
    return _subject(prefix, "query", name)


def family(name: str, *, prefix: str = DEFAULT_PREFIX) -> str:
    """Subscription to all events of one family."""
    return f"{_subject(prefix, name)}.>"


def everything(*, prefix: str = DEFAULT_PREFIX) -> str:
    """Subscription to all events and queries of this version."""
    return f"{_subject(prefix)}.>"


def of_node(node: str, *, prefix: str = DEFAULT_PREFIX) -> tuple[str, ...]:
    """All that services on one node publish: what their NATS user must be allowed."""
    return (
        inventory(node, ANY, prefix=prefix),
        health(node, ANY, prefix=prefix),
        allocation(ANY, node, ANY, ANY, prefix=prefix),
        usage(ANY, node, ANY, prefix=prefix),
        not_enforced(ANY, node, ANY, prefix=prefix),
        usage_node(node, prefix=prefix),
        out_of_band(node, prefix=prefix),
    )


def _subject(prefix: str, *parts: Part) -> str:
    tokens = (part.value if isinstance(part, Wildcard) else token(part) for part in parts)
    return ".".join((check_prefix(prefix), VERSION, *tokens))
