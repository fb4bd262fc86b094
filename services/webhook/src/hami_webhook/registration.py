"""The objects that make the API server ask us, and that keep allocations from being written by others. Pure.

MutatingWebhookConfiguration   cards.webhook.hami.io      fails closed: pods that ask for cards, or carry an allocation
                               every-pod.webhook.hami.io  fails open: all others, where a rule touches every pod
ValidatingAdmissionPolicy      only trusted users change the keys of an allocation
ValidatingAdmissionPolicyBinding
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hami_model import keys
from hami_model.device_config import DeviceConfig

from hami_webhook.core.allocation_keys import OWNED_LABELS, owned_annotations

WEBHOOK_PATH = "/webhook"
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"

KubernetesObject = dict[str, Any]


class ServiceReference(msgspec.Struct, frozen=True, kw_only=True):
    """A Service in the cluster in front of the webhook."""

    namespace: str
    name: str
    port: int = 443


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Where the webhook is, and whom it concerns."""

    target: str | ServiceReference
    """An https URL, or a Service."""
    ca_pem: bytes
    """Certificate authorities that the webhook's certificate is checked with."""
    namespace: str = "hami-system"
    """Our own namespace: its pods must start while the webhook is away."""
    excluded_namespaces: tuple[str, ...] = ("kube-system",)
    trusted_users: tuple[str, ...] = ()
    """User names that may write allocations; empty: the service accounts of our scheduler and node-agent."""
    name: str = "hami-webhook"


def registration_objects(registration: Registration, config: DeviceConfig) -> tuple[KubernetesObject, ...]:
    """The objects in the order in which they are to be applied: the webhook last, when all else is there."""
    return (
        allocation_policy(registration, config),
        allocation_policy_binding(registration),
        webhook_configuration(registration, config),
    )


def webhook_configuration(registration: Registration, config: DeviceConfig) -> KubernetesObject:
    """The MutatingWebhookConfiguration."""
    concerned = _concerns_us(config)
    webhooks = [
        _webhook(registration, "cards.webhook.hami.io", "Fail", {"name": "asks-for-cards", "expression": concerned})
    ]
    if any(settings.overwrite_env or settings.core_policy != "default" for settings in config.vendors):
        others = {"name": "asks-for-no-cards", "expression": f"!({concerned})"}
        webhooks.append(_webhook(registration, "every-pod.webhook.hami.io", "Ignore", others))
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": registration.name},
        "webhooks": webhooks,
    }


def allocation_policy(registration: Registration, config: DeviceConfig) -> KubernetesObject:
    """The ValidatingAdmissionPolicy: keys of an allocation come and go by trusted users only.

    It sees pods after the webhook has taken such keys off, so it refuses a creation only where the webhook is not
    asked. Status writes count too, since they may carry metadata, and bindings, which bring annotations along.
    """
    trusted = registration.trusted_users or default_trusted_users(registration.namespace)
    core_v1 = {"apiGroups": [""], "apiVersions": ["v1"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": _policy_name(registration)},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {**core_v1, "operations": ["CREATE", "UPDATE"], "resources": ["pods", "pods/*", "bindings"]}
                ]
            },
            "matchConditions": [
                {"name": "not-trusted", "expression": f"!(request.userInfo.username in {_cel_list(trusted)})"},
                {"name": "has-metadata", "expression": "has(object.metadata)"},
            ],
            "variables": [
                *_changed_keys("Annotations", "annotations", owned_annotations(config)),
                *_changed_keys("Labels", "labels", OWNED_LABELS),
                {"name": "changed", "expression": "variables.changedAnnotations + variables.changedLabels"},
            ],
            "validations": [
                {
                    "expression": "size(variables.changed) == 0",
                    "messageExpression": "'only the scheduler and the node-agent write an allocation: leave '"
                    " + variables.changed.join(', ') + ' as it is'",
                    "reason": "Forbidden",
                }
            ],
        },
    }


def allocation_policy_binding(registration: Registration) -> KubernetesObject:
    """Puts the policy into effect in the whole cluster."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": _policy_name(registration)},
        "spec": {"policyName": _policy_name(registration), "validationActions": ["Deny"]},
    }


def default_trusted_users(namespace: str) -> tuple[str, ...]:
    """The service accounts that write allocations."""
    return tuple(f"system:serviceaccount:{namespace}:{name}" for name in ("hami-scheduler", "hami-node-agent"))


def _webhook(registration: Registration, name: str, failure_policy: str, condition: dict[str, str]) -> KubernetesObject:
    excluded = sorted({*registration.excluded_namespaces, registration.namespace})
    not_ignored = {"key": keys.WEBHOOK_LABEL, "operator": "NotIn", "values": [keys.WEBHOOK_IGNORE]}
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": _client_config(registration),
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "namespaceSelector": {
            "matchExpressions": [
                {"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": excluded},
                not_ignored,
            ]
        },
        "objectSelector": {"matchExpressions": [not_ignored]},
        "matchConditions": [condition],
        "failurePolicy": failure_policy,
        "matchPolicy": "Equivalent",
        # A sidecar that another webhook adds later may ask for cards too; a second look changes nothing twice.
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 10 if failure_policy == "Fail" else 5,
    }


def _client_config(registration: Registration) -> KubernetesObject:
    bundle = {"caBundle": base64.b64encode(registration.ca_pem).decode()}
    if isinstance(registration.target, str):
        return {**bundle, "url": registration.target}
    service = registration.target
    return {
        **bundle,
        "service": {
            "namespace": service.namespace,
            "name": service.name,
            "port": service.port,
            "path": WEBHOOK_PATH,
        },
    }


def _concerns_us(config: DeviceConfig) -> str:
    """CEL: a container asks for a managed resource, or the pod carries keys of an allocation."""
    resources = _cel_list(sorted(config.managed_resources))
    asks = " || ".join(
        f"(has(c.resources.{table}) && c.resources.{table}.exists(r, r in {resources}))"
        for table in ("limits", "requests")
    )
    containers = " || ".join(
        f"(has(object.spec.{field}) && object.spec.{field}.exists(c, has(c.resources) && ({asks})))"
        for field in ("containers", "initContainers")
    )
    allocated = " || ".join(
        f"(has(object.metadata.{field}) && object.metadata.{field}.exists(k, k in {_cel_list(owned)}))"
        for field, owned in (("annotations", owned_annotations(config)), ("labels", OWNED_LABELS))
    )
    return f"{containers} || {allocated}"


def _changed_keys(suffix: str, field: str, owned: Sequence[str]) -> list[dict[str, str]]:
    before, after = f"variables.before{suffix}", f"variables.after{suffix}"
    same = f"(k in {before}) == (k in {after}) && (!(k in {after}) || {before}[k] == {after}[k])"
    return [
        {
            "name": f"before{suffix}",
            "expression": f"oldObject != null && has(oldObject.metadata.{field}) ? oldObject.metadata.{field} : {{}}",
        },
        {"name": f"after{suffix}", "expression": f"has(object.metadata.{field}) ? object.metadata.{field} : {{}}"},
        {"name": f"changed{suffix}", "expression": f"{_cel_list(owned)}.filter(k, !({same}))"},
    ]


def _policy_name(registration: Registration) -> str:
    return f"{registration.name}-allocations"


def _cel_list(texts: Sequence[str]) -> str:
    """A list of string literals; JSON's escapes are among those of CEL."""
    return "[" + ", ".join(json.dumps(text) for text in texts) + "]"
