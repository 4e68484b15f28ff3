"""Random calls, and what is asked of every parser of a family of tool-call languages."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.formats.calls import ToolSchema
from agent_gym.formats.families import FAMILIES
from agent_gym.formats.native import NativeParser
from agent_gym.formats.typed import same
from agent_gym.tools import ToolCall

# Marks of all families, and what looks like another type, another quote, or another end.
PIECES = """
</tool_call> <tool_call> </parameter> <parameter=a> </function> <function=f> <|"|> <escape>
<end_function_call> <tool_call|> </arg_value> <arg_key> ]]> <![CDATA[ <|tool_call_end|> <|call|>
<|end|> <|start|> [ARGS] [TOOL_CALLS] ``` ```json </tool_calls> <｜tool▁call▁end｜> </｜DSML｜parameter>
</TOOLCALL> <|END_ACTION|> </invoke> </minimax:tool_call> )] , b=' " ' \\ \\n { } [ ] ( ) , = : ;
a=1 5 true null None 1.5 é 日本 😀 < > &lt; -0 1e5 {"a":1} [1] "x" 'x' "\\u0035" </param>
<|close|>argument<|sep|> <|tool_arg:end|> functions.f:0 to=functions.x Action: >>>all [add(a=1)]
]<]minimax[>[</a> {"name":"f","arguments":{}} <|tools_suffix|> <|python_tag|> <tool_sep>
</seed:tool_call> <|channel|>analysis
""".split()
BLANKS = ["", "\n", "\t", " ", "\u2028", "\x00", "\r\n", "```json\n"]
THOUGHTS = ["</think>", "<think>", "[/THINK]", "<|END_THINKING|>", "</seed:think>"]
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def some_text(rng: random.Random, more: Sequence[str] = ()) -> str:
    pieces = [*PIECES, *BLANKS, *more]
    return "".join(rng.choice(pieces) for _ in range(rng.choice([1, 1, 1, 0, 2, 3, 5])))


def some_value(rng: random.Random, more: Sequence[str] = (), depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.45 or depth > 3:
        return some_text(rng, more)
    if kind < 0.8:
        return rng.choice([0, -1, 5, 10**12, -(2**60), 0.5, -1e-7, 1e300, 3.0, True, False, None])
    if kind < 0.9:
        return [some_value(rng, more, depth + 1) for _ in range(rng.randint(0, 3))]
    keys = [rng.choice("abcd") if rng.random() < 0.6 else some_text(rng, more) for _ in range(rng.randint(0, 3))]
    return {key: some_value(rng, more, depth + 1) for key in keys}


def some_calls(rng: random.Random, more: Sequence[str] = (), most: int = 3) -> list[ToolCall]:
    """Return one to `most` calls of different tools."""
    names = rng.sample(["add", "get_weather", "a-b.c", "поиск"], rng.randint(1, most))
    keys = ["a", "b_c", "Key", "ключ", "n1", "type", "name", "arguments"]
    return [
        ToolCall(name, {key: some_value(rng, more) for key in rng.sample(keys, rng.randint(0, 4))}) for name in names
    ]


def some_schema(rng: random.Random, value: Any) -> dict[str, Any]:
    """Return a schema that the value has, or none at all."""
    kind = _TYPES.get(type(value), "null")
    forms: list[dict[str, Any]] = [
        {"type": kind},
        {"type": kind},
        {"anyOf": [{"type": kind}, {"type": "null"}]},
        {"type": [kind, "string"]},
        {"const": value},
        {"$ref": f"#/$defs/{kind}"},
        {},
    ]
    return rng.choice(forms)


def tools_of(rng: random.Random, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Return function schemas that the calls fit; some arguments are not in them."""
    tools = []
    for call in calls:
        known = {key: some_schema(rng, value) for key, value in call.arguments.items() if rng.random() < 0.9}
        defs = {kind: {"type": kind} for kind in [*_TYPES.values(), "null"]}
        parameters = {"type": "object", "properties": known, "$defs": defs}
        tools.append(
            {"type": "function", "function": {"name": call.name, "description": "d", "parameters": parameters}}
        )
    return tools


def equal(read: Sequence[ToolCall], calls: Sequence[ToolCall]) -> bool:
    """Whether calls were read without an error, with the same names and arguments, types and all."""
    return len(read) == len(calls) and all(
        one.error is None
        and one.name == call.name
        and len(one.arguments) == len(call.arguments)
        and same({key: one.arguments.get(key) for key in call.arguments}, call.arguments)
        for one, call in zip(read, calls, strict=True)
    )


def mutants(rng: random.Random, parser: NativeParser, text: str, number: int) -> Iterator[str]:
    """Yield texts that were cut off, or lost a character, and still open a call."""
    for _ in range(number):
        cut, lost = rng.randint(1, len(text)), rng.randrange(len(text))
        for mutant in (text[:cut], text[:lost] + text[lost + 1 :]):
            opened = any(mark in mutant for mark in parser.marks) if parser.marks else mutant[:1] == text[:1]
            if opened and (parser.family != "functionary_3_2" or ">>>" in mutant):
                yield mutant


def damaged(text: str) -> Iterator[str]:
    """Yield a call cut off behind its eighth character, or with one character less or another one, at every place."""
    for place in range(len(text)):
        yield text[:place] + text[place + 1 :]
        if text[place] != "x":
            yield text[:place] + "x" + text[place + 1 :]
        if place >= 8:
            yield text[:place]


def parser_of(family: str) -> NativeParser:
    return FAMILIES[family].make()


def families_of(turn: str, calls: Sequence[ToolCall], tools: Sequence[ToolSchema] = ()) -> list[NativeParser]:
    """Return the parsers that read exactly these calls in a turn, made for the tools; the best one first.

    That is the one which writes most of the turn to the letter; among equals the order of the table counts.

    Args:
        turn: an assistant's turn as a chat template rendered it, with the end tokens or without.
        calls: the rendered calls; names and arguments count, and an id that the template was given.
        tools: schemas, by which families without types read values.
    """
    found = []
    for family in FAMILIES.values():
        parser = family.make().for_tools(tools)
        read = parser.parse(turn)
        if len(read) == len(calls) and all(map(_equal, read, calls)):
            found.append(parser)
    return sorted(found, key=lambda parser: -_written(parser, turn, calls))


def family_of(turn: str, calls: Sequence[ToolCall], tools: Sequence[ToolSchema] = ()) -> NativeParser | None:
    """Return the first parser of `families_of`, or None if no family reads these calls."""
    return next(iter(families_of(turn, calls, tools)), None)


def _written(parser: NativeParser, turn: str, calls: Sequence[ToolCall]) -> int:
    """Return how many characters of the turn the parser writes to the letter."""
    # Some templates sort the arguments.
    by_name = [replace(call, arguments=dict(sorted(call.arguments.items(), key=_lower))) for call in calls]
    try:
        written = [parser.render_calls(one).strip() for one in (calls, by_name)]
    except ConfigError:  # a name that the family cannot write
        return 0
    return max(len(one) if one in turn else 0 for one in written)


def _lower(item: tuple[str, Any]) -> str:
    return item[0].lower()


def _equal(read: ToolCall, call: ToolCall) -> bool:
    written = {key: read.arguments.get(key) for key in call.arguments}
    whole = len(read.arguments) == len(call.arguments)
    return read.error is None and read.name == call.name and whole and same(written, dict(call.arguments))
