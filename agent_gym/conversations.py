"""A whole conversation as a chat server renders it, for the context policy `template` and the gateway.

A rollout appends deltas (chat.py). Here the template sees all turns at once, and may edit earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_gym.call_format import behind, made_up
from agent_gym.errors import ConfigError
from agent_gym.messages import Message
from agent_gym.past_turns import runs
from agent_gym.special_tokens import absent

if TYPE_CHECKING:
    from agent_gym.chat import ChatRenderer

_TURN = "Qxturnx"


def render_conversation(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    seen: Sequence[int] = (),
) -> list[int]:
    """Render a conversation as ids; see `ChatRenderer.conversation`.

    Raises:
        ConfigError: if the template does not show each turn of the policy, or not in a form that is found again.
    """
    turn = absent(_TURN, [message["content"] for message in messages], tools)
    talk: list[Message] = []
    # Of turns that are calls to the template: the mark, the answers, the words, and how many calls precede them.
    cuts: list[tuple[str, list[Message], str, int]] = []
    messages = renderer._numbered(messages)
    for mine, group, following in runs(messages):
        if mine:
            answers = renderer._to_calls(following)
            for message in group:
                # The policy continued the beginning in the generation prompt: the message is both. No generation
                # prompt stood before a turn that somebody else wrote.
                words = "" if message.get("foreign") else renderer.prefill_at(talk)
                words += turn if "token_ids" in message else message["content"]
                if answers and message is group[-1]:
                    mark = absent(f"Qxcall{len(cuts)}xQ", messages, tools)
                    cuts.append((mark, answers, words, sum(len(cut[1]) for cut in cuts)))
                    talk.append(renderer.call_format.written.message(made_up(answers, mark)))
                else:
                    talk.append({"role": "assistant", "content": words})
        else:
            talk += renderer._as_observations(group) if talk else renderer._openings.fitted(group, tools)
    marked, mark = renderer._special.mark(talk, tools)
    text = renderer._render(marked, tools=list(tools) or None, add_generation_prompt=True)
    for cut in cuts:
        text = _without_calls(renderer, text, *cut)
    sampled = [message["token_ids"] for message in messages if "token_ids" in message]
    opening, *rest = text.split(turn)
    if len(rest) != len(sampled):
        raise ConfigError(f"the chat template shows {len(rest)} of {len(sampled)} turns of the policy")
    ids = _continued(renderer, seen, opening.split(mark))
    for turn_ids, piece in zip(sampled, rest, strict=True):
        ids += [*turn_ids, *renderer._closing(turn_ids, renderer._encode_pieces(piece.split(mark)))]
    return ids


def _without_calls(
    renderer: ChatRenderer, text: str, mark: str, answers: Sequence[Message], words: str, made: int
) -> str:
    """Put the words of a turn in the place of the calls that were made up for it, which follow `made` others."""
    before, _, tail = text.partition(mark)
    for opened, closed in renderer._facts.forms(renderer.call_format.parser, answers, mark, made):
        # Backwards, since the calls begin with the parser's text of them.
        start, stop = behind(before[::-1], 0, opened[::-1]), behind(tail, 0, renderer._facts.without_end(closed))
        if start is None or stop is None:
            continue
        if opened[:1].isspace():  # a text that begins with a space brings it
            start += len(before[: len(before) - start]) - len(before[: len(before) - start].rstrip())
        return before[: len(before) - start] + words + tail[stop:]
    raise ConfigError("the calls of tools are not found in what the chat template writes of a conversation")


def _continued(renderer: ChatRenderer, seen: Sequence[int], pieces: list[str]) -> list[int]:
    """Encode the pieces of a conversation; the ids begin with `seen` if the text begins with its words."""
    known = len(shown := renderer.tokenizer.decode(seen, skip_special_tokens=False) if seen else "")
    if not "".join(pieces).startswith(shown):
        return renderer._encode_pieces(pieces)
    while known > len(pieces[0]):
        known -= len(pieces.pop(0))
    return [*seen, *renderer._encode_pieces([pieces[0][known:], *pieces[1:]])]
