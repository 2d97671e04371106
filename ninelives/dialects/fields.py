"""Reading the JSON of a request. Owns: typed decoding with errors that name the field (A7), and the types of fields.
Refuses to know: which fields a dialect has."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ninelives.core.errors import ClientError

T = TypeVar("T")
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`")

Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Positive = Annotated[int, Meta(ge=1, le=2**31)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Input = Annotated[str, Meta(max_length=10_485_760)]
CacheKey = Annotated[str, Meta(max_length=64)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]
Json = dict[str, object]
MAX_TOOLS = 1024
Tools = Annotated[list[Json], Meta(max_length=MAX_TOOLS)]
LogitBias = Annotated[dict[str, float], Meta(max_length=1024)]
Stops = Annotated[list[str], Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(description="Seconds since 1970.")]


def decode(raw: bytes, kind: type[T]) -> T:
    """The request in `raw`; ClientError 400 with the field's name where it does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        found = _PATH.search(str(error))
        path = found.group(1) if found else ""
        what = _PATH.sub("", str(error))
        name = path.split(".")[0].split("[")[0] or None
        where = f"Invalid value for '{path}'" if path else "Invalid request"
        raise ClientError("invalid_value", f"{where}: {what}.", param=name) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ClientError("invalid_json", f"The body is not valid JSON: {error}.") from error


def required(value: T | None, name: str) -> T:
    """The value of a field that must be there."""
    if value is None:
        raise ClientError("missing_required_parameter", f"Missing required parameter: '{name}'.", param=name)
    return value
