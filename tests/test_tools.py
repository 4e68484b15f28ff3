"""Tools: schemas from signatures, arguments checked, and what `ToolEnv` does with a turn of calls."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel
from toy_envs import Recorder, TwoToolEnv

from agent_gym import ConfigError, EnvFailure, ToolEnv, ToolResult, tool
from agent_gym.tools import HermesParser

call = HermesParser().render


class Point(BaseModel):
    """A place."""

    x: int
    title: str = "here"


@tool
def everything(
    city: str,
    unit: Literal["C", "F"],
    days: list[str],
    when: str | None = None,
    limit: int = 3,
    place: Point | None = None,
    title: str = "x",
) -> str:
    """Tell the weather
    of a city.

    It knows nothing else, and this paragraph is not shown.

    Args:
        city: where; with a colon: here,
            and a second line.
        unit: of the temperature.
        days: which days.
        limit (int): at most
            so many.

    Returns:
        limit: this is no argument.
    """
    return f"{city} {unit} {days} {when} {limit} {place and place.x} {title}"


def test_schema_from_the_signature() -> None:
    assert everything.schema["type"] == "function"
    function = everything.schema["function"]
    assert function["name"] == "everything"
    assert function["description"] == "Tell the weather of a city."
    parameters = function["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["city", "unit", "days"]
    properties = parameters["properties"]
    assert properties["city"] == {"type": "string", "description": "where; with a colon: here, and a second line."}
    assert properties["unit"] == {"enum": ["C", "F"], "type": "string", "description": "of the temperature."}
    assert properties["days"] == {"type": "array", "items": {"type": "string"}, "description": "which days."}
    assert properties["when"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties["limit"] == {"type": "integer", "default": 3, "description": "at most so many."}
    assert properties["title"] == {"type": "string", "default": "x"}  # an argument of that name is not pydantic's title
    assert set(parameters["$defs"]["Point"]["properties"]) == {"x", "title"}
    assert '"title": "' not in json.dumps(everything.schema)  # but pydantic's titles are gone


def test_arguments_are_checked_and_defaults_filled_in() -> None:
    result = everything.run({"city": "Rome", "unit": "C", "days": ["Mon"], "limit": "4", "place": {"x": 1}})
    assert result == ToolResult("Rome C ['Mon'] None 4 1 x")

    @tool
    def now(n: int = 0) -> Any:
        """Tell the time."""
        return n or None

    assert (now.run({}).text, now.run({"n": 3}).text, now(3)) == ("None", "3", 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["city", "unit", "days", "required"]),
        ({"city": 3, "unit": "C", "days": []}, ["city", "string"]),
        ({"city": "Rome", "unit": "K", "days": []}, ["unit", "'C' or 'F'"]),
        ({"city": "Rome", "unit": "C", "days": [1]}, ["days.0", "string"]),
        ({"city": "Rome", "unit": "C", "days": [], "speed": 1}, ["speed", "not permitted"]),
        ({"city": "Rome", "unit": "C", "days": [], "place": {"x": "far"}}, ["place.x", "integer"]),
        ({"city": "Rome", "unit": "C", "days": [], "limit": "7" * (1 << 20)}, ["limit"]),
        ({"city": "Rome", "unit": "C", "days": [], "9" * (1 << 20): 1}, ["999..."]),
    ],
)
def test_wrong_arguments_are_an_answer(arguments: dict[str, Any], words: list[str]) -> None:
    result = everything.run(arguments)
    assert result.error and result.text.startswith("Error: invalid arguments for everything: ")
    assert all(word in result.text for word in words)
    assert "http" not in result.text and "Rome" not in result.text and len(result.text) < 400


def test_names_that_pydantic_uses_itself() -> None:
    """A tool author does not know pydantic; `schema`, `copy` and `json` are ordinary words."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @tool
        def odd(schema: str, copy: int, json: str = "j", model_name: str = "m", _private: int = 5) -> str:
            """Do odd things."""
            return f"{schema} {copy} {json} {model_name} {_private}"

    properties = odd.schema["function"]["parameters"]["properties"]
    assert list(properties) == ["schema", "copy", "json", "model_name", "_private"]
    assert odd.run({"schema": "s", "copy": 1, "_private": 2}).text == "s 1 j m 2"
    assert odd.run({"schema": "s"}).error


def test_functions_that_make_no_tool() -> None:
    def silent(a: int) -> str:
        return ""

    def untyped(a) -> str:  # type: ignore[no-untyped-def]
        """Has no hint."""
        return ""

    def many(*numbers: int, **options: int) -> str:
        """Takes anything."""
        return ""

    async def later(a: int) -> str:
        """Nobody awaits it."""
        return ""

    for function, words in ((silent, "silent"), (untyped, "'a'"), (many, "numbers"), (later, "'later' is async")):
        with pytest.raises(ConfigError, match=words):
            tool(function)


# ToolEnv.


def step(env: ToolEnv, action: str) -> tuple[Any, ...]:
    env.reset(seed=0)
    return env.step(action)


def test_calls_of_a_turn_run_in_batches_and_answer_in_order() -> None:
    env = TwoToolEnv()
    action = call("record", {"word": "a"}) + call("add", {"a": 1}) + " and " + call("record", {"word": "b"})
    observation, reward, terminated, truncated, info = step(env, action)
    assert observation == "recorded a\n2\nrecorded b"
    assert env.recorder.batches == [["a", "b"]]  # one batch, not two calls
    names, texts = ["record", "add", "record"], ["recorded a", "2", "recorded b"]
    assert info["messages"] == [
        {"role": "assistant", "content": action},
        *({"role": "tool", "name": name, "content": text} for name, text in zip(names, texts, strict=True)),
    ]
    made = zip(names, ({"word": "a"}, {"a": 1}, {"word": "b"}), strict=True)
    assert [(c["name"], c["arguments"]) for c in info["tool_calls"]] == list(made)
    assert all(c["seconds"] >= 0 and not c["error"] for c in info["tool_calls"])
    assert (reward, terminated, truncated, info["error"]) == (0.0, False, False, None)


