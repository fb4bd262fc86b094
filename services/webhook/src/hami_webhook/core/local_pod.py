"""Reviews of pods that no API server sent."""

from __future__ import annotations

import msgspec

from hami_webhook.core.patch import JsonObject


def review_of(document: JsonObject, namespace: str) -> bytes:
    """The body of a review: the document itself if it is one, else one for the creation of that pod."""
    if document.get("kind") == "AdmissionReview":
        return msgspec.json.encode(document)
    return msgspec.json.encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "local",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "namespace": namespace,
                "operation": "CREATE",
                "dryRun": True,
                "object": document,
            },
        }
    )
