"""OpenTelemetry traces and metrics of a thread's requests and replies, by the GenAI conventions, without message texts.

thread.observers += (Telemetry(thread.name),)   # uses the OpenTelemetry providers of the program, or those passed in
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import needs_extra
from quire.observe import Received, Sending
from quire.providers.usage import known_cost
from quire.values import COUNTS, as_object

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from quire.thread import Thread

# The conventions' names of providers; any other keeps the name it has here.
_NAMES = {
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
# Fields of a body, and the conventions' names of them; some providers hold these fields in one of `_HOLDERS`.
_SETTINGS = {
    **dict.fromkeys(("max_tokens", "max_output_tokens", "max_completion_tokens"), "max_tokens"),
    **dict.fromkeys(("maxTokens", "maxOutputTokens"), "max_tokens"),
    **dict.fromkeys(("top_p", "topP", "p"), "top_p"),
    **dict.fromkeys(("top_k", "topK", "k"), "top_k"),
    "temperature": "temperature",
    "seed": "seed",
}
_HOLDERS = ("generationConfig", "inferenceConfig")
# How many requests may wait for their replies; beyond that the oldest is forgotten.
_MOST_WAITING = 64


class _WaitingRequest(msgspec.Struct, frozen=True):
    sending: Sending
    started_ns: int
    started_s: float
    context: Context


class Telemetry:
    """An observer that exports a span for each answered request, with its tokens, duration and cost."""

    def __init__(
        self,
        thread: str = "",
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        with needs_extra("OpenTelemetry is not installed", "otel"):
            from opentelemetry import metrics, trace
        from quire import __version__

        self.thread = thread
        self._tracer = trace.get_tracer("quire", __version__, tracer_provider)
        meter = metrics.get_meter("quire", __version__, meter_provider)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of a request and of its reply."
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "From a request that is handed out to its reply."
        )
        self._cached = meter.create_counter("quire.cache.read_tokens", "{token}", "Input that came from the cache.")
        self._money = meter.create_counter("quire.cost", "USD", "What replies cost, where that is known.")
        self._waiting: dict[str, _WaitingRequest] = {}

    def on_request(self, sending: Sending) -> None:
        from opentelemetry import context

        waiting = _WaitingRequest(sending, time.time_ns(), time.monotonic(), context.get_current())
        self._waiting[sending.request.lines.sha256] = waiting
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def on_reply(self, received: Received) -> None:
        from opentelemetry.trace import SpanKind

        request, waiting = received.request, self._waiting.pop(received.request.lines.sha256, None)
        common = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _NAMES.get(provider := request.provider.split("-")[0], provider),
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": received.reply.model or request.model,
        }
        span = self._tracer.start_span(
            f"chat {request.model}",
            context=waiting.context if waiting else None,
            kind=SpanKind.CLIENT,
            attributes={**common, **self._attributes(received, waiting)},
            start_time=waiting.started_ns if waiting else None,
        )
        span.end()
        used = received.reply.usage
        self._tokens.record(used.input_total, {**common, "gen_ai.token.type": "input"})
        self._tokens.record(used.output, {**common, "gen_ai.token.type": "output"})
        self._cached.add(used.cache_read, common)
        if waiting:
            self._seconds.record(time.monotonic() - waiting.started_s, common)
        if (usd := known_cost(used, request.target)) is not None:
            self._money.add(usd, common)

    def _attributes(self, received: Received, waiting: _WaitingRequest | None) -> dict[str, Any]:
        """The attributes of a span beside the common ones."""
        request, reply = received.request, received.reply
        asked = [request.body, *(as_object(request.body.get(holder)) for holder in _HOLDERS)]
        attributes: dict[str, Any] = {
            **{f"gen_ai.request.{_SETTINGS[key]}": body[key] for body in asked for key in _SETTINGS if key in body},
            "gen_ai.conversation.id": self.thread,
            "gen_ai.response.id": reply.id,
            "gen_ai.response.finish_reasons": (reply.stop,) if reply.stop else None,
            "quire.epoch": request.epoch,
            "quire.left_out": len(request.left_out),
            "quire.request.sha256": request.lines.sha256,
            "quire.cost.usd": known_cost(reply.usage, request.target),
        }
        if any(getattr(reply.usage, name) for name in COUNTS):
            used = reply.usage
            attributes |= {
                "gen_ai.usage.input_tokens": used.input_total,
                "gen_ai.usage.output_tokens": used.output,
                "gen_ai.usage.cache_read.input_tokens": used.cache_read,
                "gen_ai.usage.cache_creation.input_tokens": used.cache_write_5m + used.cache_write_1h,
                "gen_ai.usage.reasoning.output_tokens": used.reasoning,
            }
        if waiting:
            attributes["quire.tokens.expected"] = waiting.sending.expected_tokens
            attributes["quire.rebase"] = (waiting.sending.built.rebase or {}).get("reason")
        return {name: value for name, value in attributes.items() if value not in (None, "")}


def watched(thread: Thread, environment: Mapping[str, str]) -> Thread:
    """The thread, with Telemetry over OTLP/HTTP if the environment's OTEL_… variables name an endpoint."""
    place = "OTEL_EXPORTER_OTLP_{}ENDPOINT"
    traces, metrics = (
        bool(environment.get(place.format("")) or environment.get(place.format(kind)))
        for kind in ("TRACES_", "METRICS_")
    )
    if (traces or metrics) and environment.get("OTEL_SDK_DISABLED", "").lower() != "true":
        providers = _exporting(traces, metrics, environment.get("OTEL_SERVICE_NAME", "quire"))
        thread.observers += (Telemetry(thread.name, *providers),)
    return thread


@functools.cache
def _exporting(traces: bool, metrics: bool, service: str) -> tuple[TracerProvider, MeterProvider]:
    """This process's exporters; the SDK reads the other OTEL_… variables itself, and flushes when the process ends."""
    with needs_extra("OpenTelemetry is not installed", "otel"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    resource = Resource.create({"service.name": service})
    spans = TracerProvider(resource=resource)
    if traces:
        spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if metrics else []
    return spans, MeterProvider(readers, resource=resource)
