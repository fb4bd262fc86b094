"""Logs: one event per line, readable by machines, with its context."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import msgspec
import pytest
import structlog
from hami_chassis.log import LogSettings, configure_logging, get_logger, log_context


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Other tests keep the logging they had."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("aiohttp", "asyncio", "nats", "kubernetes_asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, previous in levels.items():
        logging.getLogger(name).setLevel(previous)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_event_fields_level_time_and_context():
    stream = io.StringIO()
    configure_logging(LogSettings(), service="scheduler", stream=stream, node="n1")
    with log_context(pod_uid="u", trace_id="t"):
        get_logger("bind").info("pod-bound", cards=["a", "b"], took_seconds=0.5)
    get_logger("bind").warning("later", error=ValueError("odd\nmessage"))
    first, second = lines(stream)
    time = first.pop("time")
    assert str(time).endswith("Z")
    assert first == {
        "event": "pod-bound", "level": "info", "logger": "bind", "service": "scheduler", "node": "n1",
        "pod_uid": "u", "trace_id": "t", "cards": ["a", "b"], "took_seconds": 0.5,
    }  # fmt: skip
    assert "pod_uid" not in second
    assert second["error"] == "odd\nmessage"


def test_a_name_that_is_no_text_costs_no_line():
    stream = io.StringIO()
    configure_logging(LogSettings(), service="monitor", stream=stream)
    get_logger("regions").warning("unreadable", file="\udcff.cache", number=1 << 80, error=ValueError("odd"))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["file"] == "\udcff.cache"
    assert json.loads(line)["error"] == "odd"


def test_the_level_is_respected_and_libraries_speak_the_same_way():
    stream = io.StringIO()
    configure_logging(LogSettings(level="warning"), service="s", stream=stream)
    get_logger("a").info("not shown")
    get_logger("a").error("shown")
    logging.getLogger("somelib").info("not shown")
    logging.getLogger("somelib").warning("from %s", "a library")
    logging.getLogger("aiohttp.server").debug("never shown")
    assert [(line["event"], line["logger"], line["service"]) for line in lines(stream)] == [
        ("shown", "a", "s"),
        ("from a library", "somelib", "s"),
    ]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_traceback_is_one_event_and_shows_no_local_values(log_format):
    stream = io.StringIO()
    configure_logging(LogSettings(format=log_format), service="s", stream=stream)
    password = "hush-" + "hush"
    try:
        raise KeyError(len(password))
    except KeyError as error:
        get_logger("a").error("failed", exc_info=error)
    assert "KeyError" in stream.getvalue()
    assert "hush-hush" not in stream.getvalue()
    if log_format == "json":
        assert len(lines(stream)) == 1


def test_text_is_for_people():
    stream = io.StringIO()
    configure_logging(LogSettings(format="text"), service="s", stream=stream)
    get_logger("a").info("pod-bound", node="n1")
    shown = stream.getvalue()
    assert "pod-bound" in shown
    assert "node=n1" in shown
    assert "\x1b" not in shown  # no colours where no terminal is
