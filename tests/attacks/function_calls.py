"""Call the function whose words the question has most, with numbers in their order and texts that look like names."""

import json
import re
from collections.abc import Generator, Sequence
from typing import Any

ENV_ID = "AgentR1/FunctionCalls-v0"
ENV_KWARGS = {"category": "single_turn"}
REACHES = 0.32
NAMES = r"'([^']+)'|\"([^\"]+)\"|\b([A-Z][\w.]*(?:,? [A-Z][\w.]*)*)"


def stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z]{3,}", text.lower())} - {
        "the",
        "calcu",
        "given",
        "find",
        "for",
        "and",
    }


def filled(schema: Any, question: str, numbers: list[str], names: list[str]) -> Any:
    kind = schema["type"]
    for choice in schema.get("enum", ()):
        if str(choice).lower() in question.lower():
            return choice
    if kind in ("integer", "number"):
        number = numbers.pop(0) if numbers else "1"
        return int(float(number)) if kind == "integer" else float(number)
    if kind == "boolean":
        return True
    if kind == "array":
        inner = schema["items"]
        pool = numbers if inner["type"] in ("integer", "number") else names
        return [filled(inner, question, numbers, names) for _ in range(len(pool))]
    return {} if kind == "object" else names.pop(0) if names else question.split()[-1].strip("?.")


def attack(opening: str, tools: Sequence[Any]) -> Generator[str, str, None]:
    asked = stems(opening)
    ranked = []
    for tool in tools:
        function = tool["function"]
        known = stems(function["name"].replace("_", " ") + " " + function["description"])
        ranked.append((len(asked & known) / (1 + len(known)) ** 0.5, function))
    score, function = max(ranked, key=lambda one: one[0])
    if score < 0.3:
        yield "No function fits."
    names = ["".join(found) for found in re.findall(NAMES, opening[1:])]
    numbers = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", opening.replace(",000", "000"))
    known = function["parameters"]["properties"]
    needed = [name for name in known if name in function["parameters"]["required"]]
    arguments = {name: filled(known[name], opening, numbers, names) for name in needed}
    yield f"<tool_call>{json.dumps({'name': function['name'], 'arguments': arguments})}</tool_call>"