def test_broken_calls_keep_their_place() -> None:
    env = TwoToolEnv()
    wrong = "<tool_call>{</tool_call>" + call("fly<|im_end|>", {}) + call("add", {"a": "x"})
    action = call("add", {"a": 1}) + wrong + call("add", {"a": 2})
    observation, reward, _, _, info = step(env, action)
    lines = observation.split("\n")
    assert lines[0] == "2" and lines[-1] == "3"
    assert "not valid JSON" in lines[1] and "unknown tool 'fly<|im_end|>'; available: add, record" in lines[2]
    assert [m["name"] for m in info["messages"][1:]] == ["add", "error", "error", "add", "add"], "no made-up name"
    assert "invalid arguments for add" in lines[3]
    assert [c["error"] for c in info["tool_calls"]] == [False, True, True, True, False]
    (seconds,) = {c["seconds"] for c in info["tool_calls"]}
    assert 0 < seconds < 60, "one share of the time for each of them"
    assert info["error"] == lines[1] and info["reward_terms"] == {"errors": -1.5} and reward == -1.5


def test_calls_beyond_the_limit_do_not_run() -> None:
    env = TwoToolEnv(max_calls_per_turn=2)
    observation, _, _, _, info = step(env, "".join(call("record", {"word": str(i)}) for i in range(1000)))
    assert env.recorder.batches == [["0", "1"]]
    assert observation == "recorded 0\nrecorded 1\nError: only 2 tool calls are allowed per turn; 998 more did not run"
    assert len(info["tool_calls"]) == 3
    with pytest.raises(ConfigError, match="max_calls_per_turn is 0; it must be a whole number of at least 1"):
        TwoToolEnv(max_calls_per_turn=0)
    with pytest.raises(ConfigError, match="two tools share a name.*record"):
        ToolEnv({"train": [1]}, tools=[Recorder(), Recorder()])


@pytest.mark.parametrize(("word", "words"), [("crash", "OSError: the disk is full"), ("lose", "0 answers to 1 calls")])
def test_a_broken_tool_is_our_fault(word: str, words: str) -> None:
    with pytest.raises(EnvFailure, match=words) as caught:
        step(TwoToolEnv(), call("record", {"word": word}))
    assert "'record'" in str(caught.value)


def answered(calls: int, answer: Callable[[int], ToolResult]) -> tuple[Any, ...]:
    """What a turn of so many calls returns, of which call k gets `answer(k)`."""

    class Answering(Recorder):
        def run_batch(self, batch: Any) -> list[ToolResult]:
            return [answer(place) for place in range(len(batch))]

    env = TwoToolEnv()
    env.tools["record"] = Answering()
    return step(env, call("record", {}) * calls)


def test_what_tools_answer_is_bounded_encoded_and_counted() -> None:
    def fail(place: int) -> ToolResult:
        raise EnvFailure("the sandbox is dead")

    with pytest.raises(EnvFailure, match="^the sandbox is dead$"):
        answered(1, fail)
    observation, *_, info = answered(8, lambda _: ToolResult("é" * (1 << 20)))
    assert observation in TwoToolEnv().observation_space and observation.count("[cut: too long]") == 8
    assert observation == "\n".join(m["content"] for m in info["messages"][1:])
    observation, *_, info = answered(1, lambda _: ToolResult("half of a pair: \ud83d"))
    assert observation == info["messages"][1]["content"] == "half of a pair: ?"
    info = answered(2, lambda place: ToolResult("ok", metrics={"docs": 3.0, f"call {place}": 1.0}))[-1]
    assert info["metrics"] == {"docs": 3.0, "call 0": 1.0, "call 1": 1.0}


def test_what_a_tool_returns_is_checked() -> None:
    for wrong in (None, "text", ("text", True)):
        with pytest.raises(ConfigError, match=r"tool 'record' returned .*must return an agent_gym\.ToolResult"):
            answered(1, lambda _, wrong=wrong: wrong)
    with pytest.raises(ConfigError, match="text in the ToolResult of tool 'record' is 5"):
        answered(1, lambda _: ToolResult(5))  # type: ignore[arg-type]
    for value in (float("nan"), "x", 10**400):
        with pytest.raises(EnvFailure, match=r"the reward of tool 'record' is .*task train/0 of TwoToolEnv"):
            answered(1, lambda _, value=value: ToolResult("x", reward=value))
    info = answered(1, lambda _: ToolResult("x", reward=np.float32(0.5), metrics={"m": np.int64(2)}))[-1]
    assert json.loads(json.dumps(info))["metrics"] == {"m": 2.0}


def test_a_turn_without_a_call_is_the_answer() -> None:
    class Silent(TwoToolEnv):
        def answer(self, text: str) -> Any:
            return None

    with pytest.raises(ConfigError, match=r"Silent\.answer returned .*must return an agent_gym\.Reply"):
        step(Silent(), "x")
    for text, reward in (("right", 1.0), ("wrong", 0.0), ("", 0.0)):
        observation, got, terminated, _, info = step(TwoToolEnv(), text)
        assert (observation, got, terminated, info["is_success"]) == ("", reward, True, bool(reward))
