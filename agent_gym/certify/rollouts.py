"""The expert's episodes as a trainer plays them: by the `Runner`, each environment in a separate thread or process.

A rollout needs a tokenizer, and certificates need no training stack. `Characters` has an id for each character and a
plain template with tools, so that everything else is as in a trainer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agent_gym.certify.record import LONGEST, RESET_CPU_S, Subject, cut
from agent_gym.chat import ChatRenderer, text_of
from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner
from agent_gym.tool_results import raised_so_far

_LIVE = 8  # episodes at the same time, each in a separate thread
_SHORT = 150  # characters of an error, so that its place is not cut off
_BEYOND = 0x110000  # the first id that is not a character
_SPECIAL = ("<|im_start|>", "<|im_end|>")
Task = tuple[str, int, int]  # split, index, seed


class Characters:
    """A tokenizer without a vocabulary: the ids are code points, and two more for the ends of a turn."""

    name_or_path = "agent_gym.certify"
    chat_template = "{% for message in messages %}<|im_start|>role, content, tools, tool_calls<|im_end|>{% endfor %}"
    all_special_tokens = [*_SPECIAL]
    all_special_ids = [_BEYOND, _BEYOND + 1]
    added_tokens_decoder: dict[int, Any] = {}
    eos_token, eos_token_id, pad_token_id, bos_token_id = _SPECIAL[1], _BEYOND + 1, _BEYOND + 1, None

    def __len__(self) -> int:
        return _BEYOND + 2

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, _SPECIAL))})", text):
            ids += [_BEYOND + _SPECIAL.index(piece)] if piece in _SPECIAL else map(ord, piece)
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        shown = (one for one in ids if one < _BEYOND or not skip_special_tokens)
        return "".join(chr(one) if one < _BEYOND else _SPECIAL[one - _BEYOND] for one in shown)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """Write a conversation in the form of ChatML, with tools and calls as Qwen writes them."""
        listing = "\n".join(json.dumps(one, ensure_ascii=False) for one in tools or ())
        messages = [*conversation]
        if listing and not (messages and messages[0]["role"] == "system"):
            messages.insert(0, {"role": "system", "content": ""})
        text = ""
        for place, message in enumerate(messages):
            content = text_of(message.get("content") or "")
            if listing and not place:
                content += f"\n<tools>\n{listing}\n</tools>"
            for made in message.get("tool_calls") or ():
                content += f"\n<tool_call>\n{json.dumps(made.get('function', made), ensure_ascii=False)}\n</tool_call>"
            text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


class _Renderer(ChatRenderer):
    """Of an image nothing is written: an expert sees none."""

    def _expand(self, text: str, messages: Sequence[Any]) -> str:
        return text


class ExpertRollouts:
    """Plays the expert of a subject; made by `expert_rollouts`."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._renderer = _Renderer(Characters())
        budget = Budget(max_turn_tokens=1 << 40, max_tokens=1 << 40, max_turns=LONGEST)
        policy = ScriptedPolicy(self._act, self._renderer.encode_action)
        processes = subject.env_processes
        self.runner = Runner(policy, self._renderer, budget, max_live=_LIVE, workers=_LIVE, env_processes=processes)

    def _act(self, episode: Any) -> str:
        # One after the other, though in many threads: the thread that plays waits for each.
        self._subject.beat(f"{episode.task_id}, turn {episode.turns}: expert_action() in a rollout", RESET_CPU_S)
        return episode.env.get_wrapper_attr("expert_action")()

    def run(self, tasks: Sequence[Task]) -> list[Episode]:
        """Play tasks, with these seeds; failed episodes are returned, too."""
        subject = self._subject
        specs = [
            EpisodeSpec(subject.env_id, subject.env_kwargs, seed=seed, split=split, index=index)
            for split, index, seed in tasks
        ]
        subject.beat(f"a rollout of {len(specs)} episodes of the expert", RESET_CPU_S)
        episodes = self.runner.run_share(specs, temperature=0.0)
        subject.tell(subject.doing, 0)
        return episodes


@contextmanager
def expert_rollouts(subject: Subject) -> Iterator[ExpertRollouts]:
    """Make the runner of the expert, and close its environments at the end."""
    rollouts = ExpertRollouts(subject)
    try:
        yield rollouts
    finally:
        rollouts.runner.close()


def faults(subject: Subject, episodes: Sequence[Episode]) -> list[str]:
    """Say which episodes failed, and whether most calls of the expert did: with the first error, its file and line."""
    failed = [one.failure for one in episodes if one.failure]
    lines = [
        f"{len(failed)} of {len(episodes)} episodes fail in rollouts; the first: {cut(str(one), _SHORT)} ({one.where})"
        for one in failed[:1]
    ]
    turns = [step for one in episodes for step in one.steps]
    calls = [(call["name"], str(step.error)) for step in turns for call in step.tool_calls if call["error"]]
    made = sum(len(step.tool_calls) for step in turns)
    if 2 * len(calls) <= made:
        return lines
    name, error = calls[0]
    first = f"{cut(error, _SHORT)}{place_of_error(subject, name, error)}"
    line = f"{len(calls)} of {made} tool calls of the expert failed in rollouts; the first, of {name!r}: {first}"
    return [*lines, line]


def place_of_error(subject: Subject, name: str, error: str) -> str:
    """Return where a function raised the error that the policy read, or its definition; "" if unknown."""
    for one in raised_so_far():
        if one.tool == name and one.told.split(": ")[:2] == error.split(": ")[:2]:  # an error of the same type
            return f" ({one.place})"
    defined = getattr(getattr(subject.env, "tools", {}).get(name), "place", "")
    return f" ({defined})" if defined else ""


def unused_tools(subject: Subject, episodes: Sequence[Episode]) -> str:
    """Say in a clause that the expert never calls a tool, though there are some; "" if it does."""
    names = [schema["function"]["name"] for schema in subject.env.tool_schemas]
    if not names or any(step.tool_calls for one in episodes for step in one.steps):
        return ""
    return f"; it never calls a tool, so nothing is shown of {', '.join(names)}"
