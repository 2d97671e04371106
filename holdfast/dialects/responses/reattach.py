"""A stream that is come back to. Owns: the snapshot which a caller with its key gets in place of all that went before.
Refuses to know: engines and HTTP."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.rope import join
from holdfast.dialects.responses import items
from holdfast.dialects.responses.frames import ResponsesProjection, Rest, View
from holdfast.dialects.sse import encode, named_frame


class ReattachProjection(ResponsesProjection):
    """For a caller who comes back with its key while the run goes on: one snapshot at the live edge instead of all
    frames before it (G2). The snapshot is not counted; the next frame is one higher than its number."""

    def view0(self, after: int) -> View:
        """See Projection.view0: nothing before the edge is given out, but for the end."""
        return View(2**62, 0, None)

    def step(self, view: View, entry: e.Entry) -> tuple[View, list[bytes]]:
        """See Projection.step: a run that ends before the edge is reached still begins with its snapshot."""
        if view.after < 0 or not isinstance(entry.event, e.Terminal):
            return super().step(view, entry)
        view, snapshot = self.live(view)
        view, frames = super().step(view, entry)
        return view, snapshot + frames

    def live(self, view: View) -> tuple[View, list[bytes]]:
        """See Projection.live."""
        if view.after < 0 or view.rest is None:
            return view, []
        body = {"type": "response.snapshot", "sequence_number": view.n - 1, "response": _so_far(view, view.rest)}
        return replace(view, after=-1), [named_frame(b"response.snapshot", encode(body))]


def _so_far(view: View, rest: Rest) -> dict[str, object]:
    output = list(rest.output)
    if rest.text_seq >= 0:
        said, refusal = join(view.text), join(view.refusal)
        output[rest.text_index] = items.message(rest.run, rest.text_seq, said, "in_progress", refusal)
    if rest.thought_seq >= 0:
        output[rest.thought_index] = items.reasoning(rest.run, rest.thought_seq, join(view.thought), "in_progress")
    return {**rest.head, "status": "in_progress" if rest.begun else "queued", "output": output}
