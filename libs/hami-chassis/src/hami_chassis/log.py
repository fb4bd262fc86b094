"""Logs: one event per line, a name and fields.

`get_logger(area).info("pod-bound", node=..., pod_uid=...)` writes one JSON line (or one readable line with the
format `text`). Context that every line below carries is bound with `log_context`. Lines of the libraries that use
`logging` come out the same way.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO, cast

import msgspec
import structlog

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
Logger = structlog.typing.FilteringBoundLogger

_LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is written, and in which form."""

    level: LogLevel = "info"
    """The least important level that is still written."""
    format: LogFormat = "json"
    """`json` for machines, `text` for a person at a terminal."""


def configure_logging(settings: LogSettings, *, service: str, stream: TextIO | None = None, **bound: str) -> None:
    """Sets logging up for the whole process; every line carries `service` and what else is bound here."""
    output = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        structlog.processors.UnicodeDecoder(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=_encode_line)
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=output.isatty(),
            timestamp_key="time",
            # The default one prints local variables, secrets among them.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level]),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[settings.level])
    # Their debug lines repeat every request and every protocol operation.
    for chatty in ("aiohttp", "asyncio", "nats", "kubernetes_asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, _LEVELS[settings.level]))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, **bound)


def get_logger(area: str) -> Logger:
    """A logger whose lines carry the name of that area."""
    return cast("Logger", structlog.stdlib.get_logger(area))


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Every line written inside carries these fields (`node`, `pod_uid`, `trace_id` ...)."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def _encode_line(event: object, **_options: object) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str, order="sorted").decode()
    except (UnicodeEncodeError, OverflowError):  # names of files that are no text; numbers beyond 64 bits
        return json.dumps(event, default=str, sort_keys=True)
