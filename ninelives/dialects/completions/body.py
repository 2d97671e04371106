"""A text completion as JSON. Owns: the completion object of a state. Refuses to know: engines and HTTP."""

from __future__ import annotations

from ninelives.core.ids import wire_id
from ninelives.core.state import RunState
from ninelives.dialects.chat import body as chat
from ninelives.dialects.completions.shapes import TextChoice, TextCompletion


def body(state: RunState) -> TextCompletion:
    """The completion. During the run, the complete messages so far."""
    whole = chat.body(state)
    (choice,) = whole.choices
    text = (choice.message.content or "") + (choice.message.refusal or "")
    return TextCompletion(
        id=wire_id("completions", state.facts.run),
        object="text_completion",
        created=whole.created,
        model=whole.model,
        choices=[TextChoice(text, 0, None, choice.finish_reason)],
        usage=whole.usage,
    )
