"""`POST /webhook`: AdmissionReview in, AdmissionReview out."""

from __future__ import annotations

import msgspec
from aiohttp import web
from hami_chassis.bodies import Bodies
from hami_chassis.clock import Clock
from hami_chassis.http import JSON, new_app
from hami_chassis.log import get_logger
from hami_model import events

from hami_webhook.core.announcement import announcement
from hami_webhook.core.refusal import RefusalKind
from hami_webhook.core.review import Answer, Policy, QuotaCheck, Review, Verdict, reply
from hami_webhook.metrics import WebhookMetrics
from hami_webhook.ports import EventSink, QuotaSource
from hami_webhook.registration import WEBHOOK_PATH

log = get_logger("admission")


class EventOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What this process puts on its events."""

    source: str
    prefix: str


class AdmissionEndpoint:
    """Answers reviews. Every answer is counted; every refusal and every change is logged and announced."""

    def __init__(
        self,
        policy: Policy,
        *,
        quota: QuotaSource,
        sink: EventSink,
        origin: EventOrigin,
        metrics: WebhookMetrics,
        clock: Clock,
        body_limit_bytes: int,
    ) -> None:
        self._policy = policy
        self._quota = quota
        self._sink = sink
        self._origin = origin
        self._metrics = metrics
        self._clock = clock
        self._body_limit_bytes = body_limit_bytes
        self._bodies = Bodies(largest_bytes=body_limit_bytes)

    def app(self) -> web.Application:
        """The application of the HTTPS server."""
        app = new_app()
        app.router.add_post(WEBHOOK_PATH, self.handle)
        return app

    async def handle(self, request: web.Request) -> web.Response:
        """One review."""
        try:
            body = await self._bodies.read(request, limit_bytes=self._body_limit_bytes)
        except web.HTTPRequestEntityTooLarge:
            self._metrics.oversized.inc()
            log.warning("review-too-large", limit_bytes=self._body_limit_bytes, remote=request.remote or "")
            raise
        began = self._clock.monotonic()
        answer = await self._answer(body, request.headers.get("Content-Type", ""))
        self._metrics.seconds.observe(self._clock.monotonic() - began)
        self._count(answer.verdict)
        if answer.review is None:
            log.warning("review-unreadable", remote=request.remote or "", problem=_problem(answer))
        else:
            self._report(answer.review, answer.verdict)
        return web.Response(status=answer.http_status, body=answer.body, content_type=JSON)

    async def _answer(self, body: bytes, content_type: str) -> Answer:
        answer = reply(body, policy=self._policy, quota_view=self._quota.view, content_type=content_type)
        refusal = answer.verdict.refusal
        if refusal is None or refusal.kind is not RefusalKind.QUOTA or answer.review is None:
            return answer
        # The watch may lag behind a pod that has ended or a limit that was raised, and nobody asks again for this pod.
        now = await self._quota.look(answer.review.namespace)
        if now is None:
            return answer
        return reply(body, policy=self._policy, quota_view=lambda _namespace: now, content_type=content_type)

    def _count(self, verdict: Verdict) -> None:
        if verdict.refusal is not None:
            self._metrics.reviews.labels("rejected", verdict.refusal.kind).inc()
        else:
            self._metrics.reviews.labels("changed" if verdict.patch else "unchanged", "").inc()
        if verdict.quota_check is not QuotaCheck.NOT_NEEDED:
            self._metrics.quota_checks.labels(verdict.quota_check).inc()

    def _report(self, review: Review, verdict: Verdict) -> None:
        metadata = review.pod.metadata
        fields = {"namespace": review.namespace, "pod": metadata.name or f"{metadata.generate_name}*"}
        if verdict.quota_check is QuotaCheck.UNKNOWN:
            log.warning("quota-not-checked", **fields)
        if verdict.refusal is not None:
            refusal = verdict.refusal
            log.info("pod-rejected", kind=refusal.kind, reason=refusal.message, details=list(refusal.details), **fields)
        elif verdict.patch:
            log.info("pod-changed", paths=[operation.path for operation in verdict.patch], **fields)
        event = announcement(review, verdict, source=self._origin.source, time=self._clock.now())
        if event is not None:
            self._sink.publish(event.subject(self._origin.prefix), events.encode(event), events.headers(event))


def _problem(answer: Answer) -> str:
    return answer.verdict.refusal.message if answer.verdict.refusal is not None else ""
