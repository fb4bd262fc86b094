"""`hami-webhook`: serve, review a local pod, print the registration. Builds the objects; decides nothing."""

from __future__ import annotations

import base64
import json
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
import yaml
from hami_chassis.bus import Bus
from hami_chassis.clock import SystemClock
from hami_chassis.errors import Permanent
from hami_chassis.http import HttpServer, add_observation_routes, new_app
from hami_chassis.kube import KubeClient
from hami_chassis.log import configure_logging, get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.run import RootTask, Stage, run_process
from hami_chassis.settings import load_settings, masked, settable_fields
from hami_chassis.tls import ReloadingTls
from hami_model import device_config, events
from hami_model.device_config import DeviceConfig
from hami_model.errors import HamiError
from prometheus_client import CollectorRegistry

from hami_webhook.adapters.admission_http import AdmissionEndpoint, EventOrigin
from hami_webhook.adapters.event_streams import admission_streams
from hami_webhook.adapters.quota_informers import QuotaInformers
from hami_webhook.config import WebhookSettings, serving_faults
from hami_webhook.core.local_pod import review_of
from hami_webhook.core.review import JSON_CONTENT_TYPE, Answer, Policy, reply
from hami_webhook.metrics import WebhookMetrics
from hami_webhook.registration import Registration, ServiceReference, registration_objects

WRONG_USE = 2
REFUSED = 1

app = typer.Typer(
    help="Admission webhook: routes, completes and checks pods that ask for a slice of a card.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SETTINGS_HELP = "\b\nSettings (file, HAMI_<GROUP>_<FIELD>, --set):\n" + "\n".join(
    f"  {leaf.path}" for leaf in settable_fields(WebhookSettings)
)
log = get_logger("main")

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON file with settings.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.FIELD=VALUE", help="One setting; may be repeated.")
]


class Output(StrEnum):
    YAML = "yaml"
    JSON = "json"


@app.command(epilog=SETTINGS_HELP)
def serve(config: ConfigFile = None, sets: Sets = None) -> None:
    """Answer the API server's reviews until told to stop."""
    settings = _settings(config, sets)
    faults = list(serving_faults(settings))
    if faults:
        _wrong_use("; ".join(faults))
    configure_logging(settings.log, service="webhook")
    log.info("settings", **masked(settings))
    try:
        raise typer.Exit(run_process(lambda stack: build(settings, stack)))
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))


