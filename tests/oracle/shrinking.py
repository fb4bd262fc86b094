"""Makes a failing case small: parts are left out or made simpler as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
Path = tuple[str | int, ...]

KEPT = frozenset(
    {"steps", "families", "word", "do", "uid", "namespace", "node", "id", "vendor", "name", "kind", "card_id", "model"}
)
"""Fields that name things; without them nothing is left to compare."""


def shrink(case: Json, fails: Callable[[Json], bool], *, most_tries: int = 4000) -> Json:
    """The smallest found. `fails` runs at most `most_tries` times."""
    tries = 0
    found = True
    while found:
        found = False
        for smaller in _smaller(case):
            tries += 1
            if tries > most_tries:
                return case
            if _still_fails(smaller, fails):
                case = smaller
                found = True
                break
    return case


def _still_fails(case: Json, fails: Callable[[Json], bool]) -> bool:
    try:
        return fails(case)
    except (KeyError, IndexError, TypeError, ValueError):
        return False  # no case any more


def _smaller(case: Json) -> Iterator[Json]:
    """Large cuts first."""
    steps = case["steps"]
    size = len(steps) // 2
    while size > 1:
        for start in range(0, len(steps), size):
            yield {**case, "steps": steps[:start] + steps[start + size :]}
        size //= 2
    for path, value in _places(case):
        if isinstance(value, list):
            for number in range(len(value)):
                yield _with(case, path, value[:number] + value[number + 1 :])
    for path, value in _places(case):
        if isinstance(value, dict):
            for key in value:
                if key not in KEPT:
                    yield _with(case, path, {name: part for name, part in value.items() if name != key})
    for path, value in _places(case):
        for simpler in _simpler(path, value):
            yield _with(case, path, simpler)


def _places(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    yield path, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _places(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _places(part, (*path, number))


def _simpler(path: Path, value: object) -> list[object]:
    if isinstance(value, bool):
        simple = path[-1] == "healthy"
        return [simple] if value != simple else []
    if isinstance(value, int):
        return [number for number in (0, 1, value // 2, value - 1) if abs(number) < abs(value)]
    if isinstance(value, str) and "," in value:
        return list(value.split(","))
    return []


def _with(value: Any, path: Path, part: object) -> Any:
    if not path:
        return part
    key, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, key: _with(value[key], rest, part)}
    return [*value[: int(key)], _with(value[key], rest, part), *value[int(key) + 1 :]]
