"""Special tokens in texts of the world: there they are words, and end no turn.

A program can print `<|im_end|>`, a web page can show it, and a tokenizer makes the real token of it wherever it stands:
the world would end turns and begin others in the policy's context, in any role. So a text of the world is broken behind
the first character of each special token in it, and the pieces are encoded apart. No tokenizer can find what it never
sees in one piece, and the ids decode to the same text. (`split_special_tokens=True` of transformers would do it, but
is a switch on the tokenizer that all threads share.) A text that has to go through a chat template first gets a mark at
each break, plain letters which the template hands on.

Texts without special tokens are encoded as ever. Left as they are on purpose: what the policy wrote, the system prompt,
which is the trainer's, and added tokens that are not special, such as Qwen's `<tool_call>`: markup that the template
writes as text itself, and that ends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Begins with the one capital in it, so that no text before it can make it begin earlier.
_MARK = "Qxbreakx"
_TRUSTED = ("system", "assistant")


class SpecialTokens:
    """The special tokens of a tokenizer, and how texts of the world are broken at them.

    Args:
        tokenizer: a Hugging Face tokenizer.
        ends: ids that end a turn; they count as special, whatever the tokenizer calls them.
    """

    def __init__(self, tokenizer: Any, ends: Iterable[int] = ()) -> None:
        """Look up their texts."""
        added, ends = getattr(tokenizer, "added_tokens_decoder", {}), set(ends)
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
        """Mark the breaks in messages of the world.

        Args:
            messages: those of the policy and of the trainer stay as they are.
            *others: what else will be rendered with them.

        Returns:
            The messages, and the mark, which occurs in them at breaks only: `rendered.split(mark)` are the pieces.
        """
        mark = _MARK
        while mark in str((messages, others)):
            mark += "x"
        marked = []
        for message in messages:
            content = message["content"]
            if message["role"] not in _TRUSTED:
                if isinstance(content, str):
                    content = mark.join(self.pieces(content))
                elif isinstance(content, list):
                    content = [self._marked(part, mark) for part in content]
            marked.append({**message, "content": content})
        return marked, mark

    def _marked(self, part: Mapping[str, Any], mark: str) -> dict[str, Any]:
        return {**part, "text": mark.join(self.pieces(part["text"]))} if part["type"] == "text" else dict(part)
