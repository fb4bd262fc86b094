"""Errors of the model.

HamiError
├── MalformedError            bad data from outside; the message says where and what is wrong
│   ├── MalformedAnnotation
│   └── MalformedJson
└── InvalidRequestError       a pod asks for something that no system state could grant; says what to change
"""

from __future__ import annotations


class HamiError(Exception):
    """Root of every error of this project."""


class MalformedError(HamiError):
    """Data from outside does not follow its format."""


class MalformedAnnotation(MalformedError):  # noqa: N818  # reads as the state of the annotation
    """An annotation cannot be read. `key` names it, `problem` says what is wrong."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"annotation {key}: {problem}")
        self.key = key
        self.problem = problem


class MalformedJson(MalformedError):  # noqa: N818
    """A JSON text cannot be read; the message names the place."""


class InvalidRequestError(HamiError):
    """A container's request cannot be understood; the message tells the user what to write instead."""

    def __init__(self, container: str, resource: str, problem: str) -> None:
        super().__init__(f"container {container}: {resource}: {problem}")
        self.container = container
        self.resource = resource
        self.problem = problem
