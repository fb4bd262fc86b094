"""The command line that every service has: where its settings come from, and how it logs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from hami_chassis.settings import SettingsError, load_settings, masked, settable_fields

S = TypeVar("S", bound=msgspec.Struct)

WRONG_USE = 2


def settings_from_command_line(into: type[S], *, program: str, argv: Sequence[str] | None = None) -> S:
    """Reads the settings of a service, or ends the process with status 2 and every fault on stderr.

    `--log-format` and `--log-level` are short for `--set log.format=` and `--set log.level=`, so the struct is
    expected to have a group `log: LogSettings`.
    """
    paths = "\n".join(f"  {leaf.path}" for leaf in settable_fields(into))
    parser = argparse.ArgumentParser(
        prog=program,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"settings (file, HAMI_<GROUP>_<FIELD>, --set):\n{paths}",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON file with settings")
    parser.add_argument("--set", action="append", default=[], metavar="GROUP.FIELD=VALUE", dest="sets")
    parser.add_argument("--log-format", choices=["json", "text"])
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--print-settings", action="store_true", help="print the settings in effect and end")
    given = parser.parse_args(argv)
    sets = list(given.sets)
    if given.log_format is not None:
        sets.append(f"log.format={given.log_format}")
    if given.log_level is not None:
        sets.append(f"log.level={given.log_level}")
    try:
        settings = load_settings(into, file=given.config, sets=sets)
    except SettingsError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(WRONG_USE) from error
    if given.print_settings:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(masked(settings)), indent=2).decode() + "\n")
        raise SystemExit(0)
    return settings
