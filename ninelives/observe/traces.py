"""Traces of runs, by the GenAI conventions of OpenTelemetry. Owns: the spans (one for each attempt at a run, each model
call and each tool call), their attributes and links, and the ids. Refuses to know: how runs are watched (runs.py).

Theory of operation. Spans are made from committed entries, with the times of those entries. The ids of an attempt's
span follow from the run and the number of the attempt. So an attempt can link to the one before it, though that was in
another process, which died before it sent its own span. What was said is left out unless the operator wants it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from ninelives import __version__
from ninelives.core import events as e
from ninelives.core.state import RunState
from ninelives.observe.runs import Watched

NS = 1_000_000
"""Nanoseconds of a millisecond."""
PROVIDER = "openai"
"""gen_ai.provider.name: the format in which models are asked."""
CONTENT_CHARS = 16_384
"""The longest text in an attribute."""
_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


class ChosenIds(RandomIdGenerator):
    """The ids of the next span, where they were chosen."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        """See IdGenerator."""
        return self.trace_id or super().generate_trace_id()

    def generate_span_id(self) -> int:
        """See IdGenerator."""
        chosen, self.span_id = self.span_id, 0
        return chosen or super().generate_span_id()


class SpanTraces:
    """See observe.runs.Traces."""

    def __init__(self, processor: SpanProcessor, model_of: Callable[[str], str], *, content: bool = False) -> None:
        """`model_of` gives the name of a profile's model at its upstream."""
        self._ids = ChosenIds()
        resource = Resource.create({"service.name": "ninelives", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ninelives", __version__)
        self._model_of = model_of
        self._content = content
        self._open: dict[str, Span] = {}

    def close(self) -> None:
        """Send what is left. It blocks."""
        self._provider.shutdown()

    def began(self, state: RunState, watched: Watched) -> None:
        """See Traces.began."""
        facts = state.facts
        spec, number = facts.accepted.spec, facts.attempt
        trace_id, parent = _trace_of(facts.run, spec.trace)
        self._ids.trace_id, self._ids.span_id = trace_id, _span_id(facts.run, number)
        links = []
        if number > 1:
            before = SpanContext(trace_id, _span_id(facts.run, number - 1), True, TraceFlags(TraceFlags.SAMPLED))
            links.append(Link(before, {"ninelives.attempt": number - 1}))
        self._open[facts.run] = self._tracer.start_span(
            f"invoke_agent {spec.model}",
            context=parent,
            kind=SpanKind.INTERNAL,
            start_time=watched.began_at * NS,
            links=links,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.agent.name": spec.model,
                "gen_ai.conversation.id": facts.accepted.resolved.session or facts.run,
                "gen_ai.request.model": self._model_of(spec.model),
                "ninelives.run": facts.run,
                "ninelives.attempt": number,
                "ninelives.dialect": spec.dialect,
            },
        )
        self._ids.trace_id = 0

    def message(self, state: RunState, watched: Watched, said: e.MessageCompleted, at: int) -> None:
        """See Traces.message."""
        model, usage = self._model_of(state.facts.accepted.spec.model), said.usage
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.finish_reasons": [_FINISH.get(said.finish, said.finish)],
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
        if watched.delta_at:
            attributes["gen_ai.response.time_to_first_chunk"] = max(0, watched.delta_at - watched.step_at) / 1000
        if self._content:
            parts = [{"type": "text", "content": said.spoken}] if said.spoken else []
            calls = [{"type": "tool_call", "id": c.id, "name": c.name, "arguments": c.arguments} for c in said.calls]
            shown = [{"role": "assistant", "parts": [*parts, *calls], "finish_reason": said.finish}]
            attributes["gen_ai.output.messages"] = msgspec.json.encode(shown).decode()[:CONTENT_CHARS]
        self._child(state, f"chat {model}", SpanKind.CLIENT, watched.step_at, attributes).end(at * NS)

    def tool(self, state: RunState, started: e.ToolStarted, began_at: int, finished: e.ToolFinished, at: int) -> None:
        """See Traces.tool."""
        call = started.call
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
        }
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = call.arguments[:CONTENT_CHARS]
            attributes["gen_ai.tool.call.result"] = finished.output[:CONTENT_CHARS]
        span = self._child(state, f"execute_tool {call.name}", SpanKind.INTERNAL, began_at, attributes)
        if finished.is_error:
            _fail(span, "unknown_outcome" if finished.outcome == "unknown" else "tool_error")
        span.end(at * NS)

    def over(self, run: str, state: RunState | None, at: int) -> None:
        """See Traces.over."""
        span = self._open.pop(run, None)
        if span is None:
            return
        if state is None:
            span.set_attribute("ninelives.parked", True)
        else:
            usage, end = state.facts.usage, state.facts.end
            span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
            span.set_attribute("ninelives.status", state.status)
            if isinstance(end, e.RunFailed):
                _fail(span, end.reason or end.code)
        span.end(at * NS)

    def _child(self, state: RunState, name: str, kind: SpanKind, began_at: int, attributes: dict[str, Any]) -> Span:
        parent = self._open.get(state.facts.run)
        context = set_span_in_context(parent, Context()) if parent is not None else Context()
        return self._tracer.start_span(
            name, context=context, kind=kind, start_time=began_at * NS, attributes=attributes
        )


def otlp_traces(url: str, authorization: str, model_of: Callable[[str], str], *, content: bool) -> SpanTraces:
    """Traces that are sent to a collector with OTLP over HTTP, in batches, by a thread of its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    headers = {"Authorization": authorization} if authorization else None
    return SpanTraces(BatchSpanProcessor(OTLPSpanExporter(url, headers=headers)), model_of, content=content)


def _fail(span: Span, code: str) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def _trace_of(run: str, traceparent: str) -> tuple[int, Context]:
    """The trace of a run, and the context of its spans: the caller's, or one of its own."""
    if not traceparent:
        return _number(f"trace/{run}", 16), Context()
    _, trace, span, flags = traceparent.split("-")
    caller = SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16)))
    return caller.trace_id, set_span_in_context(NonRecordingSpan(caller), Context())


def _span_id(run: str, attempt: int) -> int:
    return _number(f"attempt/{run}/{attempt}", 8)


def _number(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1
