"""Traces and metrics by the GenAI conventions, as an OTLP receiver in this process reads them."""

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from quire import Reply, Thread, Usage, open_store, values
from quire.telemetry import Telemetry, watched
from quire.testing import emulator
from toolbox import QUIRE, QuietHandler, in_background

MODEL = "anthropic:claude-opus-4-6"


class Receiver:
    """Decodes what exporters send: spans by name, data points by metric."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []
        self.points: dict[str, list[Any]] = {}
        self.services: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services.add(attributes(resource.resource)["service.name"])
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics if "metrics" in path else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                data = metric.histogram if metric.HasField("histogram") else metric.sum
                self.points.setdefault(metric.name, []).extend(data.data_points)


def attributes(holder: Any) -> dict[str, Any]:
    told = {}
    for each in holder.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        told[each.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return told


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.received()
            taken.take(self.path, gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.answer(b"")

    with in_background(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        taken = Receiver(url)
        yield taken


@pytest.mark.parametrize(
    ("target", "asked", "more"),
    [
        ("gemini:gemini-3.8-flash", {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7}, {"top_k": 3, "seed": 7}),
        ("bedrock:amazon.nova-pro-v1:0", {"extra": {"inferenceConfig": {"temperature": 0.5, "topP": 0.9}}}, {}),
        ("cohere:command-a-03-2025", {"temperature": 0.5, "extra": {"p": 0.9, "k": 3}}, {"top_k": 3}),
    ],
)
def test_a_span_says_what_was_asked_wherever_the_provider_has_it(target: str, asked: Any, more: dict[str, int]) -> None:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    with open_store(":memory:") as store:
        thread = Thread(store, "kitchen", observers=[Telemetry("kitchen", tracers)])
        thread.user("Hello")
        request = thread.request(target, max_tokens=300, **asked)
        thread.record(Reply((values.respond("Hi."),), Usage(10, output=1)), request)
    [span] = spans.get_finished_spans()
    told = {name: value for name, value in (span.attributes or {}).items() if name.startswith("gen_ai.request.")}
    expected = {"model": request.model, "max_tokens": 300, "temperature": 0.5, "top_p": 0.9, **more}
    assert told == {f"gen_ai.request.{name}": value for name, value in expected.items()}


def test_each_answered_request_is_a_span_with_its_tokens_money_and_epoch(receiver: Receiver) -> None:
    tracers, parent = TracerProvider(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.url}/v1/metrics"), 1e8)])
    with open_store(":memory:") as store:
        thread = Thread(store, "kitchen", observers=[Telemetry("kitchen", tracers, meters)])
        thread.user("Which colour has the secret kettle?")
        used = Usage(input_total=1000, cache_read=700, cache_write_5m=200, output=50, reasoning=20)
        reply = Reply((values.respond("Blue."),), used, "end_turn", "msg_1", "claude-opus-4-6-x")
        with parent.get_tracer("app").start_as_current_span("turn") as turn:
            request = thread.request(MODEL, max_tokens=300)
            thread.request(MODEL, max_tokens=300)
        thread.record(reply, request)
        thread.user("Never answered.")
        thread.request(MODEL)
    tracers.shutdown()
    meters.shutdown()
    [span] = receiver.spans
    told = attributes(span)
    assert span.name == "chat claude-opus-4-6"
    assert span.kind == span.SPAN_KIND_CLIENT
    assert span.parent_span_id == turn.get_span_context().span_id.to_bytes(8)
    assert told.pop("quire.cost.usd") > 0
    assert told.pop("quire.tokens.expected") > 5
    assert told == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-opus-4-6", "gen_ai.response.model": "claude-opus-4-6-x",
        "gen_ai.request.max_tokens": 300, "gen_ai.conversation.id": "kitchen", "gen_ai.response.id": "msg_1",
        "gen_ai.response.finish_reasons": ["end_turn"], "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 50, "gen_ai.usage.cache_read.input_tokens": 700,
        "gen_ai.usage.cache_creation.input_tokens": 200, "gen_ai.usage.reasoning.output_tokens": 20,
        "quire.epoch": 1, "quire.left_out": 0, "quire.request.sha256": request.lines.sha256,
    }  # fmt: skip
    tokens = {
        attributes(point)["gen_ai.token.type"]: point.sum for point in receiver.points["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": 1000, "output": 50}
    assert [point.as_int for point in receiver.points["quire.cache.read_tokens"]] == [700]
    assert [point.count for point in receiver.points["gen_ai.client.operation.duration"]] == [1]
    assert receiver.points["quire.cost"][0].as_double > 0
    assert "kettle" not in str(receiver.spans) + str(receiver.points)


def test_nothing_is_told_or_imported_unless_the_environment_names_an_endpoint() -> None:
    with open_store(":memory:") as store:
        usual = Thread(store, "t").observers
        for environment in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}):
            assert len(watched(Thread(store, "t"), environment).observers) == len(usual)
    unused = "import sys, quire.telemetry, quire.server.service; sys.exit('opentelemetry.sdk' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", unused], env=environment).returncode == 0


def test_a_command_exports_what_it_sent(receiver: Receiver, tmp_path: Path) -> None:
    with emulator("vllm", replies=["Hello."]) as server:
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "QUIRE_DB": str(tmp_path / "q.db"),
            "ANTHROPIC_API_KEY": "any", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "mine",
        }  # fmt: skip
        command = [*QUIRE, "run", "t", "Hi", "--model", "vllm:m", "--base-url", f"{server.url}/v1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [attributes(span)["gen_ai.conversation.id"] for span in receiver.spans] == ["t"]
    assert receiver.services == {"mine"}
    assert "gen_ai.client.token.usage" in receiver.points
