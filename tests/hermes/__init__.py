"""hermes-webui's own gateway client against a server of ours."""
