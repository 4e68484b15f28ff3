"""Contents of messages, and from messages to token ids, one delta at a time.

A chat template is a function of the whole conversation, but a rollout may never re-render the conversation: the ids
that the policy sampled would be decoded and encoded again (byte-pair encoding is not invertible), and many templates
edit history (Qwen3 drops earlier <think> text). So the template is only asked for *deltas*: the first prompt, and then,
per turn, the text between the policy's last word and its next one.

A made-up conversation [user, assistant(SENTINEL), answer...] is rendered, and what follows the sentinel is the delta:
the end of the assistant's turn, the answer with its role headers, and the generation prompt. If the policy sampled its
own end-of-turn, the template's copy of that token is dropped; if it was cut off, it stays, as a token of the world.
Counting that forced token as the policy's is the bug behind Agent-R1's NaNs (its issue #30).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from agent_gym.errors import ConfigError, shown
from agent_gym.images import PLACEHOLDER, Content, Image, Vision, join, parts

Message = dict[str, Any]
"""A chat message: {"role": "system" | "user" | "assistant" | "tool", "content": str or parts (images.py), ...}."""
MAX_OBSERVATION_CHARS = 1 << 16
_CUT = "\n[cut: too long]"

# Plain letters, so that no template trims, escapes or tokenises it into something else.
_SENTINEL = "QxSentinelxQ"
_TURN = "Qxturnx"
_MARK = "Qxbreakx"  # begins with the one capital in it, so that no text before it can make it begin earlier
_EMPTY = {"type": "object", "properties": {}, "required": []}
_PROBE_TOOL = {"type": "function", "function": {"name": _SENTINEL, "description": _SENTINEL, "parameters": _EMPTY}}


def text_of(content: Content) -> str:
    """Return the words of a content, with `PLACEHOLDER` for each image."""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) if "text" in part else f"<{part.get('type', 'part')}>" for part in content)


def described(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the words of messages and the digests of their images: equal where they say and show the same."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    digests = [part["image"].digest for part in parts if part["type"] == "image"]
    return "\0".join([" ".join(map(text_of, contents)), *digests])


def is_content(content: Any) -> bool:
    """Whether this is a text, or parts as `images.parts` makes them."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict)
        and (isinstance(part.get("text"), str) if part.get("type") == "text" else isinstance(part.get("image"), Image))
        for part in content
    )


def check_content(content: Any, what: str) -> None:
    """Raise `ConfigError` unless `is_content`."""
    if not is_content(content):
        raise ConfigError(f"{what} is {shown(content)}; it must be a text, or what agent_gym.images.parts makes")


def copied(value: Any) -> Any:
    """Copy nested dicts and lists; what they hold (texts, numbers, images) never changes and is shared."""
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def cut_to_size(messages: list[Message], joint: str) -> tuple[list[Message], str]:
    """Cut the texts of messages to `MAX_OBSERVATION_CHARS` characters together; return them and their joined text.

    Lone surrogates, which no tokenizer and no file can encode, are replaced. Images stay as they are.
    """
    contents = [message["content"] for message in messages]
    text = joint.join(map(text_of, contents))
    limit = MAX_OBSERVATION_CHARS
    if len(text) + len(joint) > limit:
        plain = all(isinstance(content, str) for content in contents)
        pieces = sum(1 if isinstance(content, str) else len(content) for content in contents)
        limit = limit // pieces - (len(joint) if plain else max(len(joint), len(PLACEHOLDER)))
    elif text.isascii():
        return messages, text

    def cut(content: Any) -> Any:
        if isinstance(content, list):
            return [{**part, "text": cut(part["text"])} if part["type"] == "text" else part for part in content]
        short = content if len(content) <= limit else content[: limit - len(_CUT)] + _CUT
        return short.encode("utf-8", "replace").decode("utf-8")

    messages = [{**message, "content": cut(message["content"])} for message in messages]
    return messages, joint.join(text_of(message["content"]) for message in messages)


