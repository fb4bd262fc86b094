"""Admission reviews."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
from answer_families import configuration
from hami_model import device_config, kube
from hami_webhook.core import quota_book, review
from pod_objects import apply_patch, normalised
from vectors import Row


def answer(row: Row) -> dict[str, Any]:
    config = row["config"]
    text = config["device_config_yaml"]
    if "family" in row:
        devices = configuration(text)
    else:
        devices = device_config.default_config() if text is None else device_config.parse(text)
    book = quota_book.book_of(
        devices,
        pods=[msgspec.convert(pod, kube.Pod) for pod in row["scheduled"]],
        quotas=[msgspec.convert(quota, kube.ResourceQuota) for quota in row["quotas"]],
    )
    raw = row["raw_body"]
    body = raw if raw is not None else json.dumps(row["review"])
    status, reply = review.answer(
        body.encode(),
        config=devices,
        scheduler_name=config["scheduler_name"],
        force_overwrite=config["force_overwrite_default_scheduler"],
        quota_view=book.view,
        content_type=row["content_type"],
    )
    document = json.loads(reply)
    response = document["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    allowed = response["allowed"]
    return {
        "allowed": allowed,
        "code": response["status"].get("code", 0),
        "message": response["status"].get("message", ""),
        "reason": response["status"].get("reason", ""),
        "patch": patch if allowed else None,
        "pod": normalised(apply_patch(row["review"]["request"]["object"], patch)) if allowed else None,
        "uid": response["uid"],
        "api_version": document["apiVersion"],
        "http_status": status,
    }
