"""The state of the server in the words of hermes-agent. Owns: those words. Refuses to know: where the state comes
from."""

from __future__ import annotations

from msgspec import Struct

from ninelives.dialects.hermes.shapes import GatewayState


class ServerState(Struct, frozen=True):
    """What health and status are made of."""

    draining: bool
    active: int
    """Runs at work."""
    at: str
    """Now, as in ISO 8601."""


def status_fields(state: ServerState) -> dict[str, object]:
    """The fields that front ends of hermes-agent read in /health/detailed and /api/status."""
    word: GatewayState = "draining" if state.draining else "running"
    return {
        "platform": "hermes-agent",
        "server": "ninelives",
        "gateway_state": word,
        "active_agents": state.active,
        "gateway_busy": state.active > 0,
        "platforms": {"api_server": {"state": "draining" if state.draining else "connected"}},
        "exit_reason": None,
        "updated_at": state.at,
    }
