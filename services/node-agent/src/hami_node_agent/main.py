"""`hami-node-agent`: serve, or print what the driver says of this machine, and what would keep it from serving."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from hami_chassis.errors import Permanent
from hami_chassis.log import configure_logging, get_logger
from hami_chassis.run import run_process
from hami_chassis.settings import masked, settable_fields
from hami_model import register
from hami_model.errors import HamiError

from hami_node_agent.adapters import doctor_facts
from hami_node_agent.adapters.configuration import nvidia_settings, options_of, settings_of
from hami_node_agent.build import build
from hami_node_agent.config import NodeAgentSettings, serving_faults
from hami_node_agent.core import doctor, hami_names
from hami_node_agent.core.inventory import Discovery, take_inventory
from hami_node_agent.core.node_options import NodeOptions
from hami_node_agent.parts.machine import nvml_of

WRONG_USE = 2
NOT_WELL = 1

app = typer.Typer(
    help="Node agent: offers this machine's cards and hands slices of them to containers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SETTINGS_HELP = "\b\nSettings (file, HAMI_<GROUP>_<FIELD>, --set):\n" + "\n".join(
    f"  {leaf.path}" for leaf in settable_fields(NodeAgentSettings)
)
log = get_logger("main")

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON file with settings.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.FIELD=VALUE", help="One setting; may be repeated.")
]


@app.command(epilog=SETTINGS_HELP, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context, config: ConfigFile = None, sets: Sets = None) -> None:
    """Offer the cards and hand slices over until told to stop.

    Flags and environment names of HAMi's device plugin are taken too; settings of ours outweigh them.
    """
    given = hami_names.found_in(context.args, os.environ)
    settings = _settings(config, sets, given)
    faults = list(serving_faults(settings))
    if faults:
        _wrong_use("; ".join(faults))
    # gRPC's core writes lines of its own to stderr at every connection that ends, in the midst of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    configure_logging(settings.log, service="node-agent", node=settings.node.name)
    log.info("settings", **masked(settings))
    for note in given.notes:
        log.warning("setting-without-effect", problem=note)
    try:
        raise typer.Exit(run_process(lambda stack: build(settings, stack)))
    except (Permanent, HamiError, OSError) as error:
        _wrong_use(str(error))


@app.command()
def inventory(config: ConfigFile = None, sets: Sets = None) -> None:
    """Print what this machine would offer, as the register annotation, and what keeps cards out of it."""
    settings = _settings(config, sets, hami_names.found_in((), os.environ))
    try:
        nvidia = nvidia_settings(settings)
        options = options_of(settings, nvidia)
        found = asyncio.run(_discovery(settings, options))
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))
    taken = take_inventory(found.cards, options, unreadable=found.unreadable)
    print(register.encode(nvidia.vendor, taken.cards))
    for problem in (*options.warnings, *found.problems, *taken.problems):
        typer.echo(f"hami-node-agent: {problem}", err=True)


@app.command(name="doctor")
def examine_machine(
    config: ConfigFile = None,
    sets: Sets = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a finding.")] = False,
) -> None:
    """Say what would keep the node-agent from working here, and what to change. Exit status 1: something would."""
    settings = _settings(config, sets, hami_names.found_in((), os.environ))
    configure_logging(msgspec.structs.replace(settings.log, level="error"), service="node-agent")
    findings = doctor.examine(asyncio.run(doctor_facts.gather(settings)), doctor_facts.wishes(settings))
    for finding in findings:
        print(msgspec.json.encode(finding).decode() if as_json else doctor.line(finding))
    raise typer.Exit(0 if doctor.is_well(findings) else NOT_WELL)


async def _discovery(settings: NodeAgentSettings, options: NodeOptions) -> Discovery:
    nvml = nvml_of(settings, options)
    await nvml.start()
    try:
        return await nvml.discover()
    finally:
        await nvml.close()


def _settings(config: Path | None, sets: list[str] | None, given: hami_names.Found) -> NodeAgentSettings:
    try:
        return settings_of(config, sets or (), given)
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))


def _wrong_use(problem: str) -> NoReturn:
    typer.echo(f"hami-node-agent: {problem}", err=True)
    raise typer.Exit(WRONG_USE)


if __name__ == "__main__":
    app()
