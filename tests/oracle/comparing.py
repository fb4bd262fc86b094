"""One case on both sides: the first step whose answers differ, or the state at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine_side import EngineSide
from oracle_side import OracleSide

Json = dict[str, Any]
Observer = Callable[[Json, object], None]
"""Is told each step with the oracle's answer."""

LIMIT_TEXT = 300


class Difference(NamedTuple):
    """Where the two sides part. `step` is the number of steps where the states at the end differ."""

    step: int
    oracle: object
    engine: object

    @property
    def is_error(self) -> bool:
        """The engine raised, or ended in a panic."""
        return isinstance(self.engine, str)

    def __str__(self) -> str:
        return "\n".join(_parts(f"step {self.step}", self.oracle, self.engine))


def compare(case: Json, observe: Observer | None = None, *, self_check: bool = True) -> Difference | None:
    """`self_check`: what the engine finds wrong with its own sums is a difference too."""
    oracle, engine = OracleSide(case["families"]), EngineSide(case["families"])
    for number, step in enumerate(case["steps"]):
        expected = oracle.do(step)
        if observe is not None:
            observe(step, expected)
        found = _guarded(engine, step)
        if expected != found:
            return Difference(number, expected, found)
    expected, found = oracle.state(), engine.state()
    if not self_check:
        found["faults"] = []
    if not _same_state(expected, found):
        return Difference(len(case["steps"]), expected, found)
    return None


def _guarded(engine: EngineSide, step: Json) -> object:
    try:
        return engine.do(step)
    except Exception as error:  # noqa: BLE001  # whatever the engine raises is its answer
        return f"{type(error).__name__}: {error}"
    except BaseException as error:  # a panic of the engine is one too; anything else goes on
        if type(error).__name__ != "PanicException":
            raise
        return f"panic: {error}"


def _same_state(expected: Json, found: Json) -> bool:
    """Quotas that one side does not name are unused."""
    names = {*expected["quotas"], *found["quotas"]}
    quotas = all(expected["quotas"].get(name, (0, 0)) == found["quotas"].get(name, (0, 0)) for name in names)
    return quotas and all(expected[part] == found[part] for part in ("nodes", "pods", "faults"))


def _parts(path: str, oracle: object, engine: object) -> list[str]:
    """What differs, part by part."""
    if isinstance(oracle, dict) and isinstance(engine, dict):
        keys = sorted({*oracle, *engine}, key=str)
        return [
            line
            for key in keys
            if oracle.get(key) != engine.get(key)
            for line in _parts(f"{path}.{key}", oracle.get(key), engine.get(key))
        ]
    if isinstance(oracle, list) and isinstance(engine, list) and len(oracle) == len(engine):
        pairs = enumerate(zip(oracle, engine, strict=True))
        return [line for n, (left, right) in pairs if left != right for line in _parts(f"{path}[{n}]", left, right)]
    return [f"{path}: oracle {oracle!r:.{LIMIT_TEXT}}", f"{path}: engine {engine!r:.{LIMIT_TEXT}}"]
