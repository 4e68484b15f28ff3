"""Earlier turns of a conversation, for chat templates that count over the whole of it, and for a chat server.

Command-A numbers the calls of a conversation, and DeepSeek V3 opens the block of answers once. The text that such a
template writes after a turn depends on the turns before it. Their words do not matter: `shape_of` has a letter each.

A rollout appends deltas (chat.py). For the context policy `template` and the gateway, `render_conversation` shows the
template all turns at once, and the template may edit earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from agent_gym.call_format import CallFormat, Written, behind, made_up
from agent_gym.errors import ConfigError
from agent_gym.messages import Message, is_answer
from agent_gym.special_tokens import absent

if TYPE_CHECKING:
    from agent_gym.chat import ChatRenderer

_WORDS = "a"
_TURN = "Qxturnx"


def runs(messages: Sequence[Message]) -> Iterator[tuple[bool, list[Message], list[Message]]]:
    """Yield the runs of a conversation: whether the assistant wrote it, its messages, and those of the next run."""
    groups = [(mine, list(run)) for mine, run in groupby(messages, key=lambda one: one["role"] == "assistant")]
    for (mine, group), (_, following) in zip(groups, [*groups[1:], (False, [])], strict=True):
        yield mine, group, following


def shape_of(
    messages: Sequence[Message], call_format: CallFormat, observed: Callable[[Sequence[Message]], list[Message]]
) -> list[Message]:
    """Return a conversation of the same shape: calls where calls were answered, and a letter for what was said.

    Args:
        messages: what was said behind the opening.
        call_format: how the template takes calls.
        observed: makes answers of the world into messages that the template takes.
    """
    talk: list[Message] = []
    known = call_format.known and call_format.answer_role == "tool"
    for mine, group, following in runs(messages):
        if not mine:
            talk += observed([{**message, "content": _WORDS} for message in group])
            continue
        talk += [{"role": "assistant", "content": _WORDS} for _ in group]
        if known and (answers := list(takewhile(is_answer, following))):
            talk[-1] = call_format.written.message(made_up(observed(answers), _WORDS))
    return talk


def does_count(
    delta: Callable[..., str], past: Callable[[Sequence[Message]], list[Message]], written: Written, role: str
) -> bool:
    """Whether what a template writes behind a turn depends on the turns before it.

    Args:
        delta: renders what follows a turn.
        past: makes the turns before it.
        written: the form of ids.
        role: of answers to turns without calls.
    """

    def answer(name: str, place: int) -> Message:
        number = written.id_of.format(name=name, place=place)
        return {"role": "tool", "name": name, "tool_call_id": number, "content": _WORDS}

    plain = {"role": role, "content": _WORDS}
    for before, said in ((answer("one", 0), answer("two", 1)), (plain, plain)):
        with suppress(ConfigError):  # a role that the template does not take here
            turns = past([{"role": "assistant", "content": _WORDS}, before])
            prompted = {"add_generation_prompt": True}
            if delta([said], past=turns, **prompted) != delta([said], **prompted):
                return True
    return False


def numbered(messages: Sequence[Message], written: Written, *, unique: bool) -> list[Message]:
    """Give each answer to a call an id that templates take, counted over the conversation, unless it has one.

    Args:
        messages: a conversation.
        written: the form of ids.
        unique: whether an id that the policy has written twice is replaced, too. A template that finds the number of a
            call by its id needs that.
    """
    made: list[Message] = []
    seen: set[Any] = set()
    for message in messages:
        if is_answer(message):
            given = message.get("tool_call_id")
            if not given or (unique and given in seen):
                given = written.id_of.format(name=message.get("name") or "tool", place=len(seen))
            seen.add(given)
            message = {**message, "tool_call_id": given}
        made.append(message)
    return made


def render_conversation(
    renderer: ChatRenderer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], seen: Sequence[int]
) -> list[int]:
    """Do as `ChatRenderer.conversation`; `ConfigError` if the template does not show each turn of the policy.

    Messages that know their conversation (`KnownMessages`) are rendered from its end on, and need no `seen`.
    """
    if known := getattr(messages, "known", None):
        return known.ids(renderer, messages, tools)
    opening, *rest = pieces_of(renderer, messages, tools)
    ids = _continued(renderer, seen, opening)
    for turn_ids, piece in zip(sampled_in(messages), rest, strict=True):
        ids += [*turn_ids, *renderer._closing(turn_ids, renderer._encode_pieces(piece))]
    return ids


def sampled_in(messages: Sequence[Message]) -> list[Sequence[int]]:
    """Return the ids of each turn of the policy."""
    return [message["token_ids"] for message in messages if "token_ids" in message]


def pieces_of(
    renderer: ChatRenderer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """Return the template's text before the first turn of the policy and after each, broken at special tokens."""
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
    pieces, count = text.split(turn), len(sampled_in(messages))
    if len(pieces) != count + 1:
        raise ConfigError(f"the chat template shows {len(pieces) - 1} of {count} turns of the policy")
    return [piece.split(mark) for piece in pieces]


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
