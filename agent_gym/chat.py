"""Contents of messages, and from messages to token ids, one delta at a time.

A chat template is a function of the whole conversation, but a rollout may never re-render the conversation: the ids
that the policy sampled would be decoded and encoded again (byte-pair encoding is not invertible), and many templates
edit history (Qwen3 drops earlier <think> text). So the template is only asked for *deltas*: the first prompt, and then,
per turn, the text between the policy's last word and its next one.

A made-up conversation [user, assistant(SENTINEL), answer...] is rendered, and the text after the sentinel is the delta:
the end of the assistant's turn, the answer with its role headers, and the generation prompt. If the policy sampled its
own end-of-turn, the template's copy of that token is dropped; if it was cut off, it stays, as a token of the world.
Counting that forced token as the policy's is the cause of Agent-R1's NaNs (its issue #30).
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from agent_gym.call_format import CallFormat, Template, families, probe, schema_of
from agent_gym.errors import ConfigError
from agent_gym.formats.thoughts import end_of_thought
from agent_gym.images import Vision, join, parts
from agent_gym.messages import (
    MAX_OBSERVATION_CHARS,
    Message,
    check_content,
    copied,
    cut_to_size,
    described,
    in_parts,
    is_answer,
    is_content,
    text_of,
)
from agent_gym.openings import Openings, prints_tools
from agent_gym.past_turns import does_count, numbered, render_conversation, shape_of
from agent_gym.special_tokens import SpecialTokens

__all__ = [
    "MAX_OBSERVATION_CHARS",
    "ChatRenderer",
    "Message",
    "check_content",
    "copied",
    "cut_to_size",
    "described",
    "is_content",
    "text_of",
]
# Plain letters, so that no template trims, escapes or tokenises it into something else.
_SENTINEL = "QxSentinelxQ"
_MOST_PREFILLS = 1000  # that are remembered


class ChatRenderer:
    """Turns an episode's messages into token ids with the chat template of one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template, or the processor of a vision-language model.
        template_kwargs: handed to every template call, for example `{"enable_thinking": False}`.

    Attributes:
        observation_role: the role that carries the world's answers to a turn without calls: "tool" where the template
            knows of tools and can render a tool message after a plain assistant message, else "user".
        call_format: how the model writes calls of tools, and how the template writes their answers.

    Raises:
        ConfigError: if the tokenizer has no chat template or its template cannot render a reply.
    """

    def __init__(self, tokenizer: Any, *, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.source, template = tokenizer, _template_of(tokenizer)
        self.vision = Vision.of(tokenizer)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if template is None:
            name = tokenizer.name_or_path or type(tokenizer).__name__
            cure = "set tokenizer.chat_template, or use an instruction-tuned model"
            raise ConfigError(f"the tokenizer {name!r} has no chat template: {cure}")
        self.tokenizer = tokenizer
        self._template = template
        # The processor's where it has one: many keep the template for images there, and another for text.
        self._chosen = {} if self.vision is None else {"chat_template": template}
        self.template_kwargs = dict(template_kwargs or {})
        self._as_parts = self._probe_contents()
        self.observation_role = self._probe_observation_role()
        self.end_of_turn, self._closings = self._probe_end_of_turn()
        self.eos_token_ids = frozenset(i for i in (tokenizer.eos_token_id, self.end_of_turn) if i is not None)
        self.renders_tools = prints_tools(self._render)
        self.call_format = self._probe_calls()
        self._look_at_two_turns()
        if self.call_format.structured and self.observation_role == "tool":
            # What such a template writes of an answer belongs to a call. What answers words is words.
            self.observation_role = "user"
            self.end_of_turn, self._closings = self._probe_end_of_turn()
        if self.call_format.end:
            end = tokenizer.convert_tokens_to_ids(self.call_format.end)
            self.eos_token_ids |= {end}
            self._closings |= {end} if self.call_format.end_closes else set()
        if self.vision is not None:
            self.eos_token_ids |= {self.vision.token_id}
        self._special = SpecialTokens(tokenizer, self.eos_token_ids)
        self._openings = Openings(self._render, self.renders_tools)
        self._prefills: dict[str, str] = {}  # by the words before a turn

    @classmethod
    def of(cls, tokenizer: Any) -> ChatRenderer:
        """Return the renderer of a tokenizer, probed once per template; a renderer is returned as it is."""
        if isinstance(tokenizer, ChatRenderer):
            return tokenizer
        renderer = _RENDERERS.get(id(tokenizer))
        if renderer is None or renderer.source is not tokenizer or renderer._template != _template_of(tokenizer):
            renderer = cls(tokenizer)
            _RENDERERS[id(tokenizer)] = renderer
        return renderer

    def also_ends_at(self, ids: int | Iterable[int] | None) -> None:
        """Let further tokens end a turn: `eos_token_id` of the model's generation config.

        GLM hands over with <|observation|>, GPT-OSS with <|call|>, Llama with <|eom_id|>: no template shows these.
        """
        more = () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)
        self.eos_token_ids |= frozenset(more)
        self._special = SpecialTokens(self.tokenizer, self.eos_token_ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> ChatRenderer:
        return self  # `gym.make` deep-copies keyword arguments, and a vocabulary is large

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Render the opening of an episode, with function schemas, up to and with the generation prompt: (T,) ids."""
        marked, mark = self._special.mark(messages, tools)
        text = self._render(self._openings.fitted(marked, tools), tools=list(tools) or None, add_generation_prompt=True)
        return self._encode_pieces(self._expand(text, messages).split(mark))

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, seen: Sequence[int] = ()
    ) -> list[int]:
        """Render a whole conversation as a chat server would, up to and including the generation prompt: (T,) ids.

        Unlike the deltas of `reply` it shows the template's rendering of the history, thoughts dropped and all. If it
        begins with the words of `seen`, the context so far, it begins with these ids, which encoding might not give
        back. A message with `token_ids`, a turn of the policy, appears as it was sampled, whatever its content is.
        """
        return render_conversation(self, messages, tools, seen)

    def _to_calls(self, messages: Sequence[Message]) -> list[Message]:
        """Return the first of these messages, the answers of tools that the template writes after calls only."""
        answers = list(takewhile(is_answer, messages)) if self.call_format.structured else []
        return self._as_observations(answers) if answers else []

    def _numbered(self, messages: Sequence[Message]) -> list[Message]:
        if not any(map(is_answer, messages)):
            return list(messages)
        return numbered(messages, self.call_format.written, unique=self.call_format.counts)

    def _past(self, messages: Sequence[Message]) -> list[Message]:
        return shape_of(messages, self.call_format, self._as_observations)

    @cached_property
    def prefill(self) -> str:
        """The beginning of the policy's turn in the generation prompt (<think>, for example); usually nothing."""
        return self.prefill_at([{"role": "user", "content": "a"}])

    def prefill_at(self, messages: Sequence[Message]) -> str:
        """The prefill of the turn after these messages: some templates open a thought after some of them only."""
        answered = bool(messages) and messages[-1]["role"] == "tool" and self.call_format.answer_role == "tool"
        system = [one for one in messages[:1] if one["role"] == "system"]
        # A template may look for a switch in the system message, or in the last one (/no_think).
        asked = messages[-1:] if messages and messages[-1]["role"] == "user" else [{"role": "user", "content": "a"}]
        key = "tool" if answered else described([*system, *asked])
        if key not in self._prefills:
            if len(self._prefills) >= _MOST_PREFILLS:
                self._prefills.clear()
            self._prefills[key] = self._probe_prefill([] if answered else [*system, *asked])
        return self._prefills[key]

    def _probe_prefill(self, asked: Sequence[Message]) -> str:
        """The prefill after these messages, or after the answer of a tool if the list is empty."""
        # The assistant's header is read off an earlier turn: in the last one, templates of thinking models may show an
        # empty thought.
        turn: list[Message] = [{"role": "assistant", "content": _SENTINEL}, {"role": "user", "content": "a"}]
        answer: list[Message] = [{"role": "tool", "name": "probe", "content": "b"}]
        try:
            if asked:
                asked = self._openings.fitted(asked)
                prompt = self._render(asked, add_generation_prompt=True)
                header = self._render([*asked, *turn])
            else:
                prompt, header = self._delta(answer, add_generation_prompt=True), self._delta(answer, turn)
        except ConfigError:
            return ""
        header = header.rpartition(_SENTINEL)[0]
        return prompt[len(header) :] if prompt.startswith(header) else ""

    def reply(
        self,
        sampled: Sequence[int],
        messages: Sequence[Message],
        *,
        final: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        past: Sequence[Message] = (),
    ) -> list[int]:
        """Render the text after the policy's turn: its end, the world's answer, the next generation prompt.

        Args:
            sampled: the ids of the policy's turn; only the last one matters.
            messages: the world's answer, as messages in `observation_role`, or as answers of tools, with the `name` of
                the tool and the `tool_call_id` of a call that has one.
            final: no generation prompt: the episode is over.
            tools: function schemas, as in `prompt`: some templates name them again in each turn.
            past: what was said between the opening and the policy's turn: some templates count calls or answers over
                the conversation (`call_format.counts`; the others need none).

        Returns:
            (T,) ids. `context + sampled + reply(...)` is the next context.
        """
        messages = self._numbered([*past, *messages])
        past, messages = messages[: len(past)], messages[len(past) :]
        marked, mark = self._special.mark(messages)
        more: dict[str, Any] = {"tools": list(tools)} if tools and self.call_format.tools_in_turns else {}
        text = self._after(past, marked, add_generation_prompt=not final, **more)
        return self._closing(sampled, self._encode_pieces(self._expand(text, messages).split(mark)))

    def _closing(self, sampled: Sequence[int], ids: list[int]) -> list[int]:
        """Drop the end of turn that a template writes after a turn that has sampled its own, and spaces before it."""
        # Another end token than the template's own (Qwen's <|endoftext|>) does not close the turn for the template.
        last = sampled[-1] if sampled else None
        if last is None or last not in self.eos_token_ids | self._closings:
            return ids
        for place, i in enumerate(ids):
            if i == last or (i in self._closings and last in self._closings):
                return ids[place + 1 :]
            if str(self.tokenizer.decode([i], skip_special_tokens=False)).strip():
                break
        return ids

    def inline_reply(self, sampled: Sequence[int], text: str) -> list[int]:
        """Render the world's answer inside the policy's own turn, as ReTool does (arXiv:2504.11536)."""
        # A policy that sampled its end-of-turn has left the turn, so the answer then comes as a message after all.
        if sampled and sampled[-1] in self.eos_token_ids:
            return self.reply(sampled, [{"role": self.observation_role, "content": text}])
        return [i for piece in self._special.pieces(text) for i in self._encode_inside(piece)]

    def encode_action(self, text: str, *, closed: bool = True, after: Sequence[int] = ()) -> list[int]:
        """Encode a turn that a script wrote: its text and, if `closed`, the end-of-turn a policy would sample then.

        A thought that the context (`after`, its ids) has opened at its end is closed first.
        """
        thought = end_of_thought(self.tokenizer.decode(list(after[-40:])), text) if after else ""  # marks are shorter
        closing = self.end_of_turn if self.end_of_turn is not None else self.tokenizer.eos_token_id
        text = self.call_format.as_written(text)
        if (end := self.call_format.end) and closed and self.call_format.parser.parse(text):
            return self._encode_inside(thought + text.removesuffix(end) + end)
        return self._encode_inside(thought + text) + ([closing] if closed and closing is not None else [])

    def decode_action(self, ids: Sequence[int]) -> str:
        """Decode a sampled turn to the text the environment sees, without the end tokens at its end."""
        written = list(ids)
        while written and written[-1] in self.eos_token_ids:
            written.pop()
        # Special tokens stay visible: a policy that writes <|im_start|> in mid-turn did write it.
        return self.tokenizer.decode(written, skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Encode text unchanged: special tokens in it count as such, none are added."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_world(self, text: str) -> list[int]:
        """Encode a text of the world by itself: special tokens in it are words like others."""
        return self._encode_pieces(self._special.pieces(text))

    def _encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        return self.encode(pieces[0]) + [i for piece in pieces[1:] for i in self._encode_inside(piece)]

    def _encode_inside(self, text: str) -> list[int]:
        # Tokenizers of the SentencePiece kind (Llama 2, Phi-3, Mistral) put a space before the first word of whatever
        # they are given, so that a turn encoded by itself would begin with a space that no template has there.
        head, ids = self.encode("\n"), self.encode("\n" + text)
        return ids[len(head) :] if ids[: len(head)] == head else self.encode(text)

    def _as_observations(self, messages: Sequence[Message]) -> list[Message]:
        role = self.call_format.answer_role if messages and is_answer(messages[0]) else self.observation_role
        copies = self._numbered(messages)
        if role != "tool":
            # Templates without a tool role demand alternating turns, so that several answers share one user message.
            return [{"role": "user", "content": join([message["content"] for message in messages], "\n")}]
        answers = list(takewhile(is_answer, copies))
        if len(answers) < 2 or self.call_format.parallel:
            return copies
        return [{**answers[0], "content": join([one["content"] for one in answers], "\n")}, *copies[len(answers) :]]

    def _after(self, past: Sequence[Message], messages: Sequence[Message], **kwargs: Any) -> str:
        """Render the text after a turn that follows earlier ones, where these count."""
        if past and self.call_format.counts:
            with suppress(ConfigError):  # some refuse roles in this order
                return self._delta(messages, past=self._past(past), **kwargs)
        return self._delta(messages, **kwargs)

    def _delta(
        self, messages: Sequence[Message], rest: Sequence[Message] = (), past: Sequence[Message] = (), **kwargs: Any
    ) -> str:
        """Render the text after a turn: after calls where the template writes the answers of tools there only."""
        answers = self._to_calls(messages)
        if not answers:
            return self._tail([*self._as_observations(messages), *rest], past, **kwargs)
        others = [dict(message) for message in messages if not is_answer(message)]
        call_format = self.call_format
        if call_format.tools_in_turns and "tools" not in kwargs:
            kwargs["tools"] = [schema_of(str(answer.get("name") or "tool")) for answer in answers]
        parser, written = call_format.parser, call_format.written
        return self._facts.behind_calls(parser, written, answers, [*others, *rest], past, **kwargs)

    def _tail(self, answers: Sequence[Message], past: Sequence[Message] = (), **kwargs: Any) -> str:
        talk = [{"role": "user", "content": "a"}, *past, {"role": "assistant", "content": _SENTINEL}, *answers]
        # An answer may quote the marker too (a policy can make a tool say anything): the first one is the turn.
        _, found, tail = self._render(talk, **kwargs).partition(_SENTINEL)
        if not found:
            raise ConfigError(
                "the chat template drops an assistant message when an answer follows it, so a multi-turn episode "
                "cannot be rendered by appending; use TRL's training variant of the template"
            )
        return tail

    def _expand(self, text: str, messages: Sequence[Message]) -> str:
        if self.vision is not None:
            return self.vision.expand(text, messages)
        lists = [message["content"] for message in messages if isinstance(message["content"], list)]
        if any(part["type"] == "image" for content in lists for part in content):
            raise ConfigError(
                f"this environment shows images, and {type(self.source).__name__} does not say what stands for one: "
                "hand over the processor of a vision-language model (agent_gym.policies.processors.load_processor); "
                "where a small one is made on the spot, the environment's class has to say shows_images = True"
            )
        return text

    def _render(self, messages: Sequence[Message], **kwargs: Any) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                [in_parts(message) for message in messages] if self._as_parts else list(messages),
                tokenize=False,
                **{**self._chosen, **self.template_kwargs, **kwargs},
            )
        except Exception as error:  # templates signal refusal with whatever exception Jinja happens to raise
            roles = ", ".join(message["role"] for message in messages)
            cure = '; without a system message: system_prompt="" of the environment' if "system" in roles else ""
            raise ConfigError(f"the chat template cannot render a conversation of {roles}: {error}{cure}") from error

    def _probe_contents(self) -> bool:
        """Whether the template takes contents as lists of parts only (MiniMax-Text-01, Granite-Vision)."""
        talk: list[Message] = [{"role": "user", "content": "Qxaskxq"}, {"role": "assistant", "content": _SENTINEL}]
        for self._as_parts in (False, True):
            try:
                text = self._render([*talk, {"role": "user", "content": "Qxansxq"}])
            except ConfigError:
                continue
            if all(mark in text for mark in ("Qxaskxq", _SENTINEL, "Qxansxq")):
                return self._as_parts
        return False  # whatever is wrong with it is told by the probes below

    def _probe_observation_role(self) -> str:
        # A template that prints whatever role it is given (Qwen2, Qwen2-VL, SmolLM2) would print this one, too, in a
        # header that its model has never read.
        if "tool" not in str(self._template):
            return "user"
        # A template may refuse a tool message, skip it silently, or print it. Two in a row, as parallel calls give, and
        # in a second turn. The world's answer to plain words has no name of a tool.
        probe: list[Message] = [{"role": "tool", "content": f"probe{i}"} for i in range(2)]
        past: list[Message] = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]
        if self.vision is not None:
            probe[1]["content"] = [*parts("probe1"), {"type": "image"}]
        tail = self._tries_tail(probe, past)
        # Where the name or the id of a call is shown, an answer to no call has a hole there.
        named = [{**one, "name": f"of{i}", "tool_call_id": f"call0000{i}"} for i, one in enumerate(probe)]
        if self._tries_tail(named, past) not in (tail, ""):
            return "user"
        seen = self.vision is None or tail.count(self.vision.token) == 1
        return "tool" if seen and "probe0" in tail and "probe1" in tail else "user"

    def _tries_tail(self, answers: Sequence[Message], past: Sequence[Message]) -> str:
        try:
            return self._tail(answers, past, add_generation_prompt=True)
        except ConfigError:
            return ""

    def _probe_end_of_turn(self) -> tuple[int | None, frozenset[int]]:
        """Return the token that ends a turn, and all that close one for the template."""
        # The text that closes the last assistant message of a conversation (<|im_end|>, <|return|> of GPT-OSS), after
        # white space in some templates (Llama 2). Templates that leave it open (GLM) close it with the next header.
        closed = self._render([{"role": "user", "content": "a"}, {"role": "assistant", "content": _SENTINEL}])
        answer = {"role": self.observation_role, "name": "probe", "content": "a"}
        following = self._tail([answer], add_generation_prompt=True)
        specials = set(self.tokenizer.all_special_ids) | set(getattr(self.tokenizer, "added_tokens_decoder", {}))
        closed = closed.partition(_SENTINEL)[2]
        first, second = self._first(closed, specials), self._first(following, specials)
        # A header of the next text may follow the white space.
        if first is not None and closed[:1].isspace() and first not in (second, self.tokenizer.eos_token_id):
            first = None
        if first is None:
            if following[:1].isspace() and second != self.tokenizer.eos_token_id:
                second = None
            return second, frozenset()
        # A conversation that continues may close its turns in another way: <|end|> of GPT-OSS.
        return first, frozenset({first} if second is None else {first, second})

    def _first(self, text: str, specials: Collection[int]) -> int | None:
        """Return the special token that a text begins with, after white space."""
        ids = self.encode(text.lstrip())
        return ids[0] if ids and ids[0] in specials else None

    def _probe_calls(self) -> CallFormat:
        special = {str(token) for token in getattr(self.tokenizer, "added_tokens_decoder", {}).values()}
        special |= set(self.tokenizer.all_special_tokens)
        ends = {self.tokenizer.decode([i], skip_special_tokens=False) for i in self.eos_token_ids | self._closings}
        self._facts = Template(self._render, str(self._template), ends, special)
        return probe(self._facts, families(), self._plain_answers, self.renders_tools)

    def _look_at_two_turns(self) -> None:
        """Find out whether the template counts, and takes answers of tools behind words in more than one turn."""
        written = self.call_format.written
        answer = {
            "role": "tool",
            "name": "tool",
            "tool_call_id": written.id_of.format(name="tool", place=0),
            "content": "a",
        }
        counts = does_count(self._delta, self._past, written, self.observation_role)
        plain = not counts and bool(self._tries_tail([answer], [{"role": "assistant", "content": "a"}, answer]))
        structured = self.call_format.structured or (not plain and self._facts.answers_calls(self.call_format))
        self.call_format = replace(self.call_format, counts=counts, structured=structured)

    def _plain_answers(self, answers: Sequence[Message], **kwargs: Any) -> str:
        """Render answers of tools after a plain turn; `ConfigError` where the template knows no tools."""
        if "tool" not in str(self._template):
            raise ConfigError("the chat template knows no tools")
        return self._tail(answers, **kwargs)


def _template_of(source: Any) -> Any:
    """Return the chat template of a tokenizer, or of a processor or its tokenizer."""
    template = getattr(source, "chat_template", None)
    return template if template is not None else getattr(getattr(source, "tokenizer", None), "chat_template", None)


# Keyed by id because some tokenizers do not hash; weak values, so that nothing is kept alive by the cache.
_RENDERERS: weakref.WeakValueDictionary[int, ChatRenderer] = weakref.WeakValueDictionary()
