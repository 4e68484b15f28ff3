"""Paper search as an environment: a scholarly question, a search engine, citations to follow, a set of papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.env import Reply
from agent_gym.envs.papersearch.data import EMBEDDED, open_data, read_task
from agent_gym.envs.papersearch.scoring import PROCESS_TERMS, REWARDS, PaperScorer, plan
from agent_gym.envs.papersearch.tools import ARGUMENTS, citations, clean_id, lines
from agent_gym.errors import ConfigError, EnvFailure, whole_number
from agent_gym.rewards import answer_format, preset_weights, tagged_answer
from agent_gym.search import BM25Retriever, Retriever
from agent_gym.search.base import TokenLimit
from agent_gym.search.engines import ENGINES, open_retriever
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import TextTool, ToolResult


class PaperSearchEnv(ToolEnv):
    """Scholarly questions, answered by the set of papers that they ask for.

    ## Description
    A question is such as "Which papers apply Tobila to Dorema?". A search finds some of the papers; others do not name
    the things they use and only cite them, so that they are found along citations. Not all that cite both apply one to
    the other: the paper's text decides, and it may call things by other names. The policy searches and expands as often
    as its turns allow, several times per turn if it likes. A turn without a tool call is the answer: the list of
    papers.

    ## Observation
    `reset` returns the question. A search is answered by up to `top_k` papers, one per line: `[id] title (authors,
    year): abstract`. An expansion lists the papers that a paper cites and then the ones of the corpus that cite it,
    `top_k` at a time; expanding it again shows the next. A paper that was shown before is listed by id and title alone.
    "No results." and lines that start with "Error:" are the other answers. The final answer returns nothing. Which
    papers are relevant is never shown.

    ## Action
    Free text. Calls as `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`, and
    `{"name": "expand", "arguments": {"paper_id": "..."}}` with an id that an earlier turn has shown. The searches of
    one turn are one batch. The answer as `<answer>w7-31, w7-80</answer>`, ids between commas or line breaks.

    ## Reward
    Outcome, paid with the answer. Each id counts once; ids that do not exist or were never shown count as wrong.
    - `f1` (weight 1): harmonic mean of `recall` (0), the share of the papers asked for that the last tagged answer
      lists, and `precision` (0), the share of its papers that were asked for.
    - `ndcg` (0): graded relevance of the first papers that it lists, in their order (scoring.py).
    - `format` (0): 1 if the turn states exactly one tagged answer and nothing after it.

    Process terms, paid with the turn that was the first to show a paper:
    - `found_recall` (0): share of the papers asked for that this turn was the first to show.
    - `found_precision` (0): share of the papers that this turn was the first to show that were asked for.
    - `repeat` (0): minus the share of this turn's calls that had been made before and had no more to show.
    - `found_count`, `best_found`, `calls`, `wasted` (0): parts of published rewards. How many papers asked for are new,
      and how many if each call counts for 3 at most; minus the number of calls; minus the number of calls that repeat
      or expand a paper that was not shown.

    `reward="pasa"` or `"paperscout"` sets the weights of a published formula instead of `"f1"` (scoring.py);
    `reward_weights` then replaces single ones.

    ## Episode end
    `terminated` when the policy answers, `truncated` after `max_turns` turns. `is_success`: the answer is exactly the
    set asked for, which few real questions have; look at `f1` there. `info["metrics"]` has `gold_recall` (share of the
    papers asked for that were shown), `papers`, `searches` and `expansions` so far, and with the answer also `f1`,
    `recall`, `precision`, `ndcg`.

    ## Arguments
    - `data`: "embedded" (default), or a folder with papers.jsonl and questions (data.py).
    - `difficulty`: 1 to 5, of embedded questions. 1: each paper names the things it uses; 2: half only cite it; 3
      (default): as many papers cite both things and do not apply them as are asked for, and things have several names;
      4, 5: more of all this.
    - `skip_bad`: whether questions that cannot be played are left out, and counted. False (default): an error.
    - `retriever`: "bm25" (default), the folder of an index of the folder's papers (titles and abstracts, in their
      order), the address of a server that speaks Search-R1's protocol, or any object with `search(queries, k)`. Its ids
      must be the papers' ids. Embedded fields are searched by BM25, each by itself.
    - `top_k`: papers per call. With 5, the text of an expert's episode at difficulty 3 needs a context of up to 8,192
        tokens.
    - `max_paper_tokens`, `max_observation_tokens`: limits of a paper's line, and of all that a turn is answered, in
      tokens of `tokenizer`, or of four bytes each without one, as in rollouts.
    - everything `ToolEnv` and `TextEnv` take.

    ## Data
    "embedded" is a seeded generator of invented fields of research (embedded/): 20,000 train questions over 72 fields
    of some 270 papers, 1,000 validation and 1,000 test questions over 12 others each, in other words and none twice
    (at difficulty 4 there are fewer). AutoScholarQuery (33,551 / 1,000 /
    1,000 questions) and RealScholarQuery (50) come with PaSa; they need a dump of the papers.

    ## References
    He et al., PaSa, arXiv:2501.10120. Pan et al., PaperScout, arXiv:2601.10029; the tools are the ones of its recipe in
    StepPO, except that a search engine and the gold papers replace its selector model.

    ## Versions
    v1: papers that cite both things and do not apply them, other names, held-out wordings, `ndcg`. Following citations
    without reading solved v0, which was removed; `difficulty=2` is like it.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {
        "f1": 1.0,
        **dict.fromkeys(("recall", "precision", "ndcg", "format", *PROCESS_TERMS), 0.0),
    }
    process_terms: ClassVar[frozenset[str]] = frozenset(PROCESS_TERMS)
    default_system_prompt: ClassVar[str] = (
        "Find all papers that the question asks for. Search for what it names, and expand the papers that introduced "
        "it: some papers do not name what they use and only cite it. Read what the papers that cite both say: some "
        "apply something else, and some apply nothing. Then write the ids of the papers in <answer></answer>, with "
        "commas between them."
    )

    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        difficulty: int | None = None,
        skip_bad: bool = False,
        retriever: str | Retriever = "bm25",
        top_k: int = 5,
        max_paper_tokens: int = 100,
        max_observation_tokens: int = 1500,
        reward: str = "f1",
        reward_weights: Mapping[str, float] | None = None,
        max_turns: int = 8,
        **kwargs: Any,
    ) -> None:
        weights = preset_weights(reward, REWARDS, type(self).reward_weights, reward_weights)
        self._top_k = whole_number("top_k", top_k, 1)
        self._paper_tokens = whole_number("max_paper_tokens", max_paper_tokens, 1)
        self._observation_tokens = whole_number("max_observation_tokens", max_observation_tokens, 1)
        tasks, self._shared = open_data(data, difficulty, skip_bad)
        papers = "Search titles and abstracts of papers.", ARGUMENTS["search"], "what to search for"
        cited = "List the papers that a paper cites and those that cite it.", ARGUMENTS["expand"]
        about = "the id of a paper that was shown, without the brackets"
        tools = [TextTool("search", *papers, do_all=self._search), TextTool("expand", *cited, about, self._expand)]
        super().__init__(tasks, tools=tools, reward_weights=weights, max_turns=max_turns, **kwargs)
        self._retriever = open_retriever(retriever, self._shared.documents if self._shared else None)
        if self._retriever is not None and self._shared is None:
            raise ConfigError(
                f"retriever is {str(retriever)[:50]!r}, but embedded fields are searched by 'bm25', each alone; write "
                "them to a folder with agent_gym.envs.papersearch.embedded.write_embedded, and give data= "
                "that folder"
            )
        self._limit = TokenLimit(self.renderer)

    def gold(self, task: Any) -> list[str]:
        return [*read_task(task, self._shared)[0].papers]

    def begin(self, task: Any) -> str:
        self._judge = PaperScorer(*read_task(task, self._shared), self._top_k)
        return self._judge.query.text

    def respond(self, action: str) -> Reply:
        # The papers that this turn has listed and expanded so far, on top of the earlier ones.
        self._known, self._expanded = dict(self._judge.shown), Counter(self._judge.expanded)
        reply = super().respond(action)
        if calls := reply.tool_calls:
            texts = self._limit.share([call.answer for call in calls], self._observation_tokens)
            for call, text in zip(calls, texts, strict=True):
                call.answer = text
            reply.terms |= self._judge.calls(calls, self.tools)
            reply.metrics |= self._judge.metrics
        return reply

    def answer(self, text: str) -> Reply:
        scores = self._judge.answer(tagged_answer(text))
        terms = {**scores, "format": answer_format(text)}
        metrics = {**scores, **self._judge.metrics}
        return Reply(terms=terms, metrics=metrics, terminated=True, success=scores["f1"] == 1.0)

    def expert_action(self, style: str = "default") -> str:
        # "direct" answers "unknown" at once: made-up ids would teach a policy to make up ids.
        self.check_style(style)
        if style == "direct":
            return "<answer>unknown</answer>"
        calls = plan(self._judge, self.turn, self.max_turns, self.max_calls_per_turn)
        if not calls:
            return f"<answer>{', '.join(self._judge.query.papers)}</answer>"
        return "\n".join(self.parser.render(name, {ARGUMENTS[name]: text}) for name, text in calls)

    def _search(self, queries: Sequence[str]) -> list[ToolResult]:
        engine, library = self._retriever, self._judge.library
        if engine is None or library is not self._shared:
            engine = ENGINES.get(("papers", id(library)), lambda: BM25Retriever(library.documents), library)
        found = engine.search(queries, self._top_k)
        return [ToolResult(self._write([hit.document.id for hit in hits]) or "No results.") for hits in found]

    def _expand(self, text: str) -> ToolResult:
        paper = clean_id(text)
        if paper not in self._judge.shown:
            problem = f"Error: no paper {text[:40]!r} has been shown; search first, then expand an id from the results"
            return ToolResult(problem, error=True)
        self._expanded[paper] += 1
        return ToolResult(citations(self._judge.library, paper, self._expanded[paper] - 1, self._top_k, self._write))

    def _write(self, ids: Sequence[str]) -> str:
        papers = self._judge.library.papers
        strange = [paper for paper in ids if paper not in papers]
        if strange:
            raise EnvFailure(
                f"the retriever found {strange[0]!r}, but data= has no such paper; both must be of one corpus"
            )
        return lines((papers[paper] for paper in ids), self._known, self._limit, self._paper_tokens)
