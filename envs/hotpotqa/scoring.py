"""The text of hits for the policy, and the reward of an episode: its answer, and the paragraphs that its turns showed.

Four papers' rewards are named terms, next to the clean default:

| `reward=` | formula | of |
|---|---|---|
| `"em"` | EM of the last tagged answer, 0 without one | this library |
| `"search_r1"` | the same | Search-R1 (arXiv:2503.09516), `qa_em.py` |
| `"steppo"` | EM of the last tagged answer, of the whole turn where it has none | StepPO, `reward_fn.py` |
| `"agent_r1"` | `floor` + `turn_format` + `graded_answer` | Agent-R1 (arXiv:2511.14460), `qa_em_and_format.py` |
| `"ragen"` | `passing_f1` + 0.1 * `invalid` | RAGEN-2 (arXiv:2604.06268), `search/reward.py` |

Agent-R1's lies between -1 and 1. It is kept with its oddities, because a comparison needs them: good form without any
search earns -0.5; two well-formed calls earn 0 before anything is answered, which cannot be lost again; "right" means
that the gold answer is a substring, so that "unknown" is right where "no" is; and an episode that runs out of turns is
scored like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from agent_gym.envs.hotpotqa.data import HotpotQuestion
from agent_gym.formats.ragen import PENALTY
from agent_gym.rewards import exact_match, f1_score, sub_exact_match, tagged_answer
from agent_gym.search import Document
from agent_gym.search.base import TokenLimit
from agent_gym.tools import ToolCall, same_text


def render(documents: Iterable[Document], limit: TokenLimit, max_tokens: int) -> str:
    """Write documents as numbered lines, `[1] Title: text`, each of at most `max_tokens` tokens."""
    lines = [f"[{n}] {_heading(d.title)}{' '.join(d.text.split())}" for n, d in enumerate(documents, 1)]
    return "\n".join(limit.cut(line, max_tokens) for line in lines)


def shown(text: str, title: str, sentence: str = "") -> bool:
    """Whether an observation shows a paragraph with this title, and in it this sentence."""
    begin, wanted = _heading(title), " ".join(sentence.split())
    lines = (line.partition("] ")[2] for line in text.split("\n"))
    return any(line.startswith(begin) and wanted in line for line in lines)


def _heading(title: str) -> str:
    title = " ".join(title.split())
    return f"{title}: " if title else ""


class AnswerScorer:
    """Scores one episode."""

    def __init__(self, question: HotpotQuestion) -> None:
        self.question = question
        self._searches = 0  # calls that could be run
        self._made: set[tuple[str, str]] = set()
        self._shown: set[str | tuple[str, str]] = set()

    def show(self, texts: Sequence[str]) -> tuple[float, float]:
        """Take passages as the policy reads them, and return the shares of gold paragraphs and facts that are new."""
        titles, facts = self.question.titles, self.question.facts
        new_titles = {title for title in titles if any(shown(text, title) for text in texts)} - self._shown
        new_facts = {fact for fact in facts if any(shown(text, *fact) for text in texts)} - self._shown
        self._shown |= new_titles | new_facts
        return len(new_titles) / max(1, len(titles)), len(new_facts) / max(1, len(set(facts)))

    def calls(self, calls: Sequence[ToolCall], tools: Collection[str], found: Sequence[str]) -> dict[str, float]:
        """Return the process terms of a turn of at least one call, and of the hits of its searches (`render`)."""
        repeated = 0
        for call in calls:
            if call.name in tools:
                made = call.name, same_text(" ".join(map(str, call.arguments.values())))
                repeated += made in self._made
                self._made.add(made)
                self._searches += not call.failed
        new_gold, fact_recall = self.show(found)
        return {"new_gold": new_gold, "fact_recall": fact_recall, "repeat": -repeated / len(calls)}

    def answer(self, given: str | None) -> dict[str, float]:
        golds = self.question.answers
        return {
            "em": max(exact_match(given, gold) for gold in golds),
            "f1": max(f1_score(given, gold)[0] for gold in golds),
            "sub_em": max(sub_exact_match(given, gold) for gold in golds),
        }

    @property
    def metrics(self) -> dict[str, float]:
        titles = self.question.titles
        found = sum(title in self._shown for title in titles)
        return {"gold_recall": found / max(1, len(titles)), "searches": float(self._searches)}


REWARDS: dict[str, Mapping[str, float]] = {
    "em": {"em": 1.0},
    "search_r1": {"em": 1.0},
    "steppo": {"response_em": 1.0},
    "agent_r1": {"floor": 1.0, "turn_format": 1.0, "graded_answer": 1.0},
    "ragen": {"passing_f1": 1.0, "invalid": PENALTY},
}
"""Name of a reward to the weights of its terms; all other terms weigh nothing."""

_TAG = re.compile(r"</?answer>", re.IGNORECASE)


def response_em(turns: Sequence[str], golds: Sequence[str]) -> float:
    """StepPO's outcome of an answered episode: EM of the last turn's last `<answer>`, else of all of the turn.

    Tags count in any case, and are read from the left without overlaps.
    """
    start, found = None, turns[-1]
    for tag in _TAG.finditer(turns[-1]):
        if tag[0][1] != "/":
            start = tag.end() if start is None else start
        elif start is not None:
            found, start = turns[-1][start : tag.start()], None
    return max(exact_match(found.strip(), gold) for gold in golds)


def turn_format(turns: Sequence[str], golds: Sequence[str]) -> float:
    """Agent-R1's format score: 0.5 for each well-formed turn, 1 at most.

    A turn on the way is one `<think>` and one `<tool_call>` and nothing around them, the last one a `<think>` and an
    `<answer>`.
    """
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    formed = sum(all(turn.count(tag) == 1 for tag in tags) and _is_frame(turn, "tool_call") for turn in turns[:-1])
    return min(0.5 * (formed + _is_frame(turns[-1], "answer")), 1.0)


def _is_frame(turn: str, tag: str) -> bool:
    """Whether a turn is `<think>...</think>...<tag>...</tag>`, as Agent-R1's patterns have it, but in linear time."""
    end = turn.removesuffix("\n")  # where the `$` of its patterns also matches
    thought = turn.find("</think>", len("<think>"))
    opened = turn.find(f"<{tag}>", thought)
    closed = len(end) - len(f"</{tag}>")
    inside = 0 <= thought < opened and opened + len(f"<{tag}>") <= closed
    return turn.startswith("<think>") and end.endswith(f"</{tag}>") and inside


