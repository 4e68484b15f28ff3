"""Values without types, as XML forms write them, read by the JSON schema of the tool.

`<parameter=count>5</parameter>` is 5 for an integer and "5" for a string. Without a schema JSON decides, and text that
is not JSON is a string; so does TRL. The types in a schema: "type" (one or several), "anyOf", "oneOf", "allOf", "enum",
"const", and "$ref" into the schema itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_gym.formats.calls import read_json, write_json
from agent_gym.formats.literals import Literals

_WORDS: Mapping[str, Any] = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPED = re.compile(r'\s*"\\u[0-9a-f]{4}.*"\s*', re.DOTALL)
_LITERALS = Literals()


def read_value(text: str, schema: Mapping[str, Any] | None, root: Mapping[str, Any] | None = None) -> Any:
    """Read the text of a value by its schema.

    Args:
        text: as the policy wrote it.
        schema: of this value; None if it is not known.
        root: the schema that "$ref" points into.

    Returns:
        The value, or the text itself where no other allowed type fits: the tool then names the fault.
    """
    if _ESCAPED.fullmatch(text):
        try:
            return read_json(text)  # `write_value` explains this form
        except ValueError:
            return text
    allowed = types_of(schema, root or schema or {}) if schema is not None else None
    if allowed == {"string"}:
        return text
    word = text.strip()
    try:
        value = _WORDS[word] if word in _WORDS else read_json(word)
    except ValueError:
        value = _python_value(word, text)
    if isinstance(value, str):
        # A JSON string is taken for its content only if nothing says that the text is one itself.
        return value if allowed is None else text
    return value if allowed is None or _type_of(value) & allowed else text


def write_value(value: Any, schema: Mapping[str, Any] | None, root: Mapping[str, Any] | None = None) -> str:
    r"""Write a value so that `read_value` reads it; a string as it is wherever that is possible.

    A string that would be read as something else (`5` where a number is allowed, too) is a JSON string whose first
    character is an escape, `"\u0035"`. No model and no template writes that by chance.
    """
    if not isinstance(value, str):
        return write_json(value)
    return value if same(read_value(value, schema, root), value) else escaped(value)


def escaped(value: str) -> str:
    """Write a string as JSON with its first character and all markup in escapes."""
    first = "".join(f"\\u{unit:04x}" for unit in _utf16(value[:1]))
    body = re.sub(r"[<>\]\[|\uff5c]", lambda match: f"\\u{ord(match[0]):04x}", write_json(value[1:])[1:-1])
    return f'"{first}{body}"'


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, types and all: 1, 1.0 and True differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str] | None:
    """Return the JSON types that a schema allows; None if it does not say."""
    if not isinstance(schema, Mapping) or depth > 8:
        return None
    if isinstance(place := schema.get("$ref"), str):
        return types_of(referred(place, root), root, depth + 1)
    named = schema.get("type")
    if isinstance(named, str | list):
        return {named} if isinstance(named, str) else {str(one) for one in named}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return set().union(*(_type_of(value) for value in values))
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(word), list) and parts:
            each = [types_of(part, root, depth + 1) for part in parts]
            known = [one for one in each if one is not None]
            if word == "allOf":
                return set.intersection(*known) if known else None
            return set().union(*known) if len(known) == len(each) else None
    if "properties" in schema or "additionalProperties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else None


def property_of(schema: Mapping[str, Any] | None, key: str) -> Mapping[str, Any] | None:
    """Return the schema of an argument in that of a tool; None if it has none."""
    if schema is None:
        return None
    known = schema.get("properties")
    found = known.get(key) if isinstance(known, Mapping) else None
    return found if isinstance(found, Mapping) else None


def referred(place: str, root: Mapping[str, Any]) -> Any:
    """Return the part of a schema that a "$ref" names; None if there is none."""
    node: Any = root
    for part in place.removeprefix("#").strip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _type_of(value: Any) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    return {"string" if isinstance(value, str) else "object" if isinstance(value, dict) else "array"}


def _python_value(word: str, text: str) -> Any:
    """Read a list or an object that a template printed as Python does, {'a': None}; else the text."""
    if word[:1] not in ("{", "["):
        return text
    try:
        value, end = _LITERALS.read(word, 0)
    except ValueError:
        return text
    return value if end == len(word) else text


def _utf16(text: str) -> Iterator[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(data), 2):
        yield data[i] * 256 + data[i + 1]
