"""An AdmissionReview (v1 or v1beta1), from the bytes of the request to the bytes of the answer.

    bytes ─decode─▶ Review ─decide─▶ Verdict ─encode─▶ bytes

`answer` does all three. The order of the decision is HAMi's: containers, other scheduler, rules of the families,
privileged, node, quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec
from hami_model import kube, quantity
from hami_model.device_config import DeviceConfig

from hami_webhook.core import readings
from hami_webhook.core.mutate import Mutation, claim, mutate, strip_allocation
from hami_webhook.core.patch import JsonObject, Patch, Remove
from hami_webhook.core.quota import NamespaceQuota, QuotaView, overruns
from hami_webhook.core.refusal import Refusal, RefusalKind, denied, malformed

KUBERNETES_DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_API_VERSION = "admission.k8s.io/v1"
OTHER_SCHEDULER = "pod already has different scheduler assigned"
QUOTA_UNKNOWN = "the namespace's quota on cards is not known yet; it is checked when the pod is placed"
JSON_CONTENT_TYPE = "application/json"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How this cluster wants its pods treated."""

    config: DeviceConfig
    scheduler_name: str = ""
    """Our scheduler; empty: pods are completed but not routed."""
    force_overwrite: bool = True
    """A pod that names `default-scheduler`, as the API server fills in, is ours too."""
    allow_privileged: bool = False
    """Lets privileged containers into pods that ask for cards. Nothing can hold such a container to its share."""
    explain_in_message: bool = False
    """Adds to HAMi's short message what the user can change."""


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that is needed."""

    api_version: str
    uid: str
    namespace: str
    operation: str
    dry_run: bool
    raw: JsonObject
    """The pod as sent."""
    pod: kube.Pod


class Undecodable(msgspec.Struct, frozen=True, kw_only=True):
    """A request that holds no pod to decide about."""

    http_status: int
    api_version: str = DEFAULT_API_VERSION
    uid: str = ""
    refusal: Refusal


class QuotaCheck(StrEnum):
    """Whether the quota was looked at. Label of a metric."""

    NOT_NEEDED = "not-needed"
    CHECKED = "checked"
    UNKNOWN = "unknown"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with a pod."""

    refusal: Refusal | None = None
    message: str = ""
    """Of an admitted pod; empty when there is nothing to say."""
    patch: Patch = ()
    warnings: tuple[str, ...] = ()
    quota_check: QuotaCheck = QuotaCheck.NOT_NEEDED


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The reply, and what led to it."""

    http_status: int
    body: bytes
    verdict: Verdict
    review: Review | None = None
    """None when the request could not be decoded."""


def answer(
    body: bytes,
    *,
    config: DeviceConfig,
    scheduler_name: str,
    force_overwrite: bool,
    quota_view: QuotaView,
    content_type: str = JSON_CONTENT_TYPE,
) -> tuple[int, bytes]:
    """HTTP status and body of the reply."""
    policy = Policy(config=config, scheduler_name=scheduler_name, force_overwrite=force_overwrite)
    replied = reply(body, policy=policy, quota_view=quota_view, content_type=content_type)
    return replied.http_status, replied.body


def reply(body: bytes, *, policy: Policy, quota_view: QuotaView, content_type: str) -> Answer:
    """As `answer`, with the decision beside the bytes. Never raises on any body."""
    review = decode(body, content_type)
    if isinstance(review, Undecodable):
        verdict = Verdict(refusal=review.refusal)
        encoded = encode(verdict, review.api_version, review.uid)
        return Answer(http_status=review.http_status, body=encoded, verdict=verdict)
    verdict = decide(review, policy, quota_view)
    return Answer(
        http_status=200,
        body=encode(verdict, review.api_version, review.uid, explain=policy.explain_in_message),
        verdict=verdict,
        review=review,
    )


def decode(body: bytes, content_type: str) -> Review | Undecodable:
    """Reads a request. What is no AdmissionReview gets HTTP 400, a review without a usable pod an answer of its own."""
    document = _decode_document(body, content_type)
    if isinstance(document, Refusal):
        return Undecodable(http_status=400, refusal=document)
    api_version = _text(document, "apiVersion") or DEFAULT_API_VERSION
    request = document.get("request")
    if not isinstance(request, dict):
        return Undecodable(
            http_status=200, api_version=api_version, refusal=malformed("the review holds no request object")
        )
    uid = _text(request, "uid")
    pod = _decode_pod(request.get("object"))
    if isinstance(pod, Refusal):
        return Undecodable(http_status=200, api_version=api_version, uid=uid, refusal=pod)
    return Review(
        api_version=api_version,
        uid=uid,
        namespace=pod.metadata.namespace or _text(request, "namespace"),
        operation=_text(request, "operation"),
        dry_run=request.get("dryRun") is True,
        raw=request["object"],
        pod=pod,
    )


def decide(review: Review, policy: Policy, quota_view: QuotaView) -> Verdict:
    """What is done with the pod."""
    pod = review.pod
    if not pod.app_containers:
        return Verdict(refusal=denied(RefusalKind.NO_CONTAINERS, "pod has no containers"))
    # Only on creation: later the annotations are true, and a policy of the API server guards them.
    stripped = strip_allocation(pod, policy.config) if review.operation == "CREATE" else ()
    admitted = Verdict(patch=stripped, warnings=tuple(_stripped_warnings(stripped)))
    if _belongs_to_another_scheduler(pod, policy):
        return msgspec.structs.replace(admitted, message=OTHER_SCHEDULER)
    mutation = _claimed(mutate(review.raw, pod, policy.config), policy)
    if isinstance(mutation, Refusal):
        return Verdict(refusal=mutation)
    told = readings.warnings(mutation.pod, policy.config) if mutation.claimed else ()
    admitted = msgspec.structs.replace(
        admitted, patch=(*mutation.patch, *stripped), warnings=(*admitted.warnings, *told)
    )
    return _within_quota(admitted, mutation.pod, quota_view(review.namespace), policy) if mutation.claimed else admitted


def encode(verdict: Verdict, api_version: str, uid: str, *, explain: bool = False) -> bytes:
    """The AdmissionReview that answers. The details of a refusal go out as causes and as warnings in any case."""
    refusal = verdict.refusal
    response: dict[str, Any] = {"uid": uid, "allowed": refusal is None}
    warnings = verdict.warnings
    if refusal is None:
        response["status"] = {"metadata": {}, "code": 200, "message": verdict.message}
        if verdict.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = msgspec.json.encode(verdict.patch)  # bytes are written as base64
    else:
        warnings = (*warnings, *refusal.details)
        message = ": ".join((refusal.message, *refusal.details)) if explain else refusal.message
        status: dict[str, Any] = {
            "metadata": {}, "status": "Failure", "code": refusal.code, "reason": refusal.reason, "message": message,
        }  # fmt: skip
        if refusal.details:
            status["details"] = {"causes": [{"reason": refusal.kind, "message": text} for text in refusal.details]}
        response["status"] = status
    if warnings:
        response["warnings"] = list(warnings)
    return msgspec.json.encode({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})


def _belongs_to_another_scheduler(pod: kube.Pod, policy: Policy) -> bool:
    named = pod.spec.scheduler_name
    if not named or (policy.scheduler_name and named == policy.scheduler_name):
        return False
    return not (policy.force_overwrite and named == KUBERNETES_DEFAULT_SCHEDULER)


def _claimed(mutation: Mutation | Refusal, policy: Policy) -> Mutation | Refusal:
    if isinstance(mutation, Refusal) or not mutation.claimed:
        return mutation
    refusal = _claim_refused(mutation.pod, policy)
    if refusal is not None:
        return refusal
    return claim(mutation, policy.scheduler_name) if policy.scheduler_name else mutation


def _claim_refused(pod: kube.Pod, policy: Policy) -> Refusal | None:
    privileged = next(
        (c for c in pod.all_containers if c.security_context is not None and c.security_context.privileged), None
    )
    if privileged is not None and not policy.allow_privileged:
        return denied(
            RefusalKind.PRIVILEGED,
            f"container {privileged.name} is privileged",
            "a privileged container sees every card of the node, so no share can be kept: drop privileged, or run "
            "that container in a pod that asks for no cards",
        )
    if policy.scheduler_name and pod.spec.node_name:
        return denied(
            RefusalKind.NODE_ASSIGNED,
            "pod has node assigned",
            f"spec.nodeName passes the scheduler by, which must choose the cards: select node {pod.spec.node_name} "
            "by nodeSelector or node affinity instead",
        )
    return None


def _within_quota(admitted: Verdict, pod: kube.Pod, quota: NamespaceQuota | None, policy: Policy) -> Verdict:
    if quota is None:
        return msgspec.structs.replace(
            admitted, warnings=(*admitted.warnings, QUOTA_UNKNOWN), quota_check=QuotaCheck.UNKNOWN
        )
    overrun = overruns(pod, policy.config, quota)
    if overrun:
        refusal = denied(RefusalKind.QUOTA, "exceeding resource quota", *overrun)
        return Verdict(refusal=refusal, quota_check=QuotaCheck.CHECKED)
    return msgspec.structs.replace(admitted, quota_check=QuotaCheck.CHECKED)


def _stripped_warnings(stripped: Patch) -> Iterable[str]:
    for operation in stripped:
        if isinstance(operation, Remove):
            _, _, field, key = operation.path.split("/")
            yield f"{field[:-1]} {key.replace('~1', '/')} is written by the scheduler only and was removed"


def _decode_document(body: bytes, content_type: str) -> JsonObject | Refusal:
    if content_type.partition(";")[0].strip().lower() != JSON_CONTENT_TYPE:
        return malformed(f"contentType={content_type}, expected {JSON_CONTENT_TYPE}")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return malformed(f"the body is not JSON: {error}")
    except RecursionError:
        return malformed("the body is nested too deeply")
    if not isinstance(document, dict):
        return malformed("the body is not an AdmissionReview: it is no object")
    return document


def _decode_pod(raw: object) -> kube.Pod | Refusal:
    if raw is None:
        return malformed("the request holds no object: there is no pod to decide about")
    if not isinstance(raw, dict):
        return malformed("request.object is not a Pod: it is no object")
    kind, api_version = raw.get("kind") or "Pod", raw.get("apiVersion") or "v1"
    if (kind, api_version) != ("Pod", "v1"):
        return malformed(f"request.object is {api_version} {kind}, expected v1 Pod")
    try:
        pod = msgspec.convert(_without_nulls(raw), kube.Pod)
        for container in pod.all_containers:
            _check_quantities(container)
    except (msgspec.ValidationError, quantity.MalformedQuantity) as error:
        return malformed(f"request.object is not a Pod: {error}")
    return pod


def _check_quantities(container: kube.Container) -> None:
    resources = container.resources or kube.Resources()
    for table in (resources.limits, resources.requests):
        for text in (table or {}).values():
            quantity.parse(str(text))


def _without_nulls(value: object) -> object:
    """As Go reads JSON: a field that is null is not there. An item that is null stays, for the decoder to refuse."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _text(table: JsonObject, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""