def graded_answer(turns: Sequence[str], golds: Sequence[str]) -> float:
    """Agent-R1's answer score: 1 for a gold answer in the first `<answer>`, 0.2 for one elsewhere in the last turn.

    It only counts with a format score of at least 0.5.
    """
    if turn_format(turns, golds) < 0.5:
        return 0.0
    last = turns[-1]
    _, opened, rest = last.partition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    if opened and closed and any(sub_exact_match(answer, gold) for gold in golds):
        return 1.0
    return 0.2 * any(sub_exact_match(last, gold) for gold in golds)


def passing_f1(turns: Sequence[str], golds: Sequence[str], least: float = 0.3) -> float:
    """RAGEN-2's outcome of an answered episode: the F1 of the last turn's answer, 0 below `least`, 1 for EM."""
    given = tagged_answer(turns[-1])
    f1 = max(max(f1_score(given, gold)[0], exact_match(given, gold)) for gold in golds)
    return f1 if f1 >= least else 0.0


TERMS: dict[str, Callable[[Sequence[str], Sequence[str]], float]] = {
    "response_em": response_em,
    "floor": lambda turns, golds: -1.0,  # Agent-R1: every episode starts there
    "turn_format": turn_format,
    "graded_answer": graded_answer,
    "passing_f1": passing_f1,
}
"""Parts of published rewards by name: functions of the policy's turns and the gold answers."""
UNANSWERED = ("floor", "turn_format", "graded_answer")  # the ones that also score an episode that ran out of turns
