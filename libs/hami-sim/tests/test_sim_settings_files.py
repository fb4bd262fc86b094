"""Settings files of services: made anew at each start, with what the operator edited."""

from __future__ import annotations

import json

import pytest
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.settings_files import edited_since, put_settings

MADE = {"log": {"level": "info"}, "http": {"port": 1}, "nodes": ["a"]}


def edited(file, **settings):
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.parametrize(
    ("edit", "expected", "names"),
    [
        pytest.param({}, MADE | {"http": {"port": 2}}, (), id="nothing"),
        pytest.param(
            {"log": {"level": "debug"}},
            {"log": {"level": "debug"}, "http": {"port": 2}, "nodes": ["a"]},
            ("log.level",),
            id="a value",
        ),
        pytest.param(
            {"log": {"level": "info", "format": "json"}, "more": {"x": {"y": 1}}},
            {"log": {"level": "info", "format": "json"}, "http": {"port": 2}, "nodes": ["a"], "more": {"x": {"y": 1}}},
            ("log.format", "more.x.y"),
            id="settings that were not there",
        ),
        pytest.param({"nodes": []}, MADE | {"http": {"port": 2}, "nodes": []}, ("nodes",), id="a list"),
    ],
)
def test_what_was_edited_stays_beside_what_is_new(tmp_path, edit, expected, names):
    file = tmp_path / "scheduler-0.json"
    assert put_settings(file, MADE) == ()
    edited(file, **edit)
    for _ in range(2):
        assert put_settings(file, MADE | {"http": {"port": 2}}) == names
        assert json.loads(file.read_text()) == expected


def test_what_was_edited_since_the_start_is_named(tmp_path):
    file = tmp_path / "scheduler-0.json"
    assert edited_since(file) == ()
    put_settings(file, MADE)
    assert edited_since(file) == ()
    edited(file, log={"level": "debug"}, more=1)
    assert edited_since(file) == ("log.level", "more")
    put_settings(file, MADE)  # started anew, with the edits
    assert edited_since(file) == ()
    file.write_text(json.dumps(MADE))
    assert edited_since(file) == ("log.level", "more")


def test_a_file_that_cannot_be_understood_is_named_and_stays(tmp_path):
    file = tmp_path / "scheduler-0.json"
    put_settings(file, MADE)
    file.write_text("{")
    with pytest.raises(ClusterError, match=r"scheduler-0\.json: .*remove it"):
        put_settings(file, MADE)
    assert file.read_text() == "{"
    file.unlink()
    assert put_settings(file, MADE) == ()
