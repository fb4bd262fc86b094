"""admission: what the webhook did to a pod. At CREATE a pod has no UID yet, and often only a `generateName`.

Id: `<uid of the AdmissionReview request>.<admitted|rejected>`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from hami_model.events import subjects
from hami_model.events.envelope import Event

Verdict = Literal["admitted", "rejected"]


class PatchChange(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of the JSON patch, without its value (which may be secret)."""

    op: Literal["add", "replace", "remove"]
    path: str
    """JSON pointer into the pod."""


class AdmissionEvent(Event, frozen=True, kw_only=True):
    """What both verdicts say."""

    verdict: ClassVar[Verdict]

    request_uid: str
    namespace: str
    name: str = ""
    """Empty where the API server is still to make it from `generate_name`."""
    generate_name: str = ""
    owner: str = ""
    """`<kind>/<name>` of the controller that creates the pod, where it has one."""

    @property
    def about(self) -> str:
        return f"pods/{self.namespace}/{self.name or self.generate_name}"

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.admission(self.namespace, self.verdict, prefix=prefix)

    def _identity(self) -> str:
        return f"{self.request_uid}.{self.verdict}"


class AdmissionAdmitted(AdmissionEvent, frozen=True, kw_only=True, tag="io.hami.admission.admitted.v1"):
    verdict: ClassVar[Verdict] = "admitted"

    changes: tuple[PatchChange, ...] = ()
    """Empty: the pod was let in as it is."""
    warnings: tuple[str, ...] = ()
    """What the user is told though the pod was let in."""


class AdmissionRejected(AdmissionEvent, frozen=True, kw_only=True, tag="io.hami.admission.rejected.v1"):
    verdict: ClassVar[Verdict] = "rejected"

    reason: str
    """As the user sees it: what to change."""
