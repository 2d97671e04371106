"""Reading /metrics as Prometheus does."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[tuple[str, frozenset[Any]], float]:
    """As Prometheus's own parser reads them."""
    families = text_string_to_metric_families(text)
    return {(each.name, frozenset(each.labels.items())): each.value for one in families for each in one.samples}
