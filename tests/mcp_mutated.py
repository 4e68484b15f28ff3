"""A server of the Model Context Protocol whose listing and answers are broken at random: `mcp_mutated.py SEED`.

It is written by hand, since the official package sends nothing that is wrong.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from json_mutations import mutated

TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "enum": [1, 2]}},
        "required": ["a"],
    },
    "outputSchema": {"type": "object", "properties": {"sum": {"type": "integer"}}},
}
INFO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
RESULT = {"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}, "isError": False}


def main() -> None:
    rng = random.Random(int(sys.argv[1]))
    for line in sys.stdin:
        request: Any = json.loads(line)
        if "id" not in request:
            continue
        method = request["method"]
        if method == "initialize":
            asked = request["params"]["protocolVersion"]
            text = json.dumps({**INFO, "protocolVersion": asked})
            text = mutated(json.loads(text), rng) if rng.random() < 0.05 else text
        elif method == "tools/list":
            text = mutated({"tools": [TOOL, {**TOOL, "name": "other"}]}, rng)
        else:
            text = mutated(RESULT, rng)
        head = json.dumps({"jsonrpc": "2.0", "id": request["id"]})
        sys.stdout.buffer.write(f'{head[:-1]}, "result": {text}}}\n'.encode("utf-8", "surrogatepass"))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
