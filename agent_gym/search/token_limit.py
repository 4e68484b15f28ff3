"""How much of a text a policy reads, counted in its own tokens."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gym.chat import ChatRenderer

MARK = "..."  # ends a text that was cut
_MOST_CHARACTERS = 32  # more than a token of running text ever has; only the beginning of endless texts is encoded


class TokenLimit:
    """Cuts texts to a number of tokens.

    Args:
        renderer: of the policy's tokenizer; without one a token is taken for four bytes, about its mean in English.
    """

    def __init__(self, renderer: ChatRenderer | None) -> None:
        self._renderer = renderer

    def count(self, text: str) -> int:
        """Return the tokens of a text, by itself."""
        if self._renderer is None:
            return -(-len(text.encode("utf-8", "replace")) // 4)
        return len(self._renderer.encode_world(text))

    def cut(self, text: str, limit: int) -> str:
        """Return the text if it has at most `limit` tokens, else a beginning of it that has, ended by `MARK`."""
        begun = text[: _MOST_CHARACTERS * limit]
        tokens = self.count(begun)
        if begun == text and tokens <= limit:
            return text
        while True:
            cut = begun + MARK
            tokens = self.count(cut)
            if tokens <= limit:
                return cut
            if not begun:
                return ""
            # How many tokens a beginning has is only known by encoding it, so that this closes in on the limit.
            begun = begun[: min(len(begun) * limit // tokens, len(begun) - 1)]

    def share(self, texts: Sequence[str], limit: int) -> list[str]:
        """Cut texts so that together they have at most `limit` tokens; short ones leave their rest to the others."""
        counts = [self.count(text[: _MOST_CHARACTERS * limit]) for text in texts]
        cut = list(texts)
        left = limit
        for n, i in enumerate(sorted(range(len(texts)), key=counts.__getitem__)):
            cut[i] = self.cut(texts[i], left // (len(texts) - n))
            left -= self.count(cut[i])
        return cut
