"""A server of the Model Context Protocol over stdio, in plain JSON lines: most of its tools have a schema that is none.

The protocol's own package would refuse to list them. `mcp_bad_schemas.py all` lists nothing else.
"""

from __future__ import annotations

import json
import sys
from typing import Any

OBJECT: dict[str, Any] = {"type": "object"}
TOOLS = [
    {"name": "good", "description": "Say it.", "inputSchema": {**OBJECT, "properties": {"text": {"type": "string"}}}},
    {"name": "recursive", "inputSchema": {
        **OBJECT, "properties": {"tree": {"$ref": "#/$defs/Tree"}},
        "$defs": {"Tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Tree"}}}},
    }},
    {"name": "output", "inputSchema": OBJECT, "outputSchema": {"type": "array"}},
]  # fmt: skip
BAD = [
    {"name": "no_type", "inputSchema": {"properties": {}}},
    {"name": "empty", "inputSchema": {}},
    {"name": "string", "inputSchema": {"type": "string"}},
    {"name": "none"},
    {"name": "text", "inputSchema": "object"},
    {"name": "nowhere", "inputSchema": {**OBJECT, "properties": {"a": {"$ref": "#/$defs/Gone"}}}},
    {"name": "elsewhere", "inputSchema": {**OBJECT, "properties": {"a": {"$ref": "https://example.com/s.json"}}}},
    {"name": "kind", "inputSchema": {**OBJECT, "properties": {"a": {"type": "strng"}}}},
    {"name": "list", "inputSchema": {**OBJECT, "properties": ["a"]}},
    {"name": "wanted", "inputSchema": {**OBJECT, "required": "a"}},
    {"name": "about", "description": 5, "inputSchema": OBJECT},
    {"name": 7, "inputSchema": OBJECT},
    {"name": "good", "inputSchema": OBJECT},
    "nonsense",
]


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"serverInfo": {"name": "bad", "version": "1"}, "capabilities": {"tools": {}}}
        return {"protocolVersion": parameters["protocolVersion"], **about}
    if method == "tools/list":
        return {"tools": BAD[:-2] if "all" in sys.argv else [*TOOLS, *BAD]}
    if method == "tools/call":
        text = "x" * 5_000_000 if parameters["name"] == "output" else json.dumps(parameters.get("arguments"))
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        found = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **found}), flush=True)
