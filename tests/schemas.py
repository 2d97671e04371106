"""The two authorities on what a Responses answer looks like: the Open Responses schema, which lies beside the
repository and is never part of it, and the types of openai-python. Owns: finding the schema, and the verdict on one
event or body. Refuses to know: where events and bodies come from."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from pydantic import TypeAdapter

VARIABLE = "NINELIVES_OPENRESPONSES_SCHEMA"
BESIDE = Path(__file__).parents[1] / ".." / "shared" / "facts" / "openresponses-openapi.json"
Json = dict[str, Any]


@cache
def _document() -> Json:
    path = Path(os.environ.get(VARIABLE) or BESIDE)
    if not path.is_file():
        pytest.skip(f"NOT CHECKED against Open Responses: there is no {path}. Set {VARIABLE} to the file.")
    document: Json = json.loads(path.read_text())
    # A defect of the published file: a response could only show a JSON schema format whose schema is null, while the
    # request (JsonSchemaResponseFormatParam) must bring an object. An answer shows what was asked for.
    told = document["components"]["schemas"]["JsonSchemaResponseFormat"]["properties"]
    if told["schema"] == {"anyOf": [{"type": "null"}]}:
        told["schema"] = {"type": "object"}
    return document


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": _document()["components"]},
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )


@cache
def _event_names() -> dict[str, str]:
    """Event type -> name of its schema."""
    document = _document()
    answers = document["paths"]["/responses"]["post"]["responses"]["200"]["content"]
    names = [each["$ref"].rpartition("/")[2] for each in answers["text/event-stream"]["schema"]["oneOf"]]
    schemas = document["components"]["schemas"]
    return {schemas[name]["properties"]["type"]["enum"][0]: name for name in names}


def _check(name: str, value: Json) -> None:
    errors = [f"{error.json_path}: {error.message[:300]}" for error in _validator(name).iter_errors(value)]
    assert not errors, (name, errors, value)


def open_responses_event(event: Json) -> None:
    """It is an event of Open Responses."""
    assert event["type"] in _event_names(), f"Open Responses has no event {event['type']}"
    _check(_event_names()[event["type"]], event)


def open_responses_body(body: Json) -> None:
    """It is a response, a compaction or a list of items of Open Responses."""
    match body["object"]:
        case "response":
            _check("ResponseResource", body)
        case "response.compaction":
            _check("CompactResource", body)
        case "list":
            for item in body["data"]:
                _check("ItemField", item)
        case other:
            raise AssertionError(f"Open Responses has no {other}")


_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def sdk_event(event: Json) -> None:
    """openai-python's own types take it, strictly."""
    assert _EVENT.validate_python(event, strict=True).type == event["type"]


def sdk_body(body: Json) -> None:
    """openai-python's own types take it, strictly."""
    match body["object"]:
        case "response":
            Response.model_validate(body, strict=True)
        case "response.compaction":
            # The SDK types output messages as the assistant's, though its own documentation says that the user's come
            # first here: only the rest can be checked.
            rest = [item for item in body["output"] if item.get("role") != "user"]
            CompactedResponse.model_validate({**body, "output": rest}, strict=True)
