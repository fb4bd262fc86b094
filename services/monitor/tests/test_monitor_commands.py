"""The command line: what an operator sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hami_chassis.settings import SettingsError, load_settings
from hami_monitor.config import MonitorSettings
from hami_monitor.main import app
from monitor_builders import CARD_A, Slot, region_bytes
from typer.testing import CliRunner

RUN = CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.cache"
    path.write_bytes(region_bytes(limits={0: 3000}, slots=[Slot(pid=7, used={0: 5})]))
    return path


def test_region_as_json(file: Path) -> None:
    result = RUN.invoke(app, ["region", str(file), "--json"])
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert (shown["layout"], shown["parser"], shown["version"]) == ("v1", "v1", [1, 2])
    assert shown["read"]["devices"][0]["uuid_label"] == CARD_A
    assert (shown["read"]["devices"][0]["limit"], shown["read"]["devices"][0]["total"]) == (3000, 5)
    assert shown["processes"] == [{"pid": 7, "hostpid": 0, "status": 1, "used": {"0": 5}}]


def test_region_as_a_table(file: Path) -> None:
    result = RUN.invoke(app, ["region", str(file)])
    assert result.exit_code == 0
    assert CARD_A in result.stdout
    assert "process 7 (host unknown): card 0: 5" in result.stdout


def test_what_a_container_wrote_does_not_reach_the_terminal_raw(file: Path) -> None:
    file.write_bytes(region_bytes(cards=(b"\x1b[2Jhello",)))
    result = RUN.invoke(app, ["region", str(file)])
    assert "\x1b" not in result.stdout
    assert "?[2Jhello" in result.stdout


def test_an_unreadable_region(file: Path) -> None:
    file.write_bytes(b"no region")
    plain = RUN.invoke(app, ["region", str(file)])
    assert plain.exit_code == 1
    assert "too few" in plain.stderr
    as_json = RUN.invoke(app, ["region", str(file), "--json"])
    assert as_json.exit_code == 1
    assert "too few" in json.loads(as_json.stdout)["error"]
    missing = RUN.invoke(app, ["region", str(file.with_name("b"))])
    assert missing.exit_code == 1
    assert "No such file" in missing.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_cannot_be_read_is_named(file: Path, options: tuple[str, ...]) -> None:
    file.write_bytes(b"no region")
    for path in (file, file.parent, file.with_name("missing")):
        result = RUN.invoke(app, ["region", str(path), *options])
        assert result.exit_code == 1
        assert f"{path}: " in (json.loads(result.stdout)["error"] if options else result.stderr)


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        (["node.name="], "node.name must be set"),
        (["node.nam=x"], "node.nam"),
        (["node.name=n", "sampling.period_seconds=0"], "sampling.period_seconds"),
        (["node.name=n", "metrics.hami_legacy_names=true"], "needs metrics.hami_names"),
        (["node.name=n", "node.device_config_file=/does/not/exist"], "node.device_config_file"),
    ],
)
def test_settings_that_cannot_be_used_are_named(sets: list[str], problem: str) -> None:
    result = RUN.invoke(app, ["serve", *(word for one in sets for word in ("--set", one))])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_settings_from_the_environment() -> None:
    found = load_settings(
        MonitorSettings, environment={"HAMI_NODE_NAME": "n1", "HAMI_NODE_HOOK_PATH": "/opt"}, file=None
    )
    assert (found.node.name, found.node.hook_path) == ("n1", "/opt")
    with pytest.raises(SettingsError):
        load_settings(MonitorSettings, environment={"HAMI_SAMPLING_PERIOD_SECONDS": "soon"}, file=None)
