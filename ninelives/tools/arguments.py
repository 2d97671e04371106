"""The arguments of a call as a model wrote them. Owns: turning that text into a checked object, with refusals that say
what to send instead, and turning a Struct into a schema and back. Checks the simple part of JSON Schema that most
tools use (type, enum, minimum, maximum, required, properties) and leaves the rest to the tool. Refuses to know: any
tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from ninelives.tools.base import ToolRefused

S = TypeVar("S", bound=msgspec.Struct)

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""By the names of JSON Schema. A truth value is no number, though bool is a subclass of int."""
_OTHER = (str, int, float, list, dict, type(None))
"""What a type of another name may be."""

_VALUES = frozenset({"default", "enum", "const", "examples"})
"""Keywords whose value is data, not a schema."""
_OPEN = frozenset({"patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "allOf", "if", "$ref"})
"""Keywords that may allow fields that `properties` does not name."""


def schema_of(struct: type[msgspec.Struct]) -> dict[str, object]:
    """The schema of a Struct, without titles and defaults, which a model does not need."""
    return _Schema(struct, frozenset({"title", "default"})).whole()


def schema_with_defaults(struct: type[msgspec.Struct]) -> dict[str, object]:
    """The schema of a Struct with its defaults, for tools whose descriptions do not mention them."""
    return _Schema(struct, frozenset({"title"})).whole()


class _Schema:
    """A schema without references, because not every model server follows them. Only a recursive type stays one."""

    def __init__(self, struct: type[msgspec.Struct], dropped: frozenset[str]) -> None:
        (top,), self._types = msgspec.json.schema_components([struct], ref_template="{name}")
        self._name = cast(str, top["$ref"])
        self._dropped = dropped
        self._recursive: set[str] = set()

    def whole(self) -> dict[str, object]:
        """The schema of an object, always with `required` and `additionalProperties`."""
        told = cast(dict[str, object], self._type(self._name, ()))
        whole: dict[str, object] = {
            "type": "object",
            "properties": told.get("properties", {}),
            "required": told.get("required", []),
            "additionalProperties": False,
        }
        if self._recursive:
            whole["$defs"] = {name: self._type(name, ()) for name in sorted(self._recursive)}
        return whole

    def _type(self, name: str, above: tuple[str, ...]) -> object:
        if name in above:
            self._recursive.add(name)
            return {"$ref": f"#/$defs/{name}"}
        return self._said(self._types[name], (*above, name))

    def _said(self, node: object, above: tuple[str, ...]) -> object:
        if isinstance(node, list):
            return [self._said(each, above) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return self._type(node["$ref"], above)
        said = {key: self._member(key, value, above) for key, value in node.items() if key not in self._dropped}
        if "enum" in said and "type" not in said and all(isinstance(option, str) for option in node["enum"]):
            said["type"] = "string"  # some model servers require the type of an enum
        return said

    def _member(self, key: str, value: Any, above: tuple[str, ...]) -> object:
        if key == "properties":
            return {name: self._said(field, above) for name, field in value.items()}
        return value if key in _VALUES else self._said(value, above)


def as_struct(struct: type[S], arguments: Mapping[str, object]) -> S:
    """Convert arguments to the Struct that their schema was made of."""
    try:
        return msgspec.convert(arguments, struct)
    except msgspec.ValidationError as error:
        raise ToolRefused(f"The arguments are wrong: {error}.") from error


def parsed(raw: str, schema: Mapping[str, object]) -> dict[str, object]:
    """Decode and check arguments. No text means an empty object; null for an optional field means that it is absent."""
    try:
        value = msgspec.json.decode(raw.encode("utf-8", "surrogatepass") if raw.strip() else b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ToolRefused(f"The arguments are not valid JSON ({error}). Send one JSON object.") from error
    if not isinstance(value, dict):
        raise ToolRefused(f"The arguments must be a JSON object, not {_named(value)}.")
    return checked(value, schema)


def checked(arguments: dict[str, object], schema: Mapping[str, object]) -> dict[str, object]:
    """The arguments, converted to the types of the schema. Raises ToolRefused with everything that is wrong."""
    fields = cast(Mapping[str, Mapping[str, object]], schema.get("properties", {}))
    required = cast(list[str], schema.get("required", []))
    # JSON Schema allows any other field, but a field that a tool does not know is a mistake of the model.
    open_by_default = "properties" not in schema or not _OPEN.isdisjoint(schema)
    given = {key: value for key, value in arguments.items() if value is not None or key in required}
    wrong = [f"{key} is missing" for key in required if key not in given]
    fitting: dict[str, object] = {}
    for key, value in given.items():
        if key in fields:
            if type(value) is float and value.is_integer() and fields[key].get("type") == "integer":
                value = int(value)  # JSON has one kind of number: 10.0 is the integer 10
            fitting[key] = value
            wrong += _faults(key, value, fields[key])
        elif schema.get("additionalProperties", open_by_default):
            fitting[key] = value
        else:
            wrong.append(f"there is no field {key[:64]!r}")
    if wrong:
        raise _refused(wrong, fields, required)
    return fitting


def _refused(wrong: list[str], fields: Mapping[str, object], required: list[str]) -> ToolRefused:
    known = ", ".join(f"{key}{'' if key in required else ' (optional)'}" for key in fields) or "none"
    return ToolRefused(f"The arguments are wrong: {'; '.join(wrong[:8])}. Fields: {known}.")


def _faults(key: str, value: object, field: Mapping[str, object]) -> list[str]:
    wanted = field.get("type", [])
    names = [wanted] if isinstance(wanted, str) else cast(list[str], wanted)
    if names and not any(type(value) in _TYPES.get(name, _OTHER) for name in names):
        return [f"{key} must be of type {' or '.join(names)}, not {_named(value)}"]
    options = field.get("enum")
    if isinstance(options, list) and value not in options:
        return [f"{key} must be one of {', '.join(map(str, options))}"]
    if isinstance(value, (int, float)):
        least, most = field.get("minimum"), field.get("maximum")
        if isinstance(least, (int, float)) and value < least:
            return [f"{key} must be at least {least}"]
        if isinstance(most, (int, float)) and value > most:
            return [f"{key} must be at most {most}"]
    return []


def _named(value: object) -> str:
    return next((name for name, types in _TYPES.items() if type(value) in types), type(value).__name__)
