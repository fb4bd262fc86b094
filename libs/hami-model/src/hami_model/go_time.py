"""Times as HAMi writes them into annotations, read as leniently as Go reads these two layouts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from hami_model.errors import MalformedError

_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_CLOCK: Final = r"(?P<hour>\d\d?):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,32}))?"
_ZONE: Final = r"(?:Z|(?P<sign>[+-])(?P<zone_hour>\d\d):(?P<zone_minute>\d\d))"
_NAIVE: Final = re.compile(f"{_DATE} {_CLOCK}", re.ASCII)
_RFC3339: Final = re.compile(f"{_DATE}T{_CLOCK}{_ZONE}", re.ASCII)
_LONGEST: Final = 64


class MalformedTime(MalformedError):  # noqa: N818  # reads as the state of the text
    """A text is no time of the expected layout."""


def parse_rfc3339(text: str) -> datetime:
    """In UTC; digits beyond the microsecond are dropped. Raises MalformedTime."""
    match = _match(_RFC3339, text, "2026-11-29T19:57:01Z")
    offset = timedelta(hours=int(match["zone_hour"] or 0), minutes=int(match["zone_minute"] or 0))
    try:
        zone = timezone(-offset if match["sign"] == "-" else offset)
        return _datetime(match, zone).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MalformedTime(f"{text!r} is no time: {error}") from error


def parse_naive_utc(text: str) -> datetime:
    """Of the layout `2026-11-29 19:57:01`, taken as UTC. Raises MalformedTime."""
    match = _match(_NAIVE, text, "2026-11-29 19:57:01")
    try:
        return _datetime(match, UTC)
    except ValueError as error:
        raise MalformedTime(f"{text!r} is no time: {error}") from error


def format_rfc3339(time: datetime) -> str:
    """In UTC, whole seconds."""
    return f"{_whole_seconds(time).isoformat()}Z"


def format_naive_utc(time: datetime) -> str:
    """In UTC, whole seconds."""
    return _whole_seconds(time).isoformat(sep=" ")


def _whole_seconds(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(microsecond=0, tzinfo=None)


def _match(pattern: re.Pattern[str], text: str, example: str) -> re.Match[str]:
    match = pattern.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise MalformedTime(f"{text[:_LONGEST]!r} is no time; write it as {example}")
    return match


def _datetime(match: re.Match[str], zone: timezone) -> datetime:
    year, month, day, hour, minute, second = (
        int(match[part]) for part in ("year", "month", "day", "hour", "minute", "second")
    )
    microsecond = int((match["fraction"] or "")[:6].ljust(6, "0"))
    return datetime(year, month, day, hour, minute, second, microsecond, tzinfo=zone)
