"""The shapes of hermes-agent's API server, so that its front ends work after a change of their URL. What they share
with the Runs API is in dialects/runs. Nothing outside of this folder, dialects/runs and the routes of both knows
them."""
