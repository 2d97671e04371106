"""A chat in a session as JSON. Owns: the answer of a run there. Refuses to know: engines and HTTP."""

from __future__ import annotations

from ninelives.core.state import RunState
from ninelives.dialects.hermes.shapes import SessionAnswer, SessionCompletion
from ninelives.dialects.runs.body import body as run_body


def completion(state: RunState) -> SessionCompletion:
    """The answer. While a person is asked, `status` says so, and the run is answered at /v1/runs."""
    run = run_body(state)
    return SessionCompletion(
        object="hermes.session.chat.completion",
        session_id=run.session_id or "",
        message=SessionAnswer("assistant", run.output),
        usage=run.usage,
        run_id=run.run_id,
        status=run.status,
        model=run.model,
        created_at=run.created_at,
    )
