"""From tokens that arrive one by one to pieces of text that can be shown at once."""

from __future__ import annotations

from agent_gym.chat import ChatRenderer

_UNFINISHED = "\ufffd"


class TextStream:
    """Decodes the tokens of one turn as they come.

    A character may be spread over several tokens, and a token may be decoded differently behind another one. So a piece
    is what the newest tokens add to the text of those just before them, and it waits while its last character is not
    whole. Each token is decoded a few times and not once per token of the turn.

    Args:
        renderer: of the policy's tokenizer.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self.token_ids: list[int] = []
        self.shown = ""
        self._before = self._told = 0  # where the tokens begin that are decoded again, and those that were not shown

    def add(self, token: int) -> str:
        """Take a token and return the piece of text that it completes; "" if there is none."""
        self.token_ids.append(token)
        decode = self._renderer.decode_action  # ends of turns are no text
        known = decode(self.token_ids[self._before : self._told])
        text = decode(self.token_ids[self._before :])
        if len(text) <= len(known) or text.endswith(_UNFINISHED):
            return ""
        self._before, self._told = self._told, len(self.token_ids)
        return self._show(text[len(known) :])

    def finish(self, text: str) -> str:
        """Return what is missing of the whole text: all of it, if no token was told."""
        return self._show(text[len(self.shown) :]) if text.startswith(self.shown) else ""

    def _show(self, piece: str) -> str:
        self.shown += piece
        return piece
