"""The expert of paper search: search for what is asked about, follow the citations, answer what was found.

It knows the gold papers, but does not say what it could not have read: on generated questions it lists the citations of
both papers that introduced what the question names, until it has seen all of the answer among each, because it is in
both lists that a paper belongs to the answer.
"""

from __future__ import annotations

from agent_gym.envs.papersearch.scoring import Judge

Call = tuple[str, str]
"""The name of a tool and its argument."""


def plan(judge: Judge, turn: int, turns: int, most: int) -> list[Call]:
    """Decide on the calls of a turn.

    Args:
        judge: knows the question and what was shown.
        turn: which turn it is, 0 for the first.
        turns: how many there are.
        most: how many calls a turn may have.

    Returns:
        The calls, none if it is time to answer.
    """
    query, left = judge.query, turns - turn - 1
    missing = [paper for paper in query.papers if paper not in judge.shown]
    if left == 0:
        return []
    if turn == 0 and left > 1:
        return [("search", text) for text in query.searches][:most]
    # With one turn left before the answer there is no time to read: all pages at once.
    pages = [("expand", paper) for paper in query.expands if paper in judge.shown for _ in range(_due(judge, paper))]
    if left > 1:
        pages = list(dict.fromkeys(pages))
    if pages and (left > 1 or len(pages) <= most):
        return pages[:most]
    near = max(judge.shown, key=lambda paper: _leads_to(judge, paper, missing), default=None)
    if near is not None and left > 1 and _leads_to(judge, near, missing):
        return [("expand", near)]
    # What no citation leads to, or not in time, is searched for by its title.
    titles = [judge.library.papers[paper].title for paper in missing]
    return [("search", title) for title in titles if not judge.has_asked(title)][:most]


def _due(judge: Judge, paper: str) -> int:
    """How many more pages of a paper's citations there are until all of the answer has been listed among them."""
    around = judge.library.around(paper)
    pages = [around.index(gold) // judge.page + 1 for gold in judge.query.papers if gold in around]
    return max(0, max(pages, default=0) - judge.expanded.get(paper, 0))


def _leads_to(judge: Judge, paper: str, missing: list[str]) -> int:
    """How many of the missing papers are among those citations of a paper that were not listed yet."""
    around = judge.library.around(paper)[judge.expanded.get(paper, 0) * judge.page :]
    return len(set(missing).intersection(around))
