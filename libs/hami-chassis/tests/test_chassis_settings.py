"""Settings: every source, every fault at once, secrets masked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest
import yaml
from hami_chassis.bus import BusSettings
from hami_chassis.command_line import settings_from_command_line
from hami_chassis.http import HttpSettings
from hami_chassis.kube import KubeSettings, LeaderSettings
from hami_chassis.log import LogSettings
from hami_chassis.settings import MASK, Secret, SettingsError, load_settings, masked, settable_fields
from hami_chassis.tls import TlsSettings
from hypothesis import given
from hypothesis import strategies as st


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    weight: int = 1


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    port: int = 80
    ratio: float = 0.5
    on: bool = False
    mode: Literal["fast", "slow"] = "fast"
    names: list[str] = []
    pair: tuple[str, ...] = ("a",)
    limits: dict[str, int] = {}
    rules: list[Rule] = []
    maybe: int | None = None
    password: Secret = ""

    def faults(self):
        if self.port == self.maybe:
            yield "port", "must differ from maybe"


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    some_field: str = "x"


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inner: Inner = Inner()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log: LogSettings = LogSettings()
    group: Group = Group()
    outer: Outer = Outer()
    name: str = "n"


def load(tmp_path: Path, text: str = "", *, environment: dict[str, str] | None = None, sets=()) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load_settings(Settings, file=file, environment=environment or {}, sets=sets)


def test_without_any_source_the_defaults_hold():
    assert load_settings(Settings, environment={}) == Settings()


def test_later_sources_win(tmp_path):
    got = load(
        tmp_path,
        "group: {port: 1, ratio: 0.1, mode: slow}\nname: file",
        environment={"HAMI_GROUP_PORT": "2", "HAMI_GROUP_RATIO": "0.2"},
        sets=["group.port=3"],
    )
    assert (got.group.port, got.group.ratio, got.group.mode, got.name) == (3, 0.2, "slow", "file")


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("group.port", "7", 7),
        ("group.ratio", "2", 2.0),
        ("group.on", "true", True),
        ("group.on", "0", False),
        ("group.mode", "slow", "slow"),
        ("group.names", "a, b", ["a", "b"]),
        ("group.names", "[a, b]", ["a", "b"]),
        ("group.names", "", []),
        ("group.pair", "x,y", ("x", "y")),
        ("group.limits", "{a: 1}", {"a": 1}),
        ("group.rules", "[{name: r, weight: 2}]", [Rule("r", 2)]),
        ("group.maybe", "5", 5),
        ("group.maybe", "null", None),
        ("group.password", "123", "123"),
        ("outer.inner.some_field", "yes", "yes"),
        ("outer.inner.some-field", "a=b", "a=b"),
        ("name", "", ""),
    ],
)
def test_text_from_command_line_and_environment(path, text, expected):
    by_set = load_settings(Settings, environment={}, sets=[f"{path}={text}"])
    variable = f"HAMI_{path.replace('.', '_').replace('-', '_').upper()}"
    by_environment = load_settings(Settings, environment={variable: text})
    assert by_set == by_environment
    value = by_set
    for part in path.replace("-", "_").split("."):
        value = getattr(value, part)
    assert value == expected


def test_all_faults_come_at_once_with_path_and_source(tmp_path):
    with pytest.raises(SettingsError) as caught:
        load(
            tmp_path,
            yaml.safe_dump(
                {
                    "group": {
                        "port": "eighty", "unknown": 1, "mode": "warp", "names": ["ok", 7, 8],
                        "rules": [{"name": 1}, {"weight": 2}, {"name": "x", "more": 1}], "limits": {"a": "x"},
                    },
                    "extra": {},
                    "outer": "flat",
                    "log": {"level": "loud"},
                }
            ),
            environment={"HAMI_GROUP_RATIO": "much"},
            sets=["group.on=perhaps", "nonsense", "group.nothing=1"],
        )  # fmt: skip
    faults = {fault.path: fault for fault in caught.value.faults}
    assert set(faults) == {
        "group.port", "group.unknown", "group.mode", "group.names[1]", "group.names[2]", "group.rules[0].name",
        "group.rules[1]", "group.rules[2]", "group.limits.a", "extra", "outer", "log.level", "group.ratio",
        "group.on", "nonsense", "group.nothing",
    }  # fmt: skip
    assert faults["group.ratio"].source == "HAMI_GROUP_RATIO"
    assert faults["group.on"].source == "--set group.on=perhaps"
    assert faults["group.port"].source.endswith("settings.yaml")
    assert "port" in faults["group.unknown"].message
    for path in faults:
        assert path in str(caught.value)


def test_fields_that_do_not_fit_together_are_faults(tmp_path):
    with pytest.raises(SettingsError, match=r"group\.port: must differ from maybe"):
        load(tmp_path, "group: {port: 5, maybe: 5}")


@pytest.mark.parametrize(
    "text", [pytest.param("a: [", id="no YAML"), pytest.param("- a", id="a list"), pytest.param("7", id="a number"),
        pytest.param("a: 2001-02-30", id="no day"), pytest.param("[" * 5000, id="deep")],
)  # fmt: skip
def test_a_file_that_is_no_mapping_is_one_fault(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert len(caught.value.faults) == 1


def test_a_missing_file_is_a_fault(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(Settings, file=tmp_path / "missing", environment={})


def test_empty_groups_and_files_are_the_defaults(tmp_path):
    assert load(tmp_path, "") == Settings()
    assert load(tmp_path, "group:\nouter: {inner: }\n") == Settings()


def test_the_environment_of_kubernetes_services_is_left_alone():
    environment = {"HAMI_SCHEDULER_SERVICE_HOST": "10.0.0.1", "HAMI_GROUP_PORT_443_TCP": "tcp://10.0.0.1:443"}
    assert load_settings(Settings, environment=environment) == Settings()


def test_a_field_without_default_must_be_set():
    class Needy(msgspec.Struct, frozen=True, kw_only=True):
        a: int
        b: str

    with pytest.raises(SettingsError) as caught:
        load_settings(Needy, environment={})
    assert [fault.path for fault in caught.value.faults] == ["a", "b"]


def test_secrets_are_masked_and_their_text_is_in_no_fault(tmp_path):
    shown = masked(load(tmp_path, "group: {password: hush}"))
    assert shown["group"]["password"] == MASK
    assert "hush" not in str(shown)
    assert masked(Settings())["group"]["password"] == ""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, "group: {password: [hush]}")
    assert "hush" not in str(caught.value)


SETTABLE = [leaf.path for leaf in settable_fields(Settings)]


@given(
    st.dictionaries(
        st.sampled_from(["group", "outer", "log", "name", "what"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*SETTABLE, "port", "rules", "x"]), inner),
            max_leaves=12,
        ),
    ),
    st.lists(st.tuples(st.sampled_from(SETTABLE), st.text())),
)
def test_whatever_is_given_ends_in_settings_or_in_faults(tmp_path_factory, document, sets):
    folder = tmp_path_factory.mktemp("settings")
    try:
        got = load(folder, yaml.safe_dump(document), sets=[f"{path}={text}" for path, text in sets])
    except SettingsError as error:
        faults = error.faults
        assert faults  # either way is right; a fault must be told
    else:
        assert isinstance(got, Settings)
        assert load(folder, yaml.safe_dump(msgspec.to_builtins(got))) == got


@pytest.mark.parametrize(
    "group",
    [BusSettings, HttpSettings, KubeSettings, LeaderSettings, LogSettings, TlsSettings],
    ids=lambda t: t.__name__,
)
def test_the_groups_of_the_chassis_have_defaults(group):
    assert load_settings(group, environment={}) == group()


# ---- command line --------------------------------------------------------------------------------------------


def test_the_command_line_reads_file_and_sets(tmp_path, monkeypatch):
    monkeypatch.delenv("HAMI_NAME", raising=False)
    file = tmp_path / "s.json"
    file.write_text('{"name": "from-file"}')
    argv = ["--config", str(file), "--set", "group.port=9", "--log-format", "text", "--log-level", "debug"]
    got = settings_from_command_line(Settings, program="hami-test", argv=argv)
    assert (got.name, got.group.port, got.log.format, got.log.level) == ("from-file", 9, "text", "debug")


def test_wrong_settings_end_the_process_with_every_fault_on_stderr(capsys):
    with pytest.raises(SystemExit) as caught:
        settings_from_command_line(Settings, program="hami-test", argv=["--set", "a=1", "--set", "group.port=x"])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert "a: there is no such setting" in shown
    assert "group.port" in shown


def test_an_unknown_setting_is_answered_with_those_of_its_group(capsys):
    with pytest.raises(SystemExit):
        settings_from_command_line(Settings, program="hami-test", argv=["--set", "group.prot=1"])
    told = next(line for line in capsys.readouterr().err.splitlines() if "there is no such setting" in line)
    assert "group.port" in told
    assert "log.level" not in told


def test_settings_can_be_printed(capsys):
    with pytest.raises(SystemExit) as caught:
        settings_from_command_line(
            Settings, program="hami-test", argv=["--set", "group.password=p", "--print-settings"]
        )
    assert caught.value.code == 0
    assert msgspec.json.decode(capsys.readouterr().out)["group"]["password"] == MASK


def test_help_names_every_setting(capsys):
    with pytest.raises(SystemExit):
        settings_from_command_line(Settings, program="hami-test", argv=["--help"])
    shown = capsys.readouterr().out
    assert all(path in shown for path in SETTABLE)
