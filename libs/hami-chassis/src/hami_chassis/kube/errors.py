"""What the API server may answer, as errors that say what to do.

Transient
  KubeTransient      the server is away, overloaded, or was asked too early
    KubeUnknown      a write without an answer: read the object before trying again (also OutcomeUnknown)
Permanent
  KubePermanent      any other refusal
    Unauthorized (401), Forbidden (403), NotFound (404), Invalid (400, 422), Gone (410)
    Conflict (409)   the precondition (version, UID) does not hold
      AlreadyExists  (409) the name is taken
"""

from __future__ import annotations

import msgspec

from hami_chassis.errors import ChassisError, OutcomeUnknown, Permanent, Transient
from hami_chassis.kube.objects import Status


class KubeTransient(Transient):
    """Trying again later may succeed; nothing was changed."""


class KubeUnknown(KubeTransient, OutcomeUnknown):
    """A write that may have happened."""


class KubePermanent(Permanent):
    """The server understood and refused."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.fields = fields
        """Paths of the fields that were found wrong."""


class Unauthorized(KubePermanent):
    """The credentials are not accepted."""


class Forbidden(KubePermanent):
    """The role does not allow it, a quota is full, or admission refused it."""


class NotFound(KubePermanent):
    """There is no such object."""


class Conflict(KubePermanent):
    """The object is in another version or another one than the request said."""


class AlreadyExists(Conflict):
    """An object of that name exists."""


class Gone(KubePermanent):
    """The asked version or page token is too old: list anew."""


class Invalid(KubePermanent):
    """The request or the object in it is not valid."""


_BY_CODE: dict[int, type[KubePermanent]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}
# 500 and above may come after the write has been made, 429 and 503 come before.
_NOTHING_DONE = {408, 425, 429, 503}
_LONGEST_PAUSE_SECONDS = 60
"""Whatever a server, or a proxy before it, asks for: a day's pause would be an outage of its own."""
_RESOURCE_VERSION_TOO_LARGE = "ResourceVersionTooLarge"


def decode_status(body: bytes, code: int) -> Status:
    """The Status in the body, or one made of the code where a proxy answered something else."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body[:200].decode(errors="replace").strip()
        return Status(message=text or f"HTTP {code}", code=code)
    return msgspec.structs.replace(status, code=status.code or code)


def error_from_status(
    status: Status, *, request: str, is_write: bool, retry_after_seconds: int | None = None
) -> ChassisError:
    """The error for an answer that is not a success. `request` names verb and object."""
    code = status.code
    message = f"{request}: {status.message or status.reason or 'refused'} ({code})"
    known = _BY_CODE.get(code)
    if known is Conflict and status.reason == "AlreadyExists":
        known = AlreadyExists
    if status.reason == "Expired":
        known = Gone
    if known is None and any(cause.reason == _RESOURCE_VERSION_TOO_LARGE for cause in status.details.causes):
        # The server has lost history (restored from a backup): the version will never come.
        known = Gone
    if known is not None:
        fields = tuple(cause.field for cause in status.details.causes if cause.field)
        return known(message, code=code, reason=status.reason, fields=fields)
    if code in _NOTHING_DONE or code >= 500:
        asked = retry_after_seconds or status.details.retry_after_seconds
        wait = float(min(asked, _LONGEST_PAUSE_SECONDS)) if asked > 0 else None
        kind = KubeUnknown if is_write and code not in _NOTHING_DONE else KubeTransient
        return kind(message, retry_after_seconds=wait)
    return KubePermanent(message, code=code, reason=status.reason)
