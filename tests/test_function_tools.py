"""Plain functions as tools: what docstrings and hints tell the policy, what an exception or a result becomes."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import pickle
import re
import sqlite3
import typing
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import numpy as np
import pytest
from pydantic import BaseModel, Field

from agent_gym import ConfigError, QuestionEnv, ToolEnv, ToolResult, tool
from agent_gym.docstrings import read_docstring
from agent_gym.tool_results import counted_raises

ROWS = [{"question": "a", "answer": "b"}]


def properties(function: Any) -> dict[str, Any]:
    return tool(function).parameters["properties"]


class Kind(Enum):
    RED = "red"


class Item(BaseModel):
    """A thing."""

    name: str = Field(description="of the thing")


class TypingDict(typing.TypedDict):
    a: int


class Opaque:
    pass


@dataclasses.dataclass
class Pair:
    left: int
    right: list[str]


# Descriptions.

STYLES = {
    "google": "Args:\n    x (int): what to\n        look for: here\n    kind (Literal['a'], optional): of it",
    "google, two spaces": "Args:\n  x: what to\n    look for: here\n  kind: of it\n\nReturns:\n  x: nothing",
    "google, arguments": "Arguments:\n    x: what to look for: here\n    kind: of it\n\nRaises:\n    ValueError: never",
    "numpy": "Parameters\n----------\nx : int\n    what to\n    look for: here\nkind : {'a'}, optional\n    of it\n\n"
    "Returns\n-------\nstr\n    x",
    "rest": ":param x: what to\n    look for: here\n:type x: int\n:param str kind: of it\n:returns: x",
    "rest, arg": ":arg int x: what to look for: here\n:keyword kind: of it",
    "epydoc": "@param x: what to\n    look for: here\n@type x: int\n@param kind: of it\n@return: x",
    "javadoc": "@param x what to look for: here\n@param {string} kind - of it",
    "markdown": "**Parameters:**\n\n- `x` (int): what to look for: here\n- **kind**: of it",
    "list": "Arguments are\n* x - what to look for: here\n* kind [str]: of it",
}


@pytest.mark.parametrize("style", STYLES)
def test_docstrings_of_every_style_reach_the_policy(style: str) -> None:
    def look(x: int, kind: str = "a") -> str:
        return ""

    text = f"Look for\nit.\n\nNobody reads this paragraph.\n\n{STYLES[style]}"
    look.__doc__ = text.replace("\n", "\n    ")  # as it stands in a function
    found = tool(look)
    assert found.description == "Look for it."
    described = {name: one.get("description") for name, one in found.parameters["properties"].items()}
    assert described == {"x": "what to look for: here", "kind": "of it"}


def test_a_summary_ends_where_the_arguments_begin() -> None:
    for behind in (":param x: what", "@param x: what", "Args:\n  x: what", "Parameters\n----------\nx : int\n    what"):
        assert read_docstring(f"Find a thing\nby name.\n{behind}", ["x"]) == ("Find a thing by name.", {"x": "what"})

    def bare(x: int) -> str:
        """Args:
        x: what
        """
        return ""

    with pytest.raises(ConfigError, match="tool 'bare' has no description in front of its arguments"):
        tool(bare)


def test_descriptions_and_rules_of_hints_reach_the_policy() -> None:
    def look(
        a: Annotated[int, Field(ge=0, description="from 0 to 10")],
        b: Annotated[str, "what"],
        c: Optional[Annotated[str, "inside"]] = None,  # noqa: UP045 (as people write it)
        d: int = Field(3, ge=1, description="of a Field"),
        e: Annotated[int, "in the hint"] = 1,
        f: str = None,  # type: ignore[assignment]
        g: float = math.inf,
        h: Any = Opaque(),  # noqa: B008
    ) -> str:
        """Look.

        Args:
            e: in the docstring
        """
        return f"{a} {b} {c} {d} {e} {f} {g}"

    found = properties(look)
    words = ["from 0 to 10", "what", "inside", "of a Field", "in the hint", None, None, None]
    assert [one.get("description") for one in found.values()] == words
    assert found["a"]["minimum"] == 0 and found["d"] == {
        "type": "integer", "minimum": 1, "default": 3, "description": "of a Field"
    }  # fmt: skip
    assert tool(look).parameters["required"] == ["a", "b"], "a default that JSON cannot show is a default"
    assert "default" not in found["g"] and "default" not in found["h"]
    assert tool(look).run({"a": 1, "b": "x", "f": None}).text == "1 x None 3 1 None inf"
    assert tool(look).run({"a": -1, "b": "x"}).error and tool(look).run({"a": 1, "b": "x", "d": 0}).error


def test_choices_become_an_enum_that_is_checked() -> None:
    def look(unit: str, mode: Literal["x"], size: int = 1, tags: tuple[str, ...] = (), where: str | None = None) -> str:
        """Look.

        Args:
            unit: of it (choices: ["C", "F"])
            mode: how
            size: how many (choices: [1, 2])
            tags: which (choices: ["a", "b"])
            where: in or out (choices: in, out)
        """
        return unit

    found = properties(look)
    assert found["unit"] == {"enum": ["C", "F"], "type": "string", "description": "of it"}
    assert found["mode"]["const"] == "x" and found["size"]["enum"] == [1, 2]
    assert found["tags"]["items"]["enum"] == ["a", "b"]
    assert {"enum": ["in", "out"], "type": "string"} in found["where"]["anyOf"]
    assert found["where"]["description"] == "in or out"
    assert tool(look).run({"unit": "K", "mode": "x"}).text.startswith("Error: invalid arguments for look: unit: ")
    assert tool(look).run({"unit": "C", "mode": "x"}).text == "C"


# What is no tool.


def plain(x: int, y: str = "y") -> str:
    """Do it."""
    return f"{x}{y}"


def refused(*hints: Any) -> list[Any]:
    made = []
    for hint in hints:

        def odd(fine: int, x: Any) -> str:
            """Do it."""
            return ""

        odd.__annotations__["x"] = hint
        made.append(odd)
    return made


def star(*numbers: int) -> str:
    """Do it."""
    return ""


def stars(**numbers: int) -> str:
    """Do it."""
    return ""


def positional(x: int, /) -> str:
    """Do it."""
    return ""


def generates(x: int) -> Any:
    """Do it."""
    yield x


async def later(x: int) -> str:
    """Do it."""
    return ""


class Adder:
    def add(self, x: int) -> int:
        """Add."""
        return x


class Caller:
    async def __call__(self, x: int) -> str:
        """Do it."""
        return ""


HINTS = refused(
    TypingDict, Callable[[int], int], Opaque, type, Iterator[int], "Nowhere", "list[Nowhere]", "1 +", Literal[Opaque]
)


@pytest.mark.parametrize("function", HINTS)
def test_a_hint_without_a_schema_names_function_and_argument(function: Any) -> None:
    with pytest.raises(ConfigError, match="argument 'x' of tool 'odd'") as raised:
        tool(function)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (max, "the arguments of tool 'max' cannot be read"),
        (len, "argument 'obj' of tool 'len' cannot be passed by name"),
        (print, "argument .*args of tool 'print' cannot be passed by name"),
        (lambda x: x, "a lambda has no name that a policy could write"),
        (functools.partial(lambda x: x, 1), "a lambda has no name"),
        (int, "tool 'int' is a class"),
        (Opaque, "tool 'Opaque' is a class"),
        (Opaque(), "it must be a function"),
        ("plain", "it must be a function"),
        (star, r"argument \*numbers of tool 'star' cannot be passed by name"),
        (stars, r"argument \*\*numbers of tool 'stars' cannot be passed by name"),
        (positional, "argument 'x' of tool 'positional' cannot be passed by name"),
        (generates, "tool 'generates' is a generator"),
        (later, "tool 'later' is async"),
        (functools.partial(later, x=1), "tool 'later' is async"),
        (Caller(), "tool 'Caller' is async"),
        (Adder.add, "tool 'add' is a method without its object"),
        (functools.singledispatch(plain), "chooses its code by an argument without a name"),
        (tool(plain), "tool 'FunctionTool' is an agent_gym.Tool already"),
    ],
)
def test_what_cannot_be_a_tool_says_why_in_a_line(function: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        tool(function)
    assert "\n" not in str(raised.value)


def test_partials_objects_and_methods_are_tools() -> None:
    class Counter:
        """Counts."""

        def __init__(self) -> None:
            self.n = 0

        def __call__(self, step: Annotated[int, "how far"]) -> int:
            """Count on."""
            self.n += step
            return self.n

    fixed = tool(functools.partial(plain, y="z"))
    assert (fixed.name, list(fixed.parameters["properties"]), fixed.run({"x": 1}).text) == ("plain", ["x"], "1z")
    assert fixed.run({"x": 1, "y": "other"}).error, "what the author fixed is no argument"
    assert pickle.loads(pickle.dumps(fixed)).run({"x": 2}).text == "2z"
    counter = tool(Counter())
    assert (counter.name, counter.description) == ("Counter", "Count on.")
    assert [counter.run({"step": 2}).text for _ in range(2)] == ["2", "4"]
    assert properties(Counter())["step"]["description"] == "how far"
    assert tool(functools.lru_cache(plain)).run({"x": 1}).text == "1y"


@tool(max_chars=200)
def long(n: int) -> str:
    """Say a lot."""
    return "x" * n


def test_long_results_are_cut_with_a_mark_and_the_limit_is_a_setting() -> None:
    assert long.run({"n": 200}).text == "x" * 200
    text = long.run({"n": 1_000_000}).text
    assert len(text) == 200 and text.startswith("xxx")
    assert "[cut: the result has 1,000,000 characters" in text
    assert pickle.loads(pickle.dumps(long)).max_chars == 200
    assert len(tool(lambda_free).run({"n": 10**6}).text) == 16_384, "the default"
    result = tool(marked, max_chars=100).run({})
    assert result.error and result.reward == 1.0 and result.metrics == {"m": 1.0} and len(result.text) == 100
    for wrong in (5, 0, -1, "many", None, True):
        with pytest.raises(ConfigError, match="max_chars is .*; it must be a whole number of at least 100"):
            tool(plain, max_chars=wrong)  # type: ignore[call-overload]


def lambda_free(n: int) -> list[int]:
    """Count."""
    return list(range(n))


def marked() -> ToolResult:
    """Fail at length."""
    return ToolResult("y" * 500, error=True, reward=1.0, metrics={"m": 1.0})


# Results.


def answer(value: Any) -> str:
    def give() -> Any:
        """Give it."""
        return value

    return tool(give).run({}).text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"),
        (3, "3"),
        (0.1, "0.1"),
        (True, "True"),
        (None, "None"),
        (np.int64(3), "3"),
        (np.float32(0.5), "0.5"),
        (np.bool_(True), "True"),
        (Decimal("1.10"), "1.10"),
        (date(2026, 1, 2), "2026-01-02"),
        (Kind.RED, "red"),
        (Path("a/b"), "a/b"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        ({"a": "é", "b": None, "c": [1, True]}, '{"a": "é", "b": null, "c": [1, true]}'),
        ([("Ada", 1)], '[["Ada", 1]]'),
        ({1: {Kind.RED: date(2026, 1, 2)}}, '{"1": {"red": "2026-01-02"}}'),
        ({"b", "a"}, '["a", "b"]'),
        ([math.nan, math.inf, -math.inf], '["NaN", "Infinity", "-Infinity"]'),
        (Pair(1, ["x"]), '{"left": 1, "right": ["x"]}'),
        ([Item(name="pen")], '[{"name": "pen"}]'),
        (collections.namedtuple("Row", "a b")(1, 2), '{"a": 1, "b": 2}'),
        (collections.Counter("aab"), '{"a": 2, "b": 1}'),
        (np.arange(3), "[0, 1, 2]"),
        ((), "[]"),
        ({}, "{}"),
    ],
)
def test_results_are_written_as_text(value: Any, text: str) -> None:
    assert answer(value) == text
    if text[0] in "[{":
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_rows_of_sqlite_are_objects() -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    assert answer(connection.execute("select 1 as a, 'x' as b").fetchall()) == '[{"a": 1, "b": "x"}]'


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    "value",
    [(n for n in "ab"), iter([1]), Opaque(), Opaque, len, b"bytes", [Opaque()], {"a": (n for n in "ab")}, circle, open],
)
def test_a_result_that_says_nothing_is_refused_with_the_functions_name_and_place(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"'give' returned .*; return a text, number, .*test_function_tools\.py:"):
        answer(value)


def test_a_coroutine_is_refused() -> None:
    made = later(1)
    with pytest.raises(ConfigError, match="tool 'give' returned <coroutine object"):
        answer(made)
    made.close()  # type: ignore[attr-defined]


# What an environment is given.


def test_functions_are_tools_of_every_tool_environment_and_a_single_one_is_no_list() -> None:
    assert list(ToolEnv({"train": [1]}, tools=[plain]).tools) == ["plain"]
    for given, words in (
        (plain, r"tools of QuestionEnv is <function plain.*; it must be a list: tools=\[plain\]"),
        (tool(plain), r"it must be a list: tools=\[plain\]"),
        ("plain", "it must be a list of functions"),
        (5, "it must be a list of functions"),
        ([5], r"tools of QuestionEnv holds 5 \(int\); each must be a function"),
    ):
        with pytest.raises(ConfigError, match=words):
            QuestionEnv(ROWS, tools=given)  # type: ignore[arg-type]


def test_calls_that_raise_are_counted_in_one_line_with_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    def halve(number: int) -> int:
        """Halve a number."""
        if number % 2:
            raise ValueError("odd")
        return number // 2

    def earlier(number: int) -> int:
        """Raise more often, before."""
        raise KeyError(number)

    one = tool(halve)
    for number in range(9):
        tool(earlier).run({"number": number})
    with counted_raises():
        for number in range(6):
            one.run({"number": number})
    line = capsys.readouterr().err.strip().splitlines()[-1]
    words = r"agent-gym: 3 tool calls raised an exception that the policy read; most often ValueError: odd of 'halve' "
    assert re.match(words + r"\(\S+test_function_tools\.py:\d+\)$", line), line
    with counted_raises():
        one.run({"number": 4})
    assert not capsys.readouterr().err
