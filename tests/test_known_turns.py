"""A conversation that grows has the ids of its whole rendering, whatever the chat template does with earlier turns.

The templates are the ones that TRL ships, and about 790 in the folder that AGENT_GYM_TEMPLATES names (slow).
"""

from __future__ import annotations

import itertools
import json
import random
import warnings
from collections import Counter
from typing import Any

import pytest
from property_tools import FULL
from template_tools import TOOL, read_templates, template_folder, tokenizer_of
from tiny import make_tiny_tokenizer

from agent_gym import ConfigError
from agent_gym.chat import ChatRenderer
from agent_gym.gateway import anthropic, chat, responses
from agent_gym.gateway.bodies import Bodies, _read_whole
from agent_gym.gateway.exchange import Answer
from agent_gym.gateway.history import History
from agent_gym.gateway.known_turns import KnownMessages, KnownTurns
from agent_gym.messages import Message

WORDS = ["red", "a</think>b", "<think>\nwhy\n</think>\n\nso", "<tool_response>\n7\n</tool_response>", "", "/no_think"]
WORDS += ["<|im_end|>", "one\ntwo", "[TOOL_CALLS] x", "  spaces  "]


def talk_of(renderer: ChatRenderer, rng: random.Random, turns: int, wild: bool) -> list[Message]:
    """A conversation of tools' answers and users' words; a wild one has others' turns and late system messages."""
    talk: list[Message] = [{"role": "system", "content": "S."}, {"role": "user", "content": "Go " + rng.choice(WORDS)}]
    for number in range(turns):
        words = rng.choice(WORDS)
        if wild and rng.random() < 0.2:
            talk.append({"role": "assistant", "content": words or "said", "foreign": True})
        else:
            ids = renderer.encode_action(f"{number}{words}")
            talk.append({"role": "assistant", "content": words, "token_ids": ids})
        if rng.random() < (0.3 if wild else 0.1):
            talk.append({"role": "user", "content": f"And {rng.choice(WORDS)}?"})
        else:
            for place in range(rng.choice([1, 1, 1, 2])):
                answer = {"role": "tool", "name": "add", "tool_call_id": f"call{number:04}{place}"}
                talk.append({**answer, "content": rng.choice(WORDS) or "7"})
        if wild and rng.random() < 0.05:
            talk.append({"role": "system", "content": "Be brief."})
    return talk


def requests_of(talk: list[Message]) -> list[list[Message]]:
    """The beginnings of a conversation that end before a turn."""
    ends = [place for place, one in enumerate(talk) if one["role"] == "assistant"]
    return [talk[:end] for end in ends if end] + [talk]


def compared(renderer: ChatRenderer, talk: list[Message], tools: list[Any]) -> tuple[int, int, Counter[str]]:
    """Compare each request with its whole rendering; return how many were equal, refused, and rendered as a whole."""
    known, equal, refused = KnownTurns(), 0, 0
    for messages in requests_of(talk):
        try:
            whole = renderer.conversation(messages, tools)
        except ConfigError:
            refused += 1
            with pytest.raises(ConfigError):
                renderer.conversation(KnownMessages(messages, known), tools)
            continue
        found = renderer.conversation(KnownMessages(messages, known), tools)
        assert found == whole, (len(messages), renderer.tokenizer.decode(whole), renderer.tokenizer.decode(found))
        equal += 1
    return equal, refused, known.whole


