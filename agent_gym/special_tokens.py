"""The special tokens of a tokenizer, which are words where the world writes them; and marks that no text holds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agent_gym.images import Content

_MARK = "Qxbreakx"  # begins with the one capital in it, so that no text before it can make it begin earlier


class SpecialTokens:
    """The special tokens of a tokenizer. In texts of the world they are words, which end no turn.

    A program can print `<|im_end|>`, and a tokenizer encodes it as the real token, wherever it is. So a text of the
    world is broken after the first character of each special token in it, and the pieces are encoded apart; the ids
    decode to the same text. (`split_special_tokens=True` of transformers is a switch on the tokenizer that all threads
    share.) A text that goes through a chat template first gets a mark at each break, plain letters. Left as they are:
    the policy's text, the system prompt, and added tokens that are not special, such as Qwen's `<tool_call>`. `ends`
    are ids that end a turn; they count as special, whatever the tokenizer calls them.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int] = ()) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        texts = {str(token) for i, token in added.items() if token.special or i in ends}
        # A single character cannot be broken, and is not markup either.
        texts = {text for text in texts | set(tokenizer.all_special_tokens) if len(text) > 1}
        begin = "|".join(map(re.escape, sorted(texts))) or "(?!)"
        self._begin = re.compile(f"(?={begin}).", re.DOTALL)

    def pieces(self, text: str) -> list[str]:
        """Break a text of the world; the pieces together are the text, and none has a special token."""
        starts = [0, *(match.end() for match in self._begin.finditer(text))]
        return [text[start:stop] for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]

    def mark(self, messages: Sequence[Mapping[str, Any]], *others: Any) -> tuple[list[dict[str, Any]], str]:
        """Mark the breaks in messages of the world; messages of the policy and of the trainer stay as they are.

        Returns:
            The messages, and the mark, which occurs in them and in `others` at breaks only: `rendered.split(mark)` are
            the pieces.
        """
        mark = absent(_MARK, messages, others)
        copies = [{**message} for message in messages]
        for message in copies:
            if message["role"] not in ("system", "assistant"):
                message["content"] = self._marked(message["content"], mark)
        return copies, mark

    def _marked(self, content: Content, mark: str) -> Content:
        if isinstance(content, str):
            return mark.join(self.pieces(content))
        return [{**one, "text": self._marked(one["text"], mark)} if one["type"] == "text" else one for one in content]


def absent(mark: str, *texts: Any) -> str:
    """Lengthen a mark until it occurs in none of the texts."""
    while mark in str(texts):
        mark += "x"
    return mark
