"""/openapi.json. Owns: the OpenAPI 3.1 document. It is made from the routes of the application, their descriptions
(operations.py), and the Structs that requests are decoded with and answers are built with. Refuses to know: any one
route."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.routing import BaseRoute

from ninelives import __version__
from ninelives.dialects.shared import Error
from ninelives.http.describe.operations import DescribedRoute, Operation, Param

Doc = dict[str, Any]  # Any: a JSON document
_NOT_WORD = re.compile(r"\W+")
_PLACE = re.compile(r"{(\w+)(?::\w+)?}")
_COMMON = (400, 403, 421, 500, 503)
_EVENT = {
    "type": "object",
    "description": "One event of the stream: its data is a JSON object in one line, or [DONE] at the end.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_MEANING = {
    101: "Switching to a websocket.",
    200: "Done.",
    201: "Made.",
    202: "Accepted: it goes on by itself.",
    307: "It is elsewhere.",
    400: "The request cannot be done as it was sent; `param` names the field.",
    401: "No valid key.",
    403: "The key lacks the scope that this needs, or the page's origin may not call the server.",
    404: "There is no such thing, or it is somebody else's.",
    408: "The body did not arrive in time.",
    409: "It does not fit the state of things now; sending it again will not help.",
    413: "The body is too large.",
    415: "The body must be JSON in UTF-8.",
    421: "The server does not answer for that host name.",
    426: "Open a websocket here.",
    429: "Too much at once: wait for Retry-After.",
    500: "A bug of the server.",
    502: "The model behind the server failed.",
    503: "The server is starting, stopping, or cannot store: wait for Retry-After.",
    504: "The model behind the server took too long.",
}


def plain_path(path: str) -> str:
    """A route's path without its converters."""
    return _PLACE.sub(r"{\1}", path)


def document(routes: Iterable[BaseRoute], about: Mapping[str, str]) -> Doc:
    """The whole document. `about` has a sentence for some of the tags."""
    described = [route for route in routes if isinstance(route, DescribedRoute)]
    named, components = _schemas([route.operation for route in described])
    paths: Doc = {}
    for route in described:
        path, operation = plain_path(route.path), route.operation
        if operation.body is not None and operation.required:
            _require(components, named[repr(operation.body)], operation.required)
        for method in sorted(set(route.methods or ()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(method, path, route, named)
    tags = dict.fromkeys(route.tag for route in described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ninelives", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [{"name": tag, **({"description": about[tag]} if tag in about else {})} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "Your API key."}},
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[Doc, Doc]:
    """The schema of each type that an operation names, by the type's repr, and the components that they refer to."""
    kinds: list[type] = [Error]
    for operation in operations:
        kinds += [kind for kind in (operation.body, operation.error, *operation.answers.values()) if kind is not None]
    unique = list({repr(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(
        unique, schema_hook=_anything, ref_template="#/components/schemas/{name}"
    )
    return {repr(kind): schema for kind, schema in zip(unique, schemas, strict=True)}, components


def _anything(kind: type) -> Doc:
    """The schema of what a request may hold as it likes."""
    if kind is not object:
        raise NotImplementedError(f"{kind} has no schema")
    return {"description": "Anything."}


_ABOUT = (
    "The agent server you can kill -9: durable agent runs behind the OpenAI-compatible APIs. Unknown request fields "
    "are ignored. Every error has the shape of `Error`. The same document in words: the pages under docs/api."
)


def _require(components: Doc, schema: Doc, names: tuple[str, ...]) -> None:
    """Mark fields that must be there: not left out, and not null."""
    found = components[schema["$ref"].rsplit("/", 1)[1]]
    found["required"] = list(names)
    for name in names:
        field = found["properties"][name]
        field.pop("default", None)
        if "anyOf" in field:
            kept = [each for each in field.pop("anyOf") if each != {"type": "null"}]
            field.update(kept[0] if len(kept) == 1 else {"anyOf": kept})


def _operation(method: str, path: str, route: DescribedRoute, named: Doc) -> Doc:
    operation = route.operation
    made: Doc = {
        "operationId": _NOT_WORD.sub("_", f"{method.lower()}{path}").strip("_"),
        "tags": [route.tag],
        "summary": operation.summary,
        "description": operation.doc,
        "parameters": [_place(name) for name in _PLACE.findall(path)] + [_param(param) for param in operation.params],
        "responses": _responses(path, operation, named),
    }
    if operation.open:
        made["security"] = [{}, {"key": []}]
    if operation.body is not None:
        content: Doc = {"schema": named[repr(operation.body)]}
        if operation.example is not None:
            content["example"] = operation.example
        made["requestBody"] = {"required": not operation.body_optional, "content": {"application/json": content}}
    return made


def _place(name: str) -> Doc:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _param(param: Param) -> Doc:
    return {"name": param.name, "in": param.where, "description": param.doc, "schema": param.schema}


def _responses(path: str, operation: Operation, named: Doc) -> Doc:
    made: Doc = {}
    for status, kind in operation.answers.items():
        content: Doc = {}
        if kind is not None:
            content[operation.media] = {"schema": named[repr(kind)]}
        elif operation.media != "application/json":
            content[operation.media] = {"schema": {"type": "string"}}
        words = _MEANING[status]
        if operation.text and status == 200:
            content[operation.text] = {"schema": {"type": "string"}}
        if operation.stream and status == 200:
            content["text/event-stream"] = {"schema": _EVENT}
            words = f"{words} As a stream: {operation.stream}"
        made[str(status)] = {"description": words, **({"content": content} if content else {})}
    for status in sorted(_error_statuses(path, operation)):
        if str(status) not in made:
            error = {"application/json": {"schema": named[repr(operation.error or Error)]}}
            made[str(status)] = {"description": _MEANING[status], "content": error}
    return made


def _error_statuses(path: str, operation: Operation) -> set[int]:
    statuses = {*_COMMON, *operation.errors}
    if not operation.open:
        statuses.add(401)
    if operation.body is not None:
        statuses |= {408, 413, 415}
    if "{" in path:
        statuses.add(404)
    return statuses
