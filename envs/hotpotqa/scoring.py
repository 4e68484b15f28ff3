"""What an episode is worth: its answer, and what each turn of calls showed for the first time.

A `Judge` knows the gold paragraphs and never says anything but numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agent_gym.envs.hotpotqa.data import Question
from agent_gym.envs.hotpotqa.search import shown
from agent_gym.formats import ToolCall
from agent_gym.rewards import exact_match, f1_score, sub_exact_match
from agent_gym.tools import same_text


class Judge:
    """Judges one episode.

    Args:
        question: what the episode asks, with its gold answers and paragraphs.

    Attributes:
        searches: calls so far that could be run.
    """

    def __init__(self, question: Question) -> None:
        """Start with nothing asked and nothing shown."""
        self.question = question
        self.searches = 0
        self._asked: set[tuple[str, str]] = set()
        self._shown: set[str | tuple[str, str]] = set()

    def show(self, texts: Sequence[str]) -> tuple[float, float]:
        """Note what the policy is shown.

        Args:
            texts: passages, as the policy reads them: what was cut away was not shown.

        Returns:
            The shares of the gold paragraphs and of the supporting facts that are shown for the first time.
        """
        titles, facts = self.question.titles, self.question.facts
        new_titles = {title for title in titles if any(shown(text, title) for text in texts)} - self._shown
        new_facts = {fact for fact in facts if any(shown(text, *fact) for text in texts)} - self._shown
        self._shown |= new_titles | new_facts
        return len(new_titles) / max(1, len(titles)), len(new_facts) / max(1, len(set(facts)))

    def calls(self, calls: Sequence[ToolCall], tools: Collection[str]) -> dict[str, float]:
        """Return the process terms of a turn.

        Args:
            calls: its calls, at least one, with the answers as the policy reads them.
            tools: the names that can be called.
        """
        repeated = 0
        for call in calls:
            if call.name in tools:
                asked = call.name, same_text(" ".join(map(str, call.arguments.values())))
                repeated += asked in self._asked
                self._asked.add(asked)
                self.searches += not call.failed
        # Only what a search found counts: an error repeats what the policy wrote.
        new_gold, fact_recall = self.show([call.answer for call in calls if not call.failed])
        return {"new_gold": new_gold, "fact_recall": fact_recall, "repeat": -repeated / len(calls)}

    def answer(self, given: str | None) -> dict[str, float]:
        """Score an answer, None if there is none, against the gold answer that it fits best."""
        golds = self.question.answers
        return {
            "em": max(exact_match(given, gold) for gold in golds),
            "f1": max(f1_score(given, gold)[0] for gold in golds),
            "sub_em": max(sub_exact_match(given, gold) for gold in golds),
        }

    @property
    def metrics(self) -> dict[str, float]:
        """The share of the gold paragraphs that were shown so far, and the number of searches."""
        return {"gold_recall": self.gold_recall, "searches": float(self.searches)}

    @property
    def gold_recall(self) -> float:
        """The share of the gold paragraphs that were shown so far."""
        titles = self.question.titles
        return sum(title in self._shown for title in titles) / max(1, len(titles))
