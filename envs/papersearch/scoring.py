"""The reward of an episode: its answered papers, and the papers that each turn showed for the first time.

A `PaperScorer` knows the gold papers and returns nothing but numbers. The rewards of two papers on paper search are
named terms, next to the clean default:

| `reward=` | formula | of |
|---|---|---|
| `"f1"` | F1 of the answered papers | this library |
| `"pasa"` | 1.5 * `found_count` + 0.1 * `calls` | PaSa's Crawler (arXiv:2501.10120, equation 1 and table 12) |
| `"paperscout"` | `best_found` + 0.5 * `wasted` | PaperScout (arXiv:2601.10029), as StepPO's recipe computes it |

Neither of the two scores an answer: both pay each turn for the papers that it was the first to find. Here the gold
papers replace the model that judges them: PaSa reports that as an ablation ("w/o Selector as RM"), and the scores of
PaperScout between 0 and 1 become 0 or 1. PaperScout shows an expanded paper's surroundings all at once, so that any
second expansion is wasted; here one is only wasted after the last page.

`ndcg` is graded: a paper asked for gains `_ASKED`, one that is related to the question `_RELATED`. With the gains G of
the R first papers of an answer, R as many as were asked for, DCG = G1 + the sum of Gi / log2(i) for i from 2 to R, over
its largest possible value (Jarvelin and Kekalainen, Cumulated gain-based evaluation of IR techniques, TOIS 2002).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence

from agent_gym.envs.papersearch.data import Query
from agent_gym.envs.papersearch.tools import Library, clean_id, listed
from agent_gym.tools import ToolCall, same_text

REWARDS: dict[str, Mapping[str, float]] = {
    "f1": {"f1": 1.0},
    "pasa": {"found_count": 1.5, "calls": 0.1},
    "paperscout": {"best_found": 1.0, "wasted": 0.5},
}
"""Name of a reward to the weights of its terms; all other terms weigh nothing."""

PROCESS_TERMS = ("found_recall", "found_precision", "repeat", "found_count", "best_found", "calls", "wasted")
_ASKED, _RELATED = 3.0, 1.0  # "highly" and "marginally relevant" there
_BEST = 3  # for how many papers PaperScout pays per call, its `reward_top_k`


class PaperScorer:
    """Scores one episode: `shown` are the ids that the policy has seen, `expanded` how often each was expanded."""

    def __init__(self, query: Query, library: Library, page: int) -> None:
        self.query, self.library, self.page = query, library, page
        self.shown: dict[str, None] = {}
        self.expanded: dict[str, int] = {}
        self.searched: set[str] = set()  # as `same_text`
        self._searches = 0

    def calls(self, calls: Sequence[ToolCall], tools: Collection[str]) -> dict[str, float]:
        """Return the process terms of a turn; `calls` have the answers as the policy reads them, which may be cut."""
        gold, before = set(self.query.papers), len(self.shown)
        made = repeated = lost = found = best = 0
        for call in calls:
            if call.name not in tools:
                continue
            made += 1
            repeated += self._repeats(call)
            if call.failed:
                lost += call.name == "expand"
                continue
            # Only results of a tool count: an error repeats the policy's text.
            new = [paper for paper in listed(call.answer) if paper not in self.shown and paper in self.library.papers]
            self.shown.update(dict.fromkeys(new))
            hits = len(gold.intersection(new))
            found += hits
            best += min(hits, _BEST)
        return {
            "found_recall": found / len(gold),
            "found_precision": found / max(1, len(self.shown) - before),
            "repeat": -repeated / len(calls),
            "found_count": float(found),
            "calls": -float(made),
            "best_found": float(best),
            "wasted": -float(repeated + lost),
        }

    def _repeats(self, call: ToolCall) -> bool:
        """Count a call, and return whether it had been made before and had no more to show."""
        text = " ".join(map(str, call.arguments.values()))
        if call.name == "search":
            repeats = same_text(text) in self.searched
            self.searched.add(same_text(text))
            self._searches += not call.failed
            return repeats
        if call.failed:
            return False
        paper = clean_id(text)
        pages_before = self.expanded.get(paper, 0)
        self.expanded[paper] = pages_before + 1
        return pages_before * self.page >= max(1, len(self.library.around(paper)))

    def answer(self, given: str | None) -> dict[str, float]:
        """Score ids between commas or line breaks, as `clean_id` reads them; anything else is an id that is wrong."""
        gold = set(self.query.papers)
        answered = [one for one in dict.fromkeys(map(clean_id, re.split(r"[,\n]", given or ""))) if one]
        right = len(gold.intersection(answered, self.shown))
        precision, recall = right / max(1, len(answered)), right / len(gold)
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        return {"f1": f1, "recall": recall, "precision": precision, "ndcg": self._ndcg(answered)}

    def _ndcg(self, answered: Sequence[str]) -> float:
        asked, shares = self.query.papers, [1 / max(1.0, math.log2(i)) for i in range(1, len(self.query.papers) + 1)]
        gains = [
            (_ASKED if one in asked else _RELATED if one in self.query.related else 0.0) * (one in self.shown)
            for one in answered
        ]
        return sum(map(operator.mul, gains, shares)) / sum(_ASKED * share for share in shares)

    @property
    def metrics(self) -> dict[str, float]:
        recall = sum(paper in self.shown for paper in self.query.papers) / len(self.query.papers)
        expansions = float(sum(self.expanded.values()))
        shown, searches = float(len(self.shown)), float(self._searches)
        return {"gold_recall": recall, "papers": shown, "searches": searches, "expansions": expansions}


def plan(judge: PaperScorer, turn: int, turns: int, most: int) -> list[tuple[str, str]]:
    """Return the expert's calls of turn `turn` (0 for the first) of `turns`, `most` at most; none to answer now.

    A call is the name of a tool and its argument. The expert knows the gold papers, but does not state papers that it
    could not have read: on generated questions it lists the citations of both papers that introduced the things that
    the question names, until it has seen all of the answer in each list.
    """
    query, left = judge.query, turns - turn - 1
    missing = [paper for paper in query.papers if paper not in judge.shown]
    if left == 0:
        return []
    if turn == 0 and left > 1:
        return [("search", text) for text in query.searches][:most]
    # With one turn left before the answer no time is left to read: all pages at once.
    pages = [("expand", paper) for paper in query.expands if paper in judge.shown for _ in range(_due(judge, paper))]
    if left > 1:
        pages = list(dict.fromkeys(pages))
    if pages and (left > 1 or len(pages) <= most):
        return pages[:most]

    def leads_to(paper: str) -> int:
        around = judge.library.around(paper)[judge.expanded.get(paper, 0) * judge.page :]
        return len(set(missing).intersection(around))

    near = max(judge.shown, key=leads_to, default=None)
    if near is not None and left > 1 and leads_to(near):
        return [("expand", near)]
    # A paper to which no citation leads in time is searched for by its title.
    titles = [judge.library.papers[paper].title for paper in missing]
    return [("search", title) for title in titles if same_text(title) not in judge.searched][:most]


def _due(judge: PaperScorer, paper: str) -> int:
    """How many more pages of a paper's citations there are until all of the answer has been listed among them."""
    around = judge.library.around(paper)
    pages = [around.index(gold) // judge.page + 1 for gold in judge.query.papers if gold in around]
    return max(0, max(pages, default=0) - judge.expanded.get(paper, 0))
