"""kube-scheduler's extender calls: `POST /filter` and `POST /bind`.

kube-scheduler shows its users only the status code of a refused request, so each refusal is logged and counted.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from aiohttp import web
from hami_chassis.bodies import Bodies
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.http import json_error, json_response, new_app
from hami_chassis.log import get_logger
from hami_model import kube
from hami_model.errors import MalformedJson
from hami_model.lifecycle import ExpiryCause

from hami_scheduler.adapters.early_annotations import EarlyAnnotations
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.config import ExtenderSettings
from hami_scheduler.core import extender, simulation
from hami_scheduler.core.extender import BindResult, FilterResult, NodeList
from hami_scheduler.core.filter import FilterAnswer
from hami_scheduler.metrics import SchedulerMetrics
from hami_scheduler.ports import PodBinder

log = get_logger("extender")

Verb = Literal["filter", "bind"]
_SIMULATION_NOTE = (
    "a filter request carries whole Node objects: it is answered as a simulation and reserves nothing; "
    "kube-scheduler must ask with nodeCacheCapable: true"
)
_NO_NAMES = "the request names no nodes: NodeNames is missing; set nodeCacheCapable: true"


class ExtenderEndpoint:
    def __init__(
        self,
        bookkeeper: Bookkeeper,
        binder: PodBinder,
        *,
        settings: ExtenderSettings,
        early_annotations: EarlyAnnotations | None,
        metrics: SchedulerMetrics,
        clock: Clock,
    ) -> None:
        self._bookkeeper = bookkeeper
        self._binder = binder
        self._settings = settings
        self._bodies = Bodies(largest_bytes=max(settings.filter_limit_bytes, settings.bind_limit_bytes))
        self._early_annotations = early_annotations
        self._metrics = metrics
        self._clock = clock
        self._maker = simulation.ClusterMaker(bookkeeper.ledger.config, bookkeeper.ledger.node_selector)
        self._noted_simulation = False

    def app(self) -> web.Application:
        """The application of the extender's server."""
        app = new_app()
        app.router.add_post("/filter", self.filter)
        app.router.add_post("/bind", self.bind)
        return app

    async def filter(self, request: web.Request) -> web.Response:
        """One filter call."""
        body = await self._body(request, "filter", self._settings.filter_limit_bytes)
        began = self._clock.monotonic()
        try:
            asked = extender.decode_filter(body)
        except MalformedJson as error:
            return self._refuse("filter", 400, str(error))
        if not self._bookkeeper.in_charge:
            return self._refuse("filter", 503, "not the leading scheduler, or not ready yet")
        if asked.nodes is not None:
            return await self._simulate(asked.pod, asked.nodes, began)
        if asked.node_names is None:
            return self._answer(FilterResult(error=_NO_NAMES), "error", began)
        answer = self._bookkeeper.filter(asked.pod, asked.node_names)
        if answer.reservation is not None and self._early_annotations is not None:
            answer = await self._annotate(self._early_annotations, asked, answer)
        asyncio.get_running_loop().call_soon(self._bookkeeper.tell_filter, asked.pod, asked.node_names, answer)
        for reason, count in answer.rejection.tally() if answer.rejection is not None else ():
            self._metrics.rejected_nodes.labels(reason).inc(count)
        return self._answer(extender.filter_result(answer), _end(answer), began)

    async def _simulate(self, pod: kube.Pod, nodes: NodeList, began: float) -> web.Response:
        """Decides on the request's nodes beside the loop, which goes on answering: there may be thousands of them."""
        if not self._noted_simulation:
            self._noted_simulation = True
            log.info("simulation", note=_SIMULATION_NOTE)
        begun = simulation.begin(self._bookkeeper.ledger, self._maker, pod)
        try:
            result = await asyncio.to_thread(_simulated, begun, nodes)
        except MalformedJson as error:
            return self._refuse("filter", 400, str(error))
        return self._answer(result, "error" if result.error else "simulated", began)

    async def bind(self, request: web.Request) -> web.Response:
        """One bind call."""
        body = await self._body(request, "bind", self._settings.bind_limit_bytes)
        try:
            asked = extender.decode_bind(body)
        except MalformedJson as error:
            return self._refuse("bind", 400, str(error))
        if not self._bookkeeper.in_charge:
            return self._refuse("bind", 503, "not the leading scheduler, or not ready yet")
        problem = await self._binder.bind(asked)
        return json_response(extender.encode(BindResult(error=problem)))

    async def _annotate(
        self, early_annotations: EarlyAnnotations, asked: extender.FilterArguments, answer: FilterAnswer
    ) -> FilterAnswer:
        """The answer, or an error where the pod could not be written: then nothing stays reserved."""
        assert answer.reservation is not None  # noqa: S101  # the caller has looked
        try:
            await early_annotations.write(asked.pod, answer)
        except (Transient, Permanent) as error:
            self._bookkeeper.bind_failed(answer.reservation, ExpiryCause.BIND_FAILED, str(error))
            early_annotations.remove(asked.pod, answer.reservation)
            return FilterAnswer(error=f"the allocation could not be written to the pod: {error}")
        return answer

    async def _body(self, request: web.Request, verb: Verb, limit_bytes: int) -> bytes:
        try:
            body = await self._bodies.read(request, limit_bytes=limit_bytes)
        except web.HTTPRequestEntityTooLarge as error:
            problem = f"the request is larger than {limit_bytes} bytes; raise extender.{verb}_limit_bytes"
            self._count_refusal(verb, 413, problem)
            raise web.HTTPRequestEntityTooLarge(max_size=limit_bytes, text=problem) from error
        if not body:
            self._count_refusal(verb, 400, "empty request")
            raise web.HTTPBadRequest(text="Please send a request body")
        return body

    def _answer(self, result: FilterResult, end: str, began: float) -> web.Response:
        encoded = extender.encode(result)
        self._metrics.decisions.labels(end).inc()
        self._metrics.filter_seconds.observe(self._clock.monotonic() - began)
        return json_response(encoded)

    def _refuse(self, verb: Verb, status: int, problem: str) -> web.Response:
        self._count_refusal(verb, status, problem)
        return json_error(status, problem)

    def _count_refusal(self, verb: Verb, status: int, problem: str) -> None:
        log.warning("request-refused", verb=verb, status=status, problem=problem)
        self._metrics.refused.labels(verb, str(status)).inc()


def _simulated(begun: simulation.Simulation, nodes: NodeList) -> FilterResult:
    """Raises MalformedJson."""
    found = extender.decode_nodes(nodes)
    return extender.simulation_result(begun.answer(found), nodes, [node.name for node in found])


def _end(answer: FilterAnswer) -> str:
    if answer.error is not None:
        return "error"
    if answer.passes_through:
        return "passed"
    if answer.invalid_request is not None:
        return "invalid"
    return "placed" if answer.reservation is not None else "unschedulable"