class ChatRenderer:
    """Turns an episode's messages into token ids with the chat template of one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template, or the processor of a vision-language model.
        template_kwargs: handed to every template call, for example `{"enable_thinking": False}`.

    Attributes:
        observation_role: the role that carries the world's answers: "tool" where the template knows of tools and can
            render a tool message after a plain assistant message, else "user".

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
        self.observation_role = self._probe_observation_role()
        self.end_of_turn = self._probe_end_of_turn()
        self.renders_tools = _SENTINEL in self._render([{"role": "user", "content": "a"}], tools=[_PROBE_TOOL])
        self.eos_token_ids = frozenset(i for i in (tokenizer.eos_token_id, self.end_of_turn) if i is not None)
        if self.vision is not None:
            self.eos_token_ids |= {self.vision.token_id}
        self._special = SpecialTokens(tokenizer, self.eos_token_ids)

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
        text = self._render(marked, tools=list(tools) or None, add_generation_prompt=True)
        return self._encode_pieces(self._expand(text, messages).split(mark))

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, seen: Sequence[int] = ()
    ) -> list[int]:
        """Render a whole conversation as a chat server would, up to and including the generation prompt: (T,) ids.

        Unlike the deltas of `reply` it shows what the template makes of history, thoughts dropped and all. If it begins
        with the words of `seen`, the context so far, it begins with these ids, which encoding might not give back.
        A message with `token_ids`, a turn of the policy, stands there as it was sampled, whatever its content says.
        """
        turn = _absent(_TURN, [message["content"] for message in messages], tools)
        talk: list[Message] = []
        for mine, run in groupby(messages, key=lambda message: message["role"] == "assistant"):
            group = list(run)
            if mine:
                # What the generation prompt began, the policy only went on with: the message is both.
                texts = [turn if "token_ids" in message else message["content"] for message in group]
                talk += [{"role": "assistant", "content": self.prefill + text} for text in texts]
            else:
                talk += self._as_observations(group) if talk else group
        marked, mark = self._special.mark(talk, tools)
        text = self._render(marked, tools=list(tools) or None, add_generation_prompt=True)
        sampled = [message["token_ids"] for message in messages if "token_ids" in message]
        opening, *rest = text.split(turn)
        if len(rest) != len(sampled):
            raise ConfigError(f"the chat template shows {len(rest)} of {len(sampled)} turns of the policy")
        ids = self._go_on(seen, opening.split(mark))
        for turn_ids, piece in zip(sampled, rest, strict=True):
            ids += [*turn_ids, *self._closing(turn_ids, self._encode_pieces(piece.split(mark)))]
        return ids

    def _go_on(self, seen: Sequence[int], pieces: list[str]) -> list[int]:
        known = len(shown := self.tokenizer.decode(seen, skip_special_tokens=False) if seen else "")
        if not "".join(pieces).startswith(shown):
            return self._encode_pieces(pieces)
        while known > len(pieces[0]):
            known -= len(pieces.pop(0))
        return [*seen, *self._encode_pieces([pieces[0][known:], *pieces[1:]])]

    @cached_property
    def prefill(self) -> str:
        """What the generation prompt puts into the policy's mouth (<think>, for example); usually nothing."""
        # The assistant's header is read off an earlier turn: in the last one, templates of thinking models may show an
        # empty thought.
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _SENTINEL}]
        header = self._render([*talk, talk[0]]).partition(_SENTINEL)[0]
        prompt = self._render(talk[:1], add_generation_prompt=True)
        return prompt[len(header) :] if prompt.startswith(header) else ""

    def reply(self, sampled: Sequence[int], messages: Sequence[Message], *, final: bool = False) -> list[int]:
        """Render what follows the policy's turn: its end, the world's answer, the next generation prompt.

        Args:
            sampled: the ids of the policy's turn; only the last one matters.
            messages: the world's answer, as messages in `observation_role`.
            final: no generation prompt: the episode is over.

        Returns:
            (T,) ids. `context + sampled + reply(...)` is the next context.
        """
        marked, mark = self._special.mark(self._as_observations(messages))
        ids = self._encode_pieces(self._expand(self._tail(marked, not final), messages).split(mark))
        return self._closing(sampled, ids)

    def _closing(self, sampled: Sequence[int], ids: list[int]) -> list[int]:
        """Drop the end of turn that a template writes behind a turn that has sampled its own."""
        # Another end token than the template's own (Qwen's <|endoftext|>) does not close the turn for the template.
        return ids[1:] if sampled and ids and sampled[-1] == ids[0] and ids[0] in self.eos_token_ids else ids

    def inline_reply(self, sampled: Sequence[int], text: str) -> list[int]:
        """Render the world's answer inside the policy's own turn, as ReTool does (arXiv:2504.11536)."""
        # A policy that sampled its end-of-turn has left the turn, so the answer then comes as a message after all.
        if sampled and sampled[-1] in self.eos_token_ids:
            return self.reply(sampled, [{"role": self.observation_role, "content": text}])
        return [i for piece in self._special.pieces(text) for i in self._encode_inside(piece)]

    def encode_action(self, text: str, *, closed: bool = True) -> list[int]:
        """Encode a turn that a script wrote: its text and, if `closed`, the end-of-turn a policy would sample then."""
        closing = self.end_of_turn if self.end_of_turn is not None else self.tokenizer.eos_token_id
        return self._encode_inside(text) + ([closing] if closed and closing is not None else [])

    def decode_action(self, ids: Sequence[int]) -> str:
        """Decode a sampled turn to the text the environment sees, without the end tokens at its end."""
        written = list(ids)
        while written and written[-1] in self.eos_token_ids:
            written.pop()
        # Special tokens stay visible: a policy that writes <|im_start|> in mid-turn did write it.
        return self.tokenizer.decode(written, skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Encode text as it stands: special tokens in it count as such, none are added."""
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
        if self.observation_role == "tool":
            return [dict(message) for message in messages]
        # Templates without a tool role demand alternating turns, so that several answers share one user message.
        return [{"role": "user", "content": join([message["content"] for message in messages], "\n")}]

    def _tail(self, answers: list[Message], add_generation_prompt: bool) -> str:
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _SENTINEL}, *answers]
        # An answer may quote the marker too (a policy can make a tool say anything): the first one is the turn.
        _, found, tail = self._render(talk, add_generation_prompt=add_generation_prompt).partition(_SENTINEL)
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
                list(messages), tokenize=False, **{**self._chosen, **self.template_kwargs, **kwargs}
            )
        except Exception as error:  # templates signal refusal with whatever exception Jinja happens to raise
            roles = ", ".join(message["role"] for message in messages)
            cure = '; without a system message: system_prompt="" of the environment' if "system" in roles else ""
            raise ConfigError(f"the chat template cannot render a conversation of {roles}: {error}{cure}") from error

    def _probe_observation_role(self) -> str:
        # A template that prints whatever role it is given (Qwen2, Qwen2-VL, SmolLM2) would print this one, too, in a
        # header that its model has never read.
        if "tool" not in str(self._template):
            return "user"
        # A template may refuse a tool message, skip it silently, or print it. Two in a row, as parallel calls give.
        self.observation_role = "tool"
        probe: list[Message] = [{"role": "tool", "content": f"probe{i}", "name": "probe"} for i in range(2)]
        if self.vision is not None:
            probe[1]["content"] = [*parts("probe1"), {"type": "image"}]
        try:
            tail = self._tail(probe, True)
        except ConfigError:
            return "user"
        seen = self.vision is None or tail.count(self.vision.token) == 1
        return "tool" if seen and "probe0" in tail and "probe1" in tail else "user"

    def _probe_end_of_turn(self) -> int | None:
        # What closes the last assistant message of a conversation (<|im_end|>, <|return|> of GPT-OSS). Templates that
        # leave it open (GLM) close it with the header of the next message.
        closed = self._render([{"role": "user", "content": "a"}, {"role": "assistant", "content": _SENTINEL}])
        answer = self._as_observations([{"role": self.observation_role, "content": "a"}])
        specials = set(self.tokenizer.all_special_ids) | set(getattr(self.tokenizer, "added_tokens_decoder", {}))
        for tail in (closed.partition(_SENTINEL)[2], self._tail(answer, True)):
            ids = self.encode(tail)
            if ids and ids[0] in specials:
                return ids[0]
        return None


class SpecialTokens:
    """The special tokens of a tokenizer. In texts of the world they are words, which end no turn.

    A program can print `<|im_end|>`, and a tokenizer makes the real token of it wherever it stands. So a text of the
    world is broken behind the first character of each special token in it, and the pieces are encoded apart; the ids
    decode to the same text. (`split_special_tokens=True` of transformers is a switch on the tokenizer that all threads
    share.) A text that goes through a chat template first gets a mark at each break, plain letters. Left as they are:
    what the policy wrote, the system prompt, and added tokens that are not special, such as Qwen's `<tool_call>`.
    `ends` are ids that end a turn; they count as special, whatever the tokenizer calls them.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int] = ()) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        texts = {str(token) for i, token in added.items() if token.special or i in ends}
        # A single character cannot be broken, and is no markup either.
        texts = {text for text in texts | set(tokenizer.all_special_tokens) if len(text) > 1}
        begin = "|".join(map(re.escape, sorted(texts))) or "(?!)"
        self._begin = re.compile(f"(?={begin}).", re.DOTALL)

    def pieces(self, text: str) -> list[str]:
        """Break a text of the world; the pieces together are the text, and none has a special token."""
        starts = [0, *(match.end() for match in self._begin.finditer(text))]
        return [text[start:stop] for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]

    def mark(self, messages: Sequence[Mapping[str, Any]], *others: Any) -> tuple[list[dict[str, Any]], str]:
        """Mark the breaks in messages of the world; those of the policy and of the trainer stay as they are.

        Returns:
            The messages, and the mark, which occurs in them and in `others` at breaks only: `rendered.split(mark)` are
            the pieces.
        """
        mark = _absent(_MARK, messages, others)
        copies = [{**message} for message in messages]
        for message in copies:
            if message["role"] not in ("system", "assistant"):
                message["content"] = self._marked(message["content"], mark)
        return copies, mark

    def _marked(self, content: Content, mark: str) -> Content:
        if isinstance(content, str):
            return mark.join(self.pieces(content))
        return [{**one, "text": self._marked(one["text"], mark)} if one["type"] == "text" else one for one in content]


def _absent(mark: str, *texts: Any) -> str:
    """Lengthen a mark until it occurs in none of the texts."""
    while mark in str(texts):
        mark += "x"
    return mark


def _template_of(source: Any) -> Any:
    """Return the chat template of a tokenizer, or of a processor or its tokenizer."""
    template = getattr(source, "chat_template", None)
    return template if template is not None else getattr(getattr(source, "tokenizer", None), "chat_template", None)


# Keyed by id because some tokenizers do not hash; weak values, so that nothing is kept alive by the cache.
_RENDERERS: weakref.WeakValueDictionary[int, ChatRenderer] = weakref.WeakValueDictionary()
