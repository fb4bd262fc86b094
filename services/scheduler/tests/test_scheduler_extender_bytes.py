"""Whatever bytes arrive: the decoders give arguments or say that they are malformed, and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hami_model.errors import MalformedJson
from hami_scheduler.core import extender
from hypothesis import example, given
from hypothesis import strategies as st
from scheduler_builders import pod

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
filter_keys = st.sampled_from(["Pod", "pod", "POD", "Nodes", "NodeNames", "nodenames", "x"])
bind_keys = st.sampled_from(["PodName", "podname", "PodNamespace", "PodUID", "Node", "NODE", "x"])


def read(body: bytes) -> None:
    for decode in (extender.decode_filter, extender.decode_bind):
        with suppress(MalformedJson):
            decode(body)


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"pod":' + b"9" * 10_000 + b"}")
@example(b'{"pod":1e999}')
@example(b'{"Pod":{"metadata":{"name":"\xff\xfe"}}}')
@example(b'{"pod":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
def test_any_bytes(body: bytes) -> None:
    read(body)


@given(st.lists(st.tuples(filter_keys | bind_keys, values | st.just(pod("a"))), max_size=5))
def test_any_object(members: list[tuple[str, Any]]) -> None:
    read(("{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in members) + "}").encode())


@given(st.data())
def test_a_torn_body(data: st.DataObject) -> None:
    whole = json.dumps({"Pod": pod("a"), "Nodes": None, "NodeNames": ["n1"]}).encode()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedJson):
        extender.decode_filter(whole[:cut])
