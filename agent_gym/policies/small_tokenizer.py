"""A small tokenizer made on the spot, without torch and transformers, so that scripts play within a second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# The texts that BPE may not split or merge across: the frame of a call with one string argument, the frame of its
# answer, digits, the tags of an answer, words, and whatever is none of these.
_FRAMES = (
    r'<tool_call>\n\{"name": "\w+", "arguments": \{"\w+": "|"\}\}\n</tool_call>|<tool_response>\n|\n</tool_response>'
    r"|(?:system|user|assistant)\n|</?answer>|\d"
)
_WORDS = r" ?[A-Za-z]+"
_WORDS_NAMES_APART = r"[A-Z][a-z]+| ?[a-z]+|[A-Z]+"
_REST = r"[^A-Za-z\d\s]|\s"


def train_bpe(
    texts: Iterable[str], vocab_size: int = 800, *, names_apart: bool = False, frames: Sequence[str] = ()
) -> Tokenizer:
    """Train the vocabulary on texts.

    Args:
        texts: the texts that it will have to encode.
        vocab_size: number of tokens; every byte has one, so that any text can be encoded.
        names_apart: cut capitalised words off from the space before them. A name is then the same tokens after a space
            and after a quotation mark, and can be copied token by token. It costs a token per name.
        frames: texts that an environment always writes in the same way; each becomes a separate token, besides the ones
            of `vocab_size`. Of several that begin at one place the longest counts.
    """
    words = _WORDS_NAMES_APART if names_apart else _WORDS
    core = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(f"{_FRAMES}|{words}|{_REST}"), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), [PAD, START, END]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    # Each text represents one conversation, so that its frame is as frequent as it will be.
    roles = ["system\n", "user\n", "assistant\n"]
    # BPE sees the text between the frames only, and spends no token on parts of them.
    between = re.compile("|".join(map(re.escape, sorted(frames, key=len, reverse=True))) or "(?!)")
    core.train_from_iterator((piece for text in texts for piece in (*between.split(text), *roles)), trainer)
    core.add_tokens([AddedToken(frame, normalized=False) for frame in frames])
    return core


class SmallTokenizer:
    """The interface of a Hugging Face tokenizer that a `ChatRenderer` uses, over a vocabulary of `train_bpe`."""

    name_or_path = "a small tokenizer made here"
    eos_token, pad_token, bos_token_id = END, PAD, None
    all_special_tokens = (END, PAD)

    def __init__(self, core: Tokenizer, chat_template: str) -> None:
        self.core, self.chat_template = core, chat_template
        self.eos_token_id, self.pad_token_id = map(self.convert_tokens_to_ids, self.all_special_tokens)
        self.all_special_ids = (self.eos_token_id, self.pad_token_id)
        self.added_tokens_decoder = core.get_added_tokens_decoder()

    def __len__(self) -> int:
        return self.core.get_vocab_size()

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Return the id of a token; None if the vocabulary does not have it."""
        return self.core.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return (T,) ids; a special token in the text counts as such."""
        return self.core.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of (T,) ids."""
        return self.core.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render a conversation to text, with the settings of Jinja under which templates of models are written."""
        more = {"eos_token": self.eos_token, "pad_token": self.pad_token, **kwargs}
        return _compiled(self.chat_template).render(
            messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt, **more
        )


@lru_cache(maxsize=8)
def _compiled(chat_template: str) -> Template:
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(chat_template)
