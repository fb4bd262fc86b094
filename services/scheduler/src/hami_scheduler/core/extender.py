"""The scheduler extender's JSON, as kube-scheduler sends and expects it.

Bodies are decoded in one pass into the fields we read. Keys are capitalised on the wire; bodies that spell them
otherwise (Go readers accept any case) take a slower path.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from hami_model import go_json, kube
from hami_model.errors import MalformedJson

from hami_scheduler.core.filter import FilterAnswer
from hami_scheduler.core.simulation import SimulationAnswer


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """Node objects as they came: an answer gives them back byte for byte, fields that we do not read included."""

    metadata: dict[str, Any] = {}
    items: list[msgspec.Raw] | None = None


class FilterArguments(msgspec.Struct, frozen=True, kw_only=True):
    pod: kube.Pod = msgspec.field(name="Pod")
    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    """Full Node objects: sent only by callers that simulate (nodeCacheCapable false)."""
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)


class FilterResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to /filter. Field names are those of the wire."""

    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    failed_nodes: dict[str, str] | msgspec.Raw | None = msgspec.field(name="FailedNodes", default=None)
    failed_and_unresolvable_nodes: dict[str, str] | msgspec.Raw | None = msgspec.field(
        name="FailedAndUnresolvableNodes", default=None
    )
    error: str = msgspec.field(name="Error", default="")


class BindArguments(msgspec.Struct, frozen=True, kw_only=True):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindResult(msgspec.Struct, frozen=True, kw_only=True):
    error: str = msgspec.field(name="Error", default="")


_NUMBER_MAX: Final = 400
"""Characters: no field holds a longer number."""

_Arguments = TypeVar("_Arguments", FilterArguments, BindArguments)

_FILTER_DECODER = msgspec.json.Decoder(FilterArguments)
_NODE_DECODER = msgspec.json.Decoder(kube.Node)
_BIND_DECODER = msgspec.json.Decoder(BindArguments)
_ENCODER = msgspec.json.Encoder()


def decode_filter(body: bytes) -> FilterArguments:
    """Raises MalformedJson, which names the place."""
    try:
        return _FILTER_DECODER.decode(body)
    except msgspec.ValidationError as error:
        return _any_case(body, FilterArguments, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedJson(f"extender arguments: {error}") from error


def decode_nodes(found: NodeList) -> list[kube.Node]:
    """The Node objects, reduced to the fields that we read. Raises MalformedJson, which names the place."""
    nodes: list[kube.Node] = []
    for position, raw in enumerate(found.items or ()):
        try:
            nodes.append(_NODE_DECODER.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedJson(f"extender arguments: Nodes.items[{position}]: {error}") from error
    return nodes


def decode_bind(body: bytes) -> BindArguments:
    """Raises MalformedJson, which names the place."""
    try:
        return _BIND_DECODER.decode(body)
    except msgspec.ValidationError as error:
        return _any_case(body, BindArguments, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedJson(f"extender arguments: {error}") from error


def _any_case(body: bytes, shape: type[_Arguments], first: msgspec.ValidationError) -> _Arguments:
    """Go readers take keys of any case and the last of duplicates."""
    try:
        tree = go_json.parse(body.decode(errors="replace"))
        names = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(shape)}
        document = _plain(tree)
        if not isinstance(document, dict):
            raise MalformedJson("extender arguments: expected an object")
        named = {names.get(key.lower(), key): value for key, value in document.items()}
        if isinstance(node_list := named.get("Nodes"), dict):
            named["Nodes"] = {key.lower(): value for key, value in node_list.items()}
        return msgspec.json.decode(msgspec.json.encode(named), type=shape)
    except (msgspec.ValidationError, RecursionError):
        raise MalformedJson(f"extender arguments: {first}") from first


def _plain(tree: object) -> object:
    if isinstance(tree, go_json.Object):
        return {key: _plain(value) for key, value in tree.pairs}
    if isinstance(tree, list):
        return [_plain(element) for element in tree]
    if isinstance(tree, go_json.Number):
        if len(tree.text) > _NUMBER_MAX:
            raise MalformedJson(f"extender arguments: a number of {len(tree.text)} characters")
        return float(tree.text) if any(mark in tree.text for mark in ".eE") else int(tree.text)
    return tree


def filter_result(answer: FilterAnswer) -> FilterResult:
    """The answer in the words of the wire."""
    if answer.error is not None:
        return FilterResult(error=answer.error)
    if answer.node_names is not None:
        return FilterResult(node_names=answer.node_names)
    if answer.rejection is None:
        return FilterResult(failed_and_unresolvable_nodes=answer.unresolvable_nodes or None)
    # Thousands of nodes share few texts: the engine writes the objects, each text once.
    never = answer.rejection.never_nodes
    return FilterResult(
        failed_nodes=msgspec.Raw(answer.rejection.not_now_json()) if never < answer.rejection.candidate_nodes else None,
        failed_and_unresolvable_nodes=msgspec.Raw(answer.rejection.never_json()) if never else None,
    )


def simulation_result(answer: SimulationAnswer, sent: NodeList, names: list[str]) -> FilterResult:
    """The answer in the words of the wire, with those of the sent Node objects (their `names`) that fit."""
    if answer.error is not None:
        return FilterResult(error=answer.error)
    fitting = set(answer.fitting)
    items = [raw for raw, name in zip(sent.items or (), names, strict=True) if name in fitting]
    return FilterResult(
        nodes=NodeList(items=items) if fitting else None,
        failed_nodes=answer.failed_nodes or None,
        failed_and_unresolvable_nodes=answer.unresolvable_nodes or None,
    )


def encode(result: FilterResult | BindResult) -> bytes:
    return _ENCODER.encode(result)
