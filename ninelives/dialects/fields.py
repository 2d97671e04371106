"""Reading the JSON of a request. Owns: typed decoding with errors that name the field (A7), and the fields that make a
fingerprint (G4). Refuses to know: which fields a dialect has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import compress, repeat
from operator import is_not
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
Sent = list[tuple[str, object]]
"""Fields of a request, each with its value."""
NOT_IN_FINGERPRINT = frozenset({"stream", "stream_options"})


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


def known_fields(sent: Sent, defaults: Mapping[str, object], profile: str | None) -> dict[str, object]:
    """The sent fields that differ from the documented default of the API, without those that only concern delivery.
    The model is the profile that answers (Context.named_profile). The values are those of the request: a conversation
    is not copied."""
    known = {name: value for name, value in sent if name not in NOT_IN_FINGERPRINT and value != defaults.get(name)}
    return known if profile is None else {**known, "model": profile}


def sent_fields(request: msgspec.Struct) -> Sent:
    """The fields of a request that are not null, in their order."""
    values = msgspec.structs.astuple(request)
    sent = list(map(is_not, values, repeat(None)))  # in C: a request has fifty fields, and most are not sent
    return list(zip(compress(request.__struct_fields__, sent), compress(values, sent), strict=True))


def required(value: T | None, name: str) -> T:
    """The value of a field that must be there."""
    if value is None:
        raise ClientError("missing_required_parameter", f"Missing required parameter: '{name}'.", param=name)
    return value
