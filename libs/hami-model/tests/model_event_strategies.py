"""Arbitrary events of any type, for property tests."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
from hami_model.events import Event
from hypothesis import strategies as st
from msgspec import inspect

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_ZONES = st.integers(-12 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=_ZONES)  # noqa: DTZ001  # zones are drawn
_COMPUTED = ("id", "sequence")


def events_of(event: type[Event]) -> st.SearchStrategy[Event]:
    """Events of one type with arbitrary values in every field that is not computed."""
    fields = {field.name: _values(field.type) for field in _struct(event).fields if field.name not in _COMPUTED}
    return st.builds(event, **fields)


def _struct(of: type[msgspec.Struct]) -> inspect.StructType:
    info = inspect.type_info(of)
    assert isinstance(info, inspect.StructType)
    return info


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: PLR0911  # one a kind of type
    match info:
        case inspect.Metadata(type=inner):
            return _values(inner)
        case inspect.StrType():
            return TEXTS
        case inspect.IntType():
            return st.integers(-(2**63), 2**63 - 1)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.DateTimeType():
            return _TIMES
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.UnionType(types=types):
            return st.one_of([_values(one) for one in types])
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=2).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=3)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case _:
            raise TypeError(f"teach the strategies about {info}")
