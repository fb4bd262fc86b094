"""The command line: what an operator sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hami_webhook.main import app
from typer.testing import CliRunner
from webhook_builders import gpu_pod, review_body

RUN = CliRunner()


def written(folder: Path, text: str) -> str:
    path = folder / "input"
    path.write_text(text)
    return str(path)


def test_review_of_a_pod(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["review", written(tmp_path, yaml.safe_dump(gpu_pod(gpu=1)))])
    assert result.exit_code == 0
    assert 'add /spec/schedulerName "hami-scheduler"' in result.stdout
    assert "gpucores" in result.stdout


def test_review_from_standard_input_as_json() -> None:
    body = review_body(gpu_pod(gpumem=100)).decode()
    result = RUN.invoke(app, ["review", "-", "--json", "--set", "admission.scheduler_name=mine"], input=body)
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["allowed"]
    assert {"op": "add", "path": "/spec/schedulerName", "value": "mine"} in shown["patch"]


def test_review_that_refuses(tmp_path: Path) -> None:
    document = gpu_pod(gpu=1)
    document["spec"]["nodeName"] = "n1"
    result = RUN.invoke(app, ["review", written(tmp_path, json.dumps(document))])
    assert result.exit_code == 1
    assert "refused: pod has node assigned" in result.stdout
    assert "nodeSelector" in result.stdout


def test_review_by_a_device_configuration(tmp_path: Path) -> None:
    (tmp_path / "devices.yaml").write_text(
        "nvidia:\n  resourceCountName: corp.example/gpu\n  resourceCoreName: corp.example/cores\n"
    )
    setting = f"admission.device_config_file={tmp_path / 'devices.yaml'}"
    pod = gpu_pod(gpu=1)
    pod["spec"]["containers"][0]["resources"]["limits"] = {"corp.example/gpu": "1"}
    result = RUN.invoke(app, ["review", written(tmp_path, json.dumps(pod)), "--set", setting])
    assert "corp.example~1cores" in result.stdout


def test_registration(tmp_path: Path) -> None:
    authority = written(tmp_path, "authority")
    as_yaml = RUN.invoke(app, ["registration", "--url", "https://127.0.0.1:1/webhook", "--ca", authority])
    assert as_yaml.exit_code == 0
    as_json = RUN.invoke(
        app, ["registration", "--url", "https://127.0.0.1:1/webhook", "--ca", authority, "--output", "json"]
    )
    assert json.loads(as_json.stdout)["items"] == list(yaml.safe_load_all(as_yaml.stdout))


def test_help_names_every_setting() -> None:
    shown = RUN.invoke(app, ["serve", "--help"]).stdout.split()
    for setting in ("admission.scheduler_name", "tls.cert_file", "events.streams.replicas", "bus.servers"):
        assert setting in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param(["serve"], "tls.cert_file must be set", id="serve without a certificate"),
        pytest.param(["serve", "--set", "admission.unknown=1"], "no such setting", id="an unknown setting"),
        pytest.param(["serve", "--config", "/does/not/exist"], "/does/not/exist", id="no such file"),
        pytest.param(["review", "/does/not/exist"], "/does/not/exist", id="no such pod"),
        pytest.param(
            ["review", "-", "--set", "admission.device_config_file=/none"], "/none", id="no such device configuration"
        ),
        pytest.param(["registration", "--ca", "/none"], "either --url or --service", id="neither URL nor Service"),
        pytest.param(["registration", "--ca", "/none", "--url", "https://x"], "/none", id="no such authority"),
        pytest.param(["registration", "--ca", "/dev/null", "--service", "x"], "NAMESPACE/NAME", id="half a Service"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], problem: str) -> None:
    result = RUN.invoke(app, arguments, input="{}")
    assert result.exit_code == 2
    assert problem in result.stderr
