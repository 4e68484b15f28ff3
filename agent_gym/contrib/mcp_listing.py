"""The tools that an MCP server lists, read one by one: a bad schema costs its tool, and the server keeps the others.

The official package checks a listing as a whole and refuses all of it for one schema without `"type": "object"`, as
many servers write for a tool without arguments. So unusable parts are taken out of messages before it sees them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from agent_gym.errors import clipped, message_of, quoted, shown


class Listing:
    """The tools that one server lists: reads its messages, and remembers why tools were left out, by name.

    Args:
        server: how messages name it.
    """

    def __init__(self, server: str) -> None:
        self.left_out: dict[str, str] = {}
        self._server = server

    def cleaned(self, item: Any) -> Any:
        """Return a message of the transport; of a listing only the tools that can be used. Errors pass."""
        result = getattr(getattr(item, "message", None), "result", None)
        if not isinstance(result, dict) or not isinstance(result.get("tools"), list) or "content" in result:
            return item
        kept = [tool for tool in map(self._usable, result["tools"]) if tool is not None]
        names = [tool["name"] for tool in kept]
        for place, name in enumerate(names):
            if name in names[:place]:
                self._leave_out(name, "another tool of the server has this name")
        kept = [tool for place, tool in enumerate(kept) if tool["name"] not in names[:place]]
        message = item.message.model_copy(update={"result": {**result, "tools": kept}})
        return dataclasses.replace(item, message=message)

    def _usable(self, tool: Any) -> dict[str, Any] | None:
        if reason := problem_of(tool):
            self._leave_out(str(tool.get("name") if isinstance(tool, dict) else tool), reason)
            return None
        output = tool.get("outputSchema")
        if output is not None and schema_problem(output):  # the policy never reads it
            tool = {key: value for key, value in tool.items() if key != "outputSchema"}
        return tool

    def _leave_out(self, name: str, reason: str) -> None:
        if self.left_out.get(name) == reason:
            return
        self.left_out[name] = reason
        line = f"agent-gym: the MCP server {self._server}: tool {quoted(name)} is left out: {reason}"
        print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)


class CleanedStream:
    """The read stream of a transport, with the messages that a `Listing` has cleaned."""

    def __init__(self, stream: Any, listing: Listing) -> None:
        self._stream, self._listing = stream, listing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return self._listing.cleaned(await self._stream.receive())

    def __aiter__(self) -> CleanedStream:
        return self

    async def __anext__(self) -> Any:
        return self._listing.cleaned(await self._stream.__anext__())

    async def __aenter__(self) -> CleanedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def problem_of(tool: Any) -> str:
    """Say why a listed tool cannot be used; "" if it can."""
    import mcp

    if not isinstance(tool, dict):
        return f"it is {shown(tool)} and no object"
    if not isinstance(name := tool.get("name"), str) or not name:
        return f"its name is {shown(name)}; it must be a text"
    if reason := schema_problem(tool.get("inputSchema")):
        return f"its inputSchema {reason}"
    try:
        mcp.types.Tool.model_validate({key: value for key, value in tool.items() if key != "outputSchema"})
    except ValueError as error:  # pydantic's
        return " ".join(message_of(error).partition("For further")[0].split())[:200]
    return ""


def schema_problem(schema: Any) -> str:
    """Describe the fault in the JSON schema of an object; "" for a sound one."""
    import jsonschema

    if not isinstance(schema, dict):
        return f"is {shown(schema)}; it must be a JSON schema"
    if schema.get("type") != "object":
        given = f"has the type {quoted(schema['type'])}" if "type" in schema else "has no type"
        return f'{given}; it must have "type": "object"'
    try:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(map(str, error.absolute_path)) or "it"
        return f"is no JSON schema: {where}: {clipped(error.message, 120)}"
    except Exception as error:  # nested without end
        return f"cannot be checked: {type(error).__name__}"
    for reference in _references(schema):
        if not _is_there(schema, reference):
            return f"refers to {quoted(reference)}, which is not in it"
    return ""


def _references(node: Any) -> Iterator[str]:
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if isinstance(reference := node.get("$ref"), str):
                yield reference
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node


def _is_there(schema: Mapping[str, Any], reference: str) -> bool:
    """Whether a reference leads to a place in the schema: a policy cannot fetch one from elsewhere."""
    if not reference.startswith("#"):
        return False
    if reference[1:] and not reference.startswith("#/"):
        return f"'$anchor': {reference[1:]!r}" in repr(schema)
    node: Any = schema
    for part in reference[2:].split("/") if reference[1:] else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return False
    return True
