"""Why a pod is refused: a value that names the kind, the answer on the wire and what the user can change."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RefusalKind(StrEnum):
    """Label of the metric and of the event."""

    MALFORMED = "malformed"
    NO_CONTAINERS = "no-containers"
    INVALID_REQUEST = "invalid-request"
    PRIVILEGED = "privileged"
    NODE_ASSIGNED = "node-assigned"
    QUOTA = "quota"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """`message` is what HAMi says in the same case, where it says something; `details` say what to change."""

    kind: RefusalKind
    code: int
    """HTTP code inside the AdmissionReview."""
    message: str
    details: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Reason of the Kubernetes status."""
        return {400: "BadRequest", 403: "Forbidden", 500: "InternalError"}.get(self.code, "")


def denied(kind: RefusalKind, message: str, *details: str) -> Refusal:
    return Refusal(kind=kind, code=403, message=message, details=details)


def malformed(message: str) -> Refusal:
    return Refusal(kind=RefusalKind.MALFORMED, code=400, message=message)
