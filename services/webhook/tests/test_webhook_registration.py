"""The objects that register the webhook. Whether the API server takes them: tests/integration."""

from __future__ import annotations

import base64
import json

import pytest
from hami_model import device_config
from hami_webhook.registration import (
    Registration,
    ServiceReference,
    default_trusted_users,
    registration_objects,
    webhook_configuration,
)
from webhook_builders import configured

CONFIG = device_config.default_config()
BY_URL = Registration(target="https://127.0.0.1:9443/webhook", ca_pem=b"authority")


def test_objects_and_their_order() -> None:
    kinds = [found["kind"] for found in registration_objects(BY_URL, CONFIG)]
    assert kinds == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
    ]


@pytest.mark.parametrize(
    ("settings", "entries"),
    [
        pytest.param({}, [("cards.webhook.hami.io", "Fail")], id="no rule touches every pod"),
        pytest.param(
            {"overwrite_env": True},
            [("cards.webhook.hami.io", "Fail"), ("every-pod.webhook.hami.io", "Ignore")],
            id="cards are hidden from every other pod",
        ),
        pytest.param(
            {"core_policy": "force"},
            [("cards.webhook.hami.io", "Fail"), ("every-pod.webhook.hami.io", "Ignore")],
            id="a core policy for every container",
        ),
    ],
)
def test_entries_and_what_happens_without_us(settings: dict[str, object], entries: list[tuple[str, str]]) -> None:
    found = webhook_configuration(BY_URL, configured(**settings))["webhooks"]
    assert [(entry["name"], entry["failurePolicy"]) for entry in found] == entries


def test_our_own_and_the_systems_namespaces_are_left_out() -> None:
    registration = Registration(
        target="https://x", ca_pem=b"", namespace="ours", excluded_namespaces=("kube-system", "also")
    )
    (entry,) = webhook_configuration(registration, CONFIG)["webhooks"]
    by_name, by_label = entry["namespaceSelector"]["matchExpressions"]
    assert by_name["values"] == ["also", "kube-system", "ours"]
    assert by_label == {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    assert entry["objectSelector"]["matchExpressions"] == [by_label]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("https://127.0.0.1:1/webhook", {"url": "https://127.0.0.1:1/webhook"}),
        (
            ServiceReference(namespace="ns", name="svc", port=8443),
            {"service": {"namespace": "ns", "name": "svc", "port": 8443, "path": "/webhook"}},
        ),
    ],
)
def test_client_config(target: str | ServiceReference, expected: dict[str, object]) -> None:
    (entry,) = webhook_configuration(Registration(target=target, ca_pem=b"pem"), CONFIG)["webhooks"]
    assert entry["clientConfig"] == {"caBundle": base64.b64encode(b"pem").decode(), **expected}


def test_every_managed_resource_is_named_in_the_condition() -> None:
    (entry,) = webhook_configuration(BY_URL, CONFIG)["webhooks"]
    (condition,) = entry["matchConditions"]
    for name in CONFIG.managed_resources:
        assert json.dumps(name) in condition["expression"]


@pytest.mark.parametrize("users", [(), ("somebody",)])
def test_who_may_write_allocations(users: tuple[str, ...]) -> None:
    registration = Registration(target="https://x", ca_pem=b"", namespace="ours", trusted_users=users)
    rule = registration_objects(registration, CONFIG)[0]["spec"]["matchConditions"][0]["expression"]
    for user in users or default_trusted_users("ours"):
        assert json.dumps(user) in rule
