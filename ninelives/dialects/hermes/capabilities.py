"""What hermes-agent's front ends ask a server for. Owns: the feature flags and named endpoints of /v1/capabilities, as
tables. A flag that depends on a route is true where the route is served, so it cannot promise what is missing. Refuses
to know: how routes are made."""

from __future__ import annotations

from collections.abc import Collection

Route = tuple[str, str]
"""A method, and a path as this server spells it."""

_CHAT: Route = ("POST", "/v1/chat/completions")
_RESPONSES: Route = ("POST", "/v1/responses")
_EVENTS: Route = ("GET", "/v1/runs/{id}/events")
_APPROVAL: Route = ("POST", "/v1/runs/{id}/approval")

FEATURES: dict[str, Route | bool | str] = {
    "chat_completions": _CHAT,
    "chat_completions_streaming": _CHAT,
    "responses_api": _RESPONSES,
    "responses_streaming": _RESPONSES,
    "run_submission": ("POST", "/v1/runs"),
    "run_status": ("GET", "/v1/runs/{id}"),
    "run_events_sse": _EVENTS,
    "run_stop": ("POST", "/v1/runs/{id}/stop"),
    "run_steer": ("POST", "/v1/runs/{id}/steer"),
    "run_approval_response": _APPROVAL,
    "approval_events": _EVENTS,
    "approval_identity_v1": _APPROVAL,
    "tool_progress_events": _CHAT,
    "reasoning_streaming": _CHAT,
    "session_resources": ("GET", "/api/sessions"),
    "session_chat": ("POST", "/api/sessions/{id}/chat"),
    "session_chat_streaming": ("POST", "/api/sessions/{id}/chat/stream"),
    "session_fork": ("POST", "/api/sessions/{id}/fork"),
    "session_model_lock": ("POST", "/api/sessions/{id}/model"),
    "model_options": ("GET", "/api/model/options"),
    "skills_api": ("GET", "/v1/skills"),
    "admin_config_rw": False,
    "jobs_admin": ("GET", "/api/jobs"),
    "memory_write_api": False,
    "audio_api": False,
    "realtime_voice": False,
    "session_continuity_header": "X-Hermes-Session-Id",
    "session_key_header": "X-Hermes-Session-Key",
}
ENDPOINTS: dict[str, tuple[str, str]] = {
    "health": ("GET", "/health"),
    "health_detailed": ("GET", "/health/detailed"),
    "status": ("GET", "/api/status"),
    "models": ("GET", "/v1/models"),
    "model_options": ("GET", "/api/model/options"),
    "chat_completions": ("POST", "/v1/chat/completions"),
    "responses": ("POST", "/v1/responses"),
    "runs": ("POST", "/v1/runs"),
    "run_status": ("GET", "/v1/runs/{run_id}"),
    "run_events": ("GET", "/v1/runs/{run_id}/events"),
    "run_approval": ("POST", "/v1/runs/{run_id}/approval"),
    "run_steer": ("POST", "/v1/runs/{run_id}/steer"),
    "run_stop": ("POST", "/v1/runs/{run_id}/stop"),
    "skills": ("GET", "/v1/skills"),
    "toolsets": ("GET", "/v1/toolsets"),
    "sessions": ("GET", "/api/sessions"),
    "session_create": ("POST", "/api/sessions"),
    "session": ("GET", "/api/sessions/{session_id}"),
    "session_update": ("PATCH", "/api/sessions/{session_id}"),
    "session_delete": ("DELETE", "/api/sessions/{session_id}"),
    "session_messages": ("GET", "/api/sessions/{session_id}/messages"),
    "session_fork": ("POST", "/api/sessions/{session_id}/fork"),
    "session_chat": ("POST", "/api/sessions/{session_id}/chat"),
    "session_chat_stream": ("POST", "/api/sessions/{session_id}/chat/stream"),
    "session_model": ("POST", "/api/sessions/{session_id}/model"),
}
RUNTIME: dict[str, object] = {
    "mode": "server_agent",
    "tool_execution": "server",
    "split_runtime": False,
    "description": "The server runs the agent and its tools. A run survives its caller and the process.",
}


def features(served: Collection[Route], *, cors: bool) -> dict[str, object]:
    """The flags, of a server with these routes. Keys of requests are kept as long as their run."""
    flags = {name: wanted in served if isinstance(wanted, tuple) else wanted for name, wanted in FEATURES.items()}
    return {**flags, "runs_idempotency": {"supported": True, "durable": True}, "cors": cors}


def endpoints(served: Collection[Route]) -> dict[str, dict[str, str]]:
    """The named endpoints that are served, in the words of hermes-agent."""
    ours = {name: (method, _our_path(path)) for name, (method, path) in ENDPOINTS.items()}
    return {
        name: {"method": method, "path": path} for name, (method, path) in ENDPOINTS.items() if ours[name] in served
    }


def _our_path(path: str) -> str:
    return path.replace("{run_id}", "{id}").replace("{session_id}", "{id}")
