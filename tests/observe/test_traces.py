"""Spans by the GenAI conventions, read back with the in-memory exporter of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ninelives.core import events as e
from ninelives.core.state import fold
from ninelives.observe.log import Log
from ninelives.observe.runs import RunCounts, RunObserver
from ninelives.observe.traces import SpanTraces
from tests.journals import AT, STEP_MS, Pen, spec_of

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAID = "my secret words"


def watched(pen: Pen, first: int = 2, *, content: bool = False, ends: bool = True) -> Sequence[ReadableSpan]:
    """The spans of a journal, told entry by entry from this place on, as the writer does."""
    exporter = InMemorySpanExporter()
    traces = SpanTraces(SimpleSpanProcessor(exporter), lambda profile: "gpt-x", content=content)
    observer = RunObserver(RunCounts(), Log(str, None), traces)
    for n in range(first, len(pen.entries)):
        observer.told(fold(pen.entries[: n + 1]), [pen.entries[n]])
    observer.left(pen.state.facts.run)
    traces.close()
    return exporter.get_finished_spans()


def one_tool(trace: str = "") -> Pen:
    asked = spec_of("chat", input=({"role": "user", "content": SAID},), trace=trace)
    pen = Pen(asked).attempt()
    call = pen.call("read_file", '{"path": "secret.txt"}')
    pen.text("Let me see.").settle(call, usage=e.Usage(100, 20, 40, 5)).start(call).finish(call, "its contents")
    return pen.text("Done, ", SAID).settle(usage=e.Usage(150, 30)).complete()


def named(spans: Sequence[ReadableSpan]) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return found


def shown(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_run_is_an_agent_span_with_its_model_and_tool_calls_inside() -> None:
    spans = named(watched(one_tool()))
    assert {name: len(each) for name, each in spans.items()} == {
        "invoke_agent hermes-agent": 1,
        "chat gpt-x": 2,
        "execute_tool read_file": 1,
    }
    (agent,), (first, second), (tool,) = (
        spans["invoke_agent hermes-agent"],
        spans["chat gpt-x"],
        spans["execute_tool read_file"],
    )
    assert shown(agent)["gen_ai.operation.name"] == "invoke_agent" and agent.kind is SpanKind.INTERNAL
    assert shown(agent)["gen_ai.agent.name"] == "hermes-agent" and shown(agent)["gen_ai.conversation.id"] == "auto-1"
    assert shown(agent)["gen_ai.usage.input_tokens"] == 250 and shown(agent)["gen_ai.provider.name"] == "openai"
    assert agent.parent is None and agent.start_time == AT * 1_000_000
    assert shown(first) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.usage.reasoning.output_tokens": 5,
        "gen_ai.response.time_to_first_chunk": 2 * STEP_MS / 1000,
    }
    assert shown(tool)["gen_ai.tool.name"] == "read_file" and shown(tool)["gen_ai.operation.name"] == "execute_tool"
    assert shown(tool)["gen_ai.tool.call.id"] and shown(tool)["gen_ai.tool.type"] == "function"
    assert agent.context is not None
    parents = {span.parent.span_id if span.parent else None for span in (first, second, tool)}
    assert parents == {agent.context.span_id}
    assert (tool.end_time or 0) - (tool.start_time or 0) == STEP_MS * 1_000_000


def test_what_was_said_is_in_traces_only_where_the_operator_wants_it() -> None:
    def said(content: bool) -> str:
        return " ".join(str(shown(span)) for span in watched(one_tool(), content=content))

    assert SAID not in said(False) and "secret.txt" not in said(False) and "its contents" not in said(False)
    assert SAID in said(True) and "secret.txt" in said(True) and "its contents" in said(True)


def test_a_run_belongs_to_the_trace_of_its_caller() -> None:
    (agent,) = named(watched(one_tool(TRACE)))["invoke_agent hermes-agent"]
    assert agent.context is not None and agent.parent is not None
    assert f"{agent.context.trace_id:032x}" == TRACE[3:35] and f"{agent.parent.span_id:016x}" == TRACE[36:52]


def test_an_attempt_links_to_the_one_before_it_which_was_in_another_process() -> None:
    pen = Pen().attempt().text("Hel")
    (first,) = watched(pen)
    crashed = pen.crash().text("Hello").settle().complete()
    (second,) = named(watched(crashed, 4))["invoke_agent hermes-agent"]
    assert first.context is not None and second.context is not None
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert second.context.trace_id == first.context.trace_id and second.context.span_id != first.context.span_id
    assert shown(first)["ninelives.parked"] is True and shown(second)["ninelives.attempt"] == 2


def test_a_failed_run_has_an_error_type() -> None:
    pen = Pen().attempt().write(e.RunFailed(code="upstream_timeout", message="It took too long."))
    (span,) = watched(pen)
    assert span.status.status_code is StatusCode.ERROR and shown(span)["error.type"] == "upstream_timeout"