@app.command()
def review(
    file: Annotated[Path, typer.Argument(help="Pod or AdmissionReview, YAML or JSON; - reads standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    namespace: Annotated[str, typer.Option(help="Namespace of a pod that names none.")] = "default",
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Show what the webhook would do with a pod. Quotas are not looked at. Exit status 1: it would be refused."""
    settings = _settings(config, sets)
    document = _document(file)
    answer = reply(
        review_of(document, namespace),
        policy=policy_of(settings, _device_config(settings)),
        quota_view=lambda _namespace: None,
        content_type=JSON_CONTENT_TYPE,
    )
    response = msgspec.json.decode(answer.body)["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    if as_json:
        shown = {"allowed": response["allowed"], "message": response["status"]["message"], "patch": patch}
        print(json.dumps({**shown, "warnings": response.get("warnings", [])}, indent=2))
    else:
        _print_answer(answer, response, patch)
    raise typer.Exit(0 if response["allowed"] else REFUSED)


@app.command()
def registration(
    *,
    ca: Annotated[Path, typer.Option(help="PEM file with the authorities of the webhook's certificate.")],
    url: Annotated[str | None, typer.Option(help="https address of the webhook, with its path.")] = None,
    service: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/NAME[:PORT]", help="Service in front of the webhook.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Our own namespace; its pods are not reviewed.")] = "hami-system",
    exclude_namespace: Annotated[list[str] | None, typer.Option(help="One more namespace not to review.")] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="User that may write allocations, in place of the service accounts of our scheduler and node-agent."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the objects.")] = "hami-webhook",
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.YAML,
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Print the objects that register the webhook, for `kubectl apply -f -`."""
    if (url is None) == (service is None):
        _wrong_use("give either --url or --service")
    try:
        ca_pem = ca.read_bytes()
    except OSError as error:
        _wrong_use(f"{ca}: {error.strerror}")
    objects = registration_objects(
        Registration(
            target=url if url is not None else _service(service or ""),
            ca_pem=ca_pem,
            namespace=namespace,
            excluded_namespaces=("kube-system", *(exclude_namespace or ())),
            trusted_users=tuple(trust or ()),
            name=name,
        ),
        _device_config(_settings(config, sets)),
    )
    if output is Output.JSON:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        print(yaml.safe_dump_all(objects, sort_keys=False), end="")


async def build(settings: WebhookSettings, stack: AsyncExitStack) -> Sequence[RootTask]:
    """All objects of the service, and its root tasks."""
    config = _read_device_config(settings)
    for warning in config.warnings:
        log.warning("device-configuration", problem=warning)
    registry, clock = CollectorRegistry(), SystemClock()
    chassis_metrics, metrics = ChassisMetrics(registry), WebhookMetrics(registry)
    client = await KubeClient.connect(settings.kube, metrics=chassis_metrics, clock=clock, user_agent="hami-webhook")
    stack.push_async_callback(client.close)
    quota = QuotaInformers(client, config, metrics=chassis_metrics, clock=clock)
    metrics.quota_known.set_function(lambda: float(quota.known))
    bus = Bus(
        settings.bus,
        name="webhook",
        metrics=chassis_metrics,
        streams=admission_streams(settings.events.streams, prefix=settings.events.prefix),
    )
    endpoint = AdmissionEndpoint(
        policy_of(settings, config),
        quota=quota,
        sink=bus,
        origin=EventOrigin(
            source=events.source("webhook", settings.events.instance or socket.gethostname()),
            prefix=settings.events.prefix,
        ),
        metrics=metrics,
        clock=clock,
        body_limit_bytes=settings.admission.body_limit_bytes,
    )
    certificate = ReloadingTls(settings.tls, clock=clock)
    https = HttpServer(endpoint.app(), settings.https, name="admission", tls=certificate.context)
    observed = new_app()
    # Not whether quotas are known: pods that wait for us must not be refused while only that check is missing.
    add_observation_routes(observed, registry=registry, ready={"listening": https.listening.is_set})
    observation = HttpServer(observed, settings.observation, name="observation")
    return [
        RootTask("https", https.run, Stage.INTAKE),
        RootTask("certificate", certificate.run),
        RootTask("pods", quota.pods.run, Stage.SOURCES),
        RootTask("quotas", quota.quotas.run, Stage.SOURCES),
        RootTask("bus", bus.run, Stage.OUTBOX),
        RootTask("observation", observation.run, Stage.OBSERVATION),
    ]


def policy_of(settings: WebhookSettings, config: DeviceConfig) -> Policy:
    """The rules of this cluster."""
    admission = settings.admission
    return Policy(
        config=config,
        scheduler_name=admission.scheduler_name,
        force_overwrite=admission.force_overwrite_default_scheduler,
        allow_privileged=admission.allow_privileged,
        explain_in_message=admission.explain_in_message,
    )


def _settings(config: Path | None, sets: list[str] | None) -> WebhookSettings:
    try:
        return load_settings(WebhookSettings, file=config, sets=sets or ())
    except Permanent as error:
        _wrong_use(str(error))


def _device_config(settings: WebhookSettings) -> DeviceConfig:
    try:
        return _read_device_config(settings)
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))


def _read_device_config(settings: WebhookSettings) -> DeviceConfig:
    """Raises Permanent or DeviceConfigError."""
    name = settings.admission.device_config_file
    if not name:
        return device_config.default_config(settings.admission.enabled_families)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"admission.device_config_file {name}: {error}") from error
    return device_config.parse(text, settings.admission.enabled_families)


def _document(file: Path) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        _wrong_use(f"{file}: {error}")
    if not isinstance(document, dict):
        _wrong_use(f"{file}: holds no object; give one Pod or AdmissionReview")
    return document


def _service(text: str) -> ServiceReference:
    path, _, port = text.partition(":")
    namespace, _, name = path.partition("/")
    if not namespace or not name or not (port or "443").isdigit():
        _wrong_use(f"--service {text}: write NAMESPACE/NAME or NAMESPACE/NAME:PORT")
    return ServiceReference(namespace=namespace, name=name, port=int(port or "443"))


def _print_answer(answer: Answer, response: dict[str, Any], patch: list[dict[str, Any]]) -> None:
    refusal = answer.verdict.refusal
    if refusal is not None:
        print(f"refused: {refusal.message}")
        for detail in refusal.details:
            print(f"  {detail}")
        return
    print("admitted" + (f": {response['status']['message']}" if response["status"]["message"] else ""))
    for operation in patch:
        value = f" {json.dumps(operation['value'])}" if "value" in operation else ""
        print(f"  {operation['op']} {operation['path']}{value}")
    if not patch:
        print("  nothing is changed")
    for warning in response.get("warnings", []):
        print(f"  warning: {warning}")


def _wrong_use(problem: str) -> NoReturn:
    typer.echo(f"hami-webhook: {problem}", err=True)
    raise typer.Exit(WRONG_USE)


if __name__ == "__main__":
    app()
