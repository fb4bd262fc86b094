"""What is told to others about a review."""

from __future__ import annotations

from datetime import datetime

from hami_model import kube
from hami_model.events import AdmissionAdmitted, AdmissionEvent, AdmissionRejected, PatchChange

from hami_webhook.core.patch import Add
from hami_webhook.core.review import Review, Verdict


def announcement(review: Review, verdict: Verdict, *, source: str, time: datetime) -> AdmissionEvent | None:
    """The event; None for a dry run, which must leave no trace, and for a pod that was let in as it is."""
    if review.dry_run:
        return None
    metadata = review.pod.metadata
    if verdict.refusal is not None:
        return AdmissionRejected(
            source=source,
            time=time,
            request_uid=review.uid,
            namespace=review.namespace,
            name=metadata.name,
            generate_name=metadata.generate_name,
            owner=_owner(review.pod),
            reason=": ".join((verdict.refusal.message, *verdict.refusal.details)),
        )
    if not verdict.patch and not verdict.warnings:
        return None
    return AdmissionAdmitted(
        source=source,
        time=time,
        request_uid=review.uid,
        namespace=review.namespace,
        name=metadata.name,
        generate_name=metadata.generate_name,
        owner=_owner(review.pod),
        changes=tuple(
            PatchChange(op="add" if isinstance(operation, Add) else "remove", path=operation.path)
            for operation in verdict.patch
        ),
        warnings=verdict.warnings,
    )


def _owner(pod: kube.Pod) -> str:
    controllers = (owner for owner in pod.metadata.owner_references or [] if owner.controller)
    return next((f"{owner.kind}/{owner.name}" for owner in controllers), "")
