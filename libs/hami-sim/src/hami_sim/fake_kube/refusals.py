"""What the API server answers when it refuses, as a Status."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):  # noqa: N818  # an answer, not a defect
    """An answer that is not a success."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        retry_after_seconds: int = 0,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
        details = dict(details or {})
        if retry_after_seconds:
            details["retryAfterSeconds"] = retry_after_seconds
        if details:
            self.status["details"] = details


def not_found(resource: str, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{resource} "{name}" not found', details={"name": name, "kind": resource})


def already_exists(resource: str, name: str) -> Refusal:
    return Refusal(
        409, "AlreadyExists", f'{resource} "{name}" already exists', details={"name": name, "kind": resource}
    )


def conflict(resource: str, name: str, cause: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {cause}'
    return Refusal(409, "Conflict", message, details={"name": name, "kind": resource})


def invalid(resource: str, name: str, cause: str) -> Refusal:
    return Refusal(422, "Invalid", f'{resource} "{name}" is invalid: {cause}', details={"name": name, "kind": resource})


def immutable(resource: str, name: str, path: str, value: str) -> Refusal:
    cause = {"reason": "FieldValueInvalid", "message": f'Invalid value: "{value}": field is immutable', "field": path}
    message = f'{resource} "{name}" is invalid: {path}: {cause["message"]}'
    return Refusal(422, "Invalid", message, details={"name": name, "kind": resource, "causes": [cause]})


def gone(message: str) -> Refusal:
    return Refusal(410, "Expired", message)
