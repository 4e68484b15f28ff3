"""Gold answers that a policy, or its code, can read off: in prompts, tools, `info`, or the answers to bad play."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from agent_gym.certify.record import LEAK, Record, SkippedCheck, Subject, judged, tool_calls
from agent_gym.chat import text_of
from agent_gym.testing import Log, expert_turns, leaves, policy_texts

_CONTEXT = (3, 12)  # characters around a gold answer, by which its place in a text is known; all digits are alike there
_FEW = 3  # different gold answers at one place; fewer may be there by chance, such as the 2 of an example
_MOSTLY = 0.8  # of the text at that place; of two options that a question names, half
_CODED = 4  # characters of an answer that is looked for in other spellings; shorter ones are there by chance
_BAD_PLAY = (
    ("I do not know.",),
    ("<tool_call>{</tool_call>", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "<answer>-1</answer>"),
)
_JUNK = {"string": "zzz", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}
_DIGIT = re.compile(r"\d")
_Said = tuple[str, str, set[str]]  # kind of text, text, secrets to look for


class _Place(NamedTuple):
    """The place of a gold answer: the text, the form, and the characters around it."""

    text: str
    spelling: str
    side: str
    context: str

    def __str__(self) -> str:
        spelling = f" {self.spelling}" if self.spelling else ""
        return f"in {self.text}{spelling} {self.side} {self.context!r}"


def leaks(subject: Subject) -> Record:
    """Look for gold answers in all that is shown before the policy has earned them.

    A gold answer may be in a question by chance or as one of two options. It leaks where it has the same neighbouring
    words, or in the same field, of too many tasks, and little else does. So a short one, such as "3", is found, too.
    """
    looked, texts = 0, defaultdict[str, list[str]](list)  # kind of text to all texts of it
    places = defaultdict[_Place, list[tuple[str, str]]](list)  # place to tasks and their gold answers
    for split in subject.env.tasks:
        for index in subject.some(split, 200, 50):
            log = subject.trace(subject.env, expert_turns(subject.env), (split, index)) if subject.has_expert else []
            answers, keys = _secrets(subject, split, index, log)
            looked += bool(answers or keys)
            for name, text, secrets in _shown(subject, (split, index), answers, keys, log) if answers or keys else ():
                texts[name].append(_DIGIT.sub("0", text.lower()))
                for place, secret in _found(name, text, secrets):
                    places[place].append((f"{split}/{index}", secret))
    if not looked:
        raise SkippedCheck("no turn of an expert states a part of gold(task), so that it is a goal and no secret")
    shares = {place: len(dict(held)) / looked for place, held in places.items() if _gives_away(place, held, texts)}
    problems = [
        f"the gold answer stands {place} in {share:.0%} of {looked} tasks, such as {places[place][0]}"
        for place, share in sorted(
            shares.items(), key=lambda one: (-one[1], one[0].side != "behind", -len(one[0].context))
        )
        if share > LEAK
    ]
    numbers = {"tasks": float(looked), "most in one place": max(shares.values(), default=0.0)}
    text = f"no place of prompt, tools, info or errors gives the answers of {looked} tasks away"
    return judged("leaks", text, problems, numbers)


def _gives_away(place: _Place, held: list[tuple[str, str]], texts: dict[str, list[str]]) -> bool:
    """Whether the text at that place mostly is the gold answer, and not a few numbers or one of several options."""
    stands = sum(text.count(place.context) if place.context else 1 for text in texts[place.text])
    return len({secret for _, secret in held}) >= _FEW and len(held) > _MOSTLY * stands


def _secrets(subject: Subject, split: str, index: int, log: Log) -> tuple[set[str], set[str]]:
    """Return the parts of the gold answer that the expert's last turn states, and the parts that its other turns state.

    Without an expert all of them are answers. Parts that it never writes are a goal. Where no gold answer is named, it
    is the expert's text.
    """
    parts = {str(value).strip() for where, value in leaves(subject.gold(split, index)) if not where.endswith(" key")}
    parts -= {"", "None"}
    if not log:
        return parts, set()
    *before, last = policy_texts(log)
    start, end, _ = subject.answer_pattern
    parts = parts or {last[len(start) : len(last) - len(end)].strip()} - {""}
    answers = {part for part in parts if [*_places(last, part)]}
    return answers, {part for part in parts - answers for turn in before if [*_places(turn, part)]}


def _places(text: str, secret: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(rf"(?<!\w){re.escape(secret.lower())}(?!\w)", text.lower()):
        yield match.span()


def _spellings(secret: str) -> Iterator[tuple[str, str]]:
    """Yield a secret as it is, and as who hides it badly writes it."""
    yield "", secret
    if len(secret) >= _CODED:
        data = secret.encode("utf-8", "surrogatepass")
        coded = {
            "backwards": secret[::-1],
            "as base64": base64.b64encode(data).decode().rstrip("="),
            "as hex": data.hex(),
        }
        yield from ((name, text) for name, text in coded.items() if text != secret)


def _found(name: str, text: str, secrets: set[str]) -> Iterator[tuple[_Place, str]]:
    lower = _DIGIT.sub("0", text.lower())
    for secret in secrets:
        for spelling, coded in _spellings(secret):
            for start, end in _places(text, coded):
                for length in _CONTEXT:
                    yield _Place(name, spelling, "behind", lower[max(0, start - length) : start]), secret
                    yield _Place(name, spelling, "before", lower[end : end + length]), secret


def _shown(subject: Subject, task: tuple[str, int], answers: set[str], keys: set[str], expert: Log) -> Iterator[_Said]:
    """Yield texts with their kind, and the secrets to look for. Keys are none where the prompt has them."""
    # Calls of the right form, and without sense.
    junk = tool_calls(subject.env, lambda parameters: {one: _junk(kind) for one, kind in parameters.items()})
    for number, actions in enumerate((*_BAD_PLAY, junk.values())):
        (_, info), *steps = subject.trace(subject.env, actions, task)
        if not number:
            prompt = _texts(info)
            yield "the prompt", prompt, answers
            yield "the tools", json.dumps(info["tools"]), answers
            sought = answers | {key for key in keys if not [*_places(prompt, key)]}
            yield from _fields("info of reset", info, sought)
        for observation, *_, info in steps:
            yield "the answer to bad play", observation, sought
            yield from _fields("info of step", info, sought)
    # The answer to good play is earned; `info` may not be ahead of it.
    known = prompt
    for *_, info in expert[1:-1]:
        known += "\n\n" + _texts(info)
        yield from _fields("info of step", info, {one for one in answers if not [*_places(known, one)]})


def _texts(info: dict[str, Any]) -> str:
    return "\n\n".join(text_of(one["content"]) for one in info["messages"])


def _junk(kind: dict[str, Any]) -> Any:
    return kind["enum"][0] if kind.get("enum") else _JUNK.get(str(kind.get("type")), "zzz")


def _fields(name: str, info: dict[str, Any], secrets: set[str]) -> Iterator[_Said]:
    kept = {key: value for key, value in info.items() if key not in ("messages", "spans", "tools")}
    for where, value in leaves(kept, name):
        if not where.endswith(" key"):
            yield where, str(value), secrets
