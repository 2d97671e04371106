"""Reattaching to a stream. Owns: the snapshot that a caller with its key gets in place of all earlier frames. Refuses
to know: engines and HTTP."""

from __future__ import annotations

from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.rope import Frame, join
from ninelives.dialects.responses import items
from ninelives.dialects.responses.frames import ResponsesProjection, ResponsesView, Rest
from ninelives.dialects.responses.shapes import Response
from ninelives.dialects.sse import encoded_frame


class ReattachProjection(ResponsesProjection):
    """For a caller who repeats its request with the same key during the run: one snapshot at the live edge replaces all
    frames before it (G2). The snapshot has the number of the last frame before it."""

    def view0(self, after: int) -> ResponsesView:
        """See Projection.view0: no frame before the live edge is sent, except the last."""
        return ResponsesView(2**62, 0, None)

    def step(self, view: ResponsesView, entry: e.Entry) -> tuple[ResponsesView, list[Frame]]:
        """See Projection.step: a run that ends before the live edge still begins with its snapshot."""
        if view.after < 0 or not isinstance(entry.event, e.Terminal):
            return super().step(view, entry)
        view, snapshot = self.live(view)
        view, frames = super().step(view, entry)
        return view, snapshot + frames

    def live(self, view: ResponsesView) -> tuple[ResponsesView, list[Frame]]:
        """See Projection.live."""
        if view.after < 0 or view.rest is None:
            return view, []
        body = {"type": "response.snapshot", "sequence_number": view.n - 1, "response": _so_far(view, view.rest)}
        return replace(view, after=-1), [encoded_frame(b"response.snapshot", body)]


def _so_far(view: ResponsesView, rest: Rest) -> Response:
    output = list(rest.output)
    if rest.text_seq >= 0:
        said, refusal = join(view.text), join(view.refusal)
        output[rest.text_index] = items.message(rest.run, rest.text_seq, said, "in_progress", refusal)
    if rest.thought_seq >= 0:
        output[rest.thought_index] = items.reasoning(rest.run, rest.thought_seq, join(view.thought), "in_progress")
    return replace(rest.head, status="in_progress" if rest.begun else "queued", output=output)