def swept(templates: dict[str, str], turns: int, talks: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, template in templates.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                renderer = ChatRenderer(tokenizer_of(template))
            except ConfigError:
                counts["templates refused"] += 1
                continue
            tools = [TOOL] if renderer.renders_tools else []
            edits = 0
            for number in range(talks):
                rng = random.Random(f"{name}{number}")
                try:
                    equal, refused, whole = compared(renderer, talk_of(renderer, rng, turns, number % 2 == 1), tools)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
                counts["requests equal"] += equal
                counts["requests that the template refuses"] += refused
                kind = "wild" if number % 2 else "tame"
                counts.update({f"{kind} requests as a whole: {why}": count for why, count in whole.items()})
                edits += whole.total() * (kind == "tame")
            counts["templates"] += 1
            counts["templates that append tame turns"] += edits == 0
    print("\n".join(f"{count:>6} {name}" for name, count in counts.most_common()))
    return counts


@pytest.mark.property
def test_templates_of_trl() -> None:
    counts = swept(read_templates(), turns=9 if FULL else 5, talks=2 if FULL else 1)
    assert counts["templates that append tame turns"] > 0.9 * counts["templates"]


@pytest.mark.slow
def test_templates_of_the_world() -> None:
    counts = swept(read_templates(template_folder()), turns=24, talks=4)
    assert counts["templates that append tame turns"] > 0.6 * counts["templates"]


def test_a_request_is_as_dear_late_as_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many messages are given to the template, and texts to the encoder, in 300 turns: a few for each."""
    renderer, history, counts = ChatRenderer(make_tiny_tokenizer()), History(), Counter[str]()
    for name in ("_render", "encode"):
        whole = getattr(renderer, name)

        def counted(given: Any, *, name: str = name, whole: Any = whole, **kwargs: Any) -> Any:
            counts[name] += len(given) if name == "_render" else 1
            return whole(given, **kwargs)

        monkeypatch.setattr(renderer, name, counted)
    talk: list[Message] = [{"role": "user", "content": "Go."}]
    for number in range(300):
        prompt = renderer.conversation(history.recognise(talk))
        if number in (0, 7, 150, 299):
            assert prompt == renderer.conversation([*history.recognise(talk)])
            counts.clear() if number == 0 else None
        ids = renderer.encode_action(text := f"turn {number}")
        history.add(talk, Answer(text, [], "", False, prompt, ids), text)
        talk = [*talk, {"role": "assistant", "content": text}, {"role": "user", "content": f"{number} it is."}]
        assert history.news(talk) == talk[-1:]
    assert counts["_render"] < 25 * 600, "the square would be 90,000"
    assert counts["encode"] < 25 * 300


def test_a_template_that_edits_late_is_told_and_rendered_as_a_whole() -> None:
    """It drops the first message from 20 on, which no short conversation shows: the check of the whole finds it."""
    tokenizer = make_tiny_tokenizer()
    late = "{% set messages = messages[1:] if messages | length > 20 else messages %}"
    tokenizer.chat_template = late + str(tokenizer.chat_template)
    renderer, known = ChatRenderer(tokenizer), KnownTurns()
    talk: list[Message] = [{"role": "user", "content": "Go."}, {"role": "user", "content": "Now."}]
    with pytest.warns(RuntimeWarning, match="edits earlier turns, as a whole rendering of 3. messages shows"):
        for number in range(40):
            found = renderer.conversation(KnownMessages(talk, known))
            if number > 16:
                assert found == renderer.conversation(talk)
            talk = [*talk, {"role": "assistant", "content": "x", "token_ids": renderer.encode_action(f"{number}")}]
            talk = [*talk, {"role": "user", "content": f"{number} it is."}]
    assert known.whole.total() > 20


BODIES: dict[str, Any] = {
    "chat": (chat.PROTOCOL, lambda talk: {"messages": talk}),
    "anthropic": (anthropic.PROTOCOL, lambda talk: {"system": "S.", "messages": talk}),
    "responses": (responses.PROTOCOL, lambda talk: {"instructions": "S.", "input": talk}),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_that_grows_is_read_as_a_whole_one(kind: str) -> None:
    protocol, body_of = BODIES[kind]
    words = ["a", "\\ud83d", "\U0001f600", '"messages": [', '"input":[1]', "]}", ""]
    for ascii_only, seed in itertools.product((True, False), range(6)):
        rng, bodies, read = random.Random(seed), Bodies(), 0
        talk: list[Any] = [{"role": "user", "content": rng.choice(words)}]
        for number in range(20):
            more = {"model": rng.choice(words), "metadata": {"messages": [], "input": []}}
            body = {**more, **body_of(talk)} if number % 3 else {**body_of(talk), **more}
            content = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
            assert bodies.read(protocol, content)[1] == Bodies().read(protocol, content)[1]
            whole = _read_whole(protocol, content.decode("utf-8", "replace"))
            assert bodies.read(protocol, content)[1] == whole[1]
            read += len(bodies.read(protocol, content)[0][protocol.messages])
            talk = talk[: -2 if rng.random() < 0.1 and len(talk) > 4 else None]
            talk = [
                *talk,
                {"role": "assistant", "content": f"{number}"},
                {"role": "user", "content": rng.choice(words)},
            ]
        assert read < 20 * len(talk) / 2
