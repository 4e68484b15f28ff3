r"""Which words of a text are searched for: lower case, without the most frequent English ones, cut to their stems.

The steps are those of Lucene's analyser for English: its 33 stop words, and Snowball's English stemmer (Porter, "An
algorithm for suffix stripping", 1980, in its second version). Words of one character count, because "Apollo 8" and
"Malcolm X" differ from other titles by nothing else. Text is brought to Unicode's NFKC form first, in which an "é" is
one letter however it was typed.
"""

from __future__ import annotations

import re
import threading
import unicodedata

from agent_gym.errors import require
from agent_gym.shared import Shared

_WORD = re.compile(r"\w+")


class Analyzer(Shared):
    """Cuts texts into search terms. Safe to call from several threads."""

    live = ("_stemmer", "_lock")

    def __init__(self) -> None:
        self._stop_words = frozenset(require("bm25s.stopwords", "retrieval").STOPWORDS_EN)
        super().__init__()

    def renew(self) -> None:
        """Make a stemmer, which is not safe to share between threads, and the lock in front of it."""
        self._stemmer = require("Stemmer", "retrieval").Stemmer("english")
        self._lock = threading.Lock()

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in their order; none for a text without words."""
        words = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
        with self._lock:
            return self._stemmer.stemWords([word for word in words if word not in self._stop_words])
