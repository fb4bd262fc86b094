"""The vendor catalogue: one TOML file a family of accelerators. Reading them is all that happens here.

A new family whose rules differ only by data is one more file in this folder. `docs/families.md` explains each field.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import msgspec

from hami_model.vendors.descriptor import ConfigRules, ResourceNames, SoftSplit, VendorDescriptor


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One descriptor file. It speaks of one word, or of as many as the configuration lists."""

    name: str
    """The file's name without its ending."""
    optional: bool
    """Only in use where the operator enables it."""
    config: ConfigRules
    defaults: tuple[dict[str, Any], ...]
    """Entries of the list in the configuration file, where no file is given."""
    template: dict[str, Any]
    """Fields of a VendorDescriptor, in which `{word}` stands for the word."""
    overrides: tuple[dict[str, Any], ...]
    """Fields that differ for words that match the pattern `words`."""

    def descriptor(self, word: str) -> VendorDescriptor:
        """What holds for one word. Raises DescriptorError."""
        fields: dict[str, Any] = _filled_in(self.template, word)
        for override in self.overrides:
            if fnmatchcase(word, override["words"]):
                _merge(fields, _filled_in({key: value for key, value in override.items() if key != "words"}, word))
        try:
            return msgspec.convert(fields, VendorDescriptor)
        except msgspec.ValidationError as error:
            raise DescriptorError(f"descriptor {self.name}: {error}") from error

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the family where no configuration says otherwise."""
        if self.config.entries_key:
            return tuple(entry[self.config.word_key] for entry in self.defaults)
        return (self.template["word"],)


class DescriptorError(ValueError):
    """A descriptor file cannot be used; the message names it and the field."""


class UnknownVendorError(LookupError):
    """No descriptor has this word."""


def _filled_in(value: Any, word: str) -> Any:  # noqa: ANN401  # whatever TOML has
    if isinstance(value, str):
        return value.replace("{word}", word)
    if isinstance(value, Mapping):
        return {key: _filled_in(item, word) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled_in(item, word) for item in value]
    return value


def _merge(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(fields.get(key), dict):
            _merge(fields[key], value)
        else:
            fields[key] = value


def read_family(file: Traversable) -> Family:
    """One descriptor file. Raises DescriptorError."""
    name = file.name.removesuffix(".toml")
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        config = msgspec.convert(document.pop("config"), ConfigRules)
    except (tomllib.TOMLDecodeError, KeyError, msgspec.ValidationError) as error:
        raise DescriptorError(f"descriptor {name}: {error}") from error
    family = Family(
        name=name,
        optional=document.pop("optional", False),
        config=config,
        defaults=tuple(document.pop("defaults", ())),
        overrides=tuple(document.pop("overrides", ())),
        template=document,
    )
    for word in family.words:
        family.descriptor(word)
    return family


def read_catalogue(folder: Traversable) -> tuple[Family, ...]:
    """All families of a folder, by their names. Raises DescriptorError."""
    files = (entry for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return tuple(read_family(file) for file in sorted(files, key=lambda file: file.name))


@cache
def catalogue() -> tuple[Family, ...]:
    """The families of this installation, by their names."""
    return read_catalogue(resources.files(__name__))


def vendor(word: str) -> VendorDescriptor:
    """The descriptor of one word of the catalogue. Raises UnknownVendorError, which lists the known words."""
    for family in catalogue():
        if word in family.words:
            return family.descriptor(word)
    known = ", ".join(word for family in catalogue() for word in family.words)
    raise UnknownVendorError(f"no accelerator family {word!r}; known: {known}")


NVIDIA = "NVIDIA"

__all__ = [
    "NVIDIA",
    "ConfigRules",
    "DescriptorError",
    "Family",
    "ResourceNames",
    "SoftSplit",
    "UnknownVendorError",
    "VendorDescriptor",
    "catalogue",
    "read_catalogue",
    "read_family",
    "vendor",
]
