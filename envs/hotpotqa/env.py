"""HotpotQA as an environment: a question that no single search answers, a search engine, a short answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.data import Row, Splits
from agent_gym.env import Reply
from agent_gym.envs.hotpotqa.data import EMBEDDED, distinct, load, questions, read_question
from agent_gym.envs.hotpotqa.passages import render
from agent_gym.envs.hotpotqa.published import REWARDS, TERMS, UNANSWERED
from agent_gym.envs.hotpotqa.scoring import Judge
from agent_gym.envs.hotpotqa.searched import Searched
from agent_gym.envs.hotpotqa.tools import Lookup, Search
from agent_gym.errors import ConfigError
from agent_gym.retrieval import Document, Retriever
from agent_gym.rewards import answer_format, tagged_answer
from agent_gym.token_limit import TokenLimit
from agent_gym.tool_env import ToolEnv

TOOLS = ("search", "lookup")


class HotpotQAEnv(ToolEnv):
    """Multi-hop questions, answered by searching.

    ## Description
    Each episode is one question whose answer stands in a paragraph that the question does not name: another paragraph
    has to be found first. The policy searches as often as its turns allow, several times per turn if it likes, and then
    states the answer. A turn without a tool call is the answer, whatever it says.

    ## Observation
    `reset` returns the question (after the system prompt, if there is one). Each call is answered by up to `top_k`
    paragraphs as lines `[1] Title: text`, by "No results.", or by a line that starts with "Error:". The answer returns
    nothing. Gold answers and supporting facts are never shown, except as what a search finds.

    ## Action
    Free text. A call in Hermes form: `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`. The
    calls of one turn are one batched search. The answer as `<answer>...</answer>`.

    ## Reward
    Outcome, paid with the answer. HotpotQA's official normalisation: case, punctuation and articles do not matter.
    - `em` (weight 1): 1 if the last tagged answer of the turn is the gold answer.
    - `f1` (0): the F1 of its words. `sub_em` (0): 1 if the gold answer is a substring of it, which is generous.
    - `format` (0): 1 if the turn states exactly one tagged answer and nothing after it.
    - `response_em`, `floor`, `turn_format`, `graded_answer` (0): parts of published rewards, see published.py. The
      last three are also paid when the turns run out.

    Process terms, paid with the turn, each at most once for the same paragraph or fact:
    - `new_gold` (0): share of the gold paragraphs that this turn was the first to show.
    - `fact_recall` (0): share of the supporting facts (sentences) that this turn was the first to show.
    - `repeat` (0): minus the share of this turn's calls that had been made before.

    `reward="agent_r1"`, `"search_r1"` or `"steppo"` sets the weights of a published formula instead of `"em"`;
    `reward_weights` then replaces single ones.

    ## Episode end
    `terminated` when the policy answers, `truncated` after `max_turns` turns. `is_success` is `em` alone.
    `info["metrics"]` has `gold_recall` and `searches` so far after each turn, and with the answer `em`, `f1`, `sub_em`.

    ## Arguments
    - `data`: "embedded" (default), an official JSON file, a folder with such files, or "hotpotqa/hotpot_qa".
    - `corpus`: what is searched: a folder or file (agent_gym.retrieval.corpus, BEIR's corpus.jsonl), or a hub name. By
      default each embedded question searches its own world, and other data the paragraphs of all its questions.
    - `retriever`: "bm25" (default), the folder of an index of `corpus`, the address of a server that speaks Search-R1's
      protocol, or any object with `search(queries, k)`; the last two decide what is searched.
    - `tools`: ("search",), ("search", "lookup"); `lookup(title)` reads the paragraph with exactly this title.
    - `top_k`: paragraphs per search.
    - `max_passage_tokens`, `max_observation_tokens`: limits of a paragraph, and of all that a turn is answered, in
      tokens of `tokenizer`, or of four bytes each without one.
    - `levels`: only questions of these levels ("easy", "medium", "hard").
    - `reward`: see above.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    ## Ids
    `AgentR1/HotpotQA-v0`; `AgentR1/HotpotQA-FullWiki-v0` (fullwiki.py) and `AgentR1/MultiHopQA-v0` (multihop.py).

    ## Data
    "embedded" is a seeded generator of invented worlds in HotpotQA's own JSON (generator.py): 20,000 train questions
    over 80 worlds, 1,000 validation and 1,000 test questions over 8 others each, which ask for relations that no
    training question asks for; `unseen_entities` asks the questions of training about the worlds of test. HotpotQA
    itself has 90,447 train and 7,405 dev questions (CC BY-SA 4.0); the dev split serves as test.

    ## References
    Yang et al., HotpotQA, arXiv:1809.09600. The setting follows Agent-R1 (arXiv:2511.14460) and Search-R1
    (arXiv:2503.09516).

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {
        "em": 1.0,
        **dict.fromkeys(("f1", "sub_em", "format", *TERMS, "new_gold", "fact_recall", "repeat"), 0.0),
    }
    process_terms: ClassVar[frozenset[str]] = frozenset({"new_gold", "fact_recall", "repeat"})
    default_system_prompt: ClassVar[str] = (
        "Answer the question by searching. One search is rarely enough: search for what the question names, then for "
        "what you find. When you know the answer, write it as briefly as possible in <answer></answer>."
    )

    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        retriever: str | Retriever = "bm25",
        corpus: str | None = None,
        tools: Sequence[str] = ("search",),
        top_k: int = 3,
        max_passage_tokens: int = 200,
        max_observation_tokens: int = 1000,
        levels: Sequence[str] | None = None,
        reward: str = "em",
        reward_weights: Mapping[str, float] | None = None,
        max_turns: int = 6,
        **kwargs: Any,
    ) -> None:
        """Check the settings; corpora are read and indexed at the first search."""
        if reward not in REWARDS:
            raise ConfigError(f"reward is {reward!r}; allowed: {', '.join(REWARDS)}, refined by reward_weights")
        if isinstance(tools, str) or "search" not in tools or not set(tools) <= set(TOOLS):
            raise ConfigError(f"tools is {tools!r}; allowed: ('search',) or ('search', 'lookup')")
        limits = {"top_k": top_k, "max_passage_tokens": max_passage_tokens}
        for name, value in (limits | {"max_observation_tokens": max_observation_tokens}).items():
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        tasks, rows = self.load_tasks(data, levels)
        known = {"search": Search(self._find, self._write, top_k), "lookup": Lookup(self._find, self._write)}
        weights = {**dict.fromkeys(type(self).reward_weights, 0.0), **REWARDS[reward], **(reward_weights or {})}
        super().__init__(
            tasks,
            tools=[known[name] for name in dict.fromkeys(tools)],
            reward_weights=weights,
            max_turns=max_turns,
            **kwargs,
        )
        self._searched = Searched(retriever, corpus, rows)
        self._limit = TokenLimit(self.renderer)
        self._passage_tokens, self._observation_tokens = max_passage_tokens, max_observation_tokens

    @staticmethod
    def load_tasks(data: Any, levels: Sequence[str] | None) -> tuple[Splits, list[Sequence[Row]]]:
        """Return the splits of a data source, and the rows whose paragraphs are searched together, if any."""
        return questions(data, levels), [] if data == EMBEDDED else distinct(load(data).values())

    # The episode.

    def begin(self, task: Any) -> str:
        """Show the question and remember what it is about."""
        self._judge = Judge(read_question(task))
        self._engine = self._searched.engine_of(task)
        return self._judge.question.text

    def respond(self, action: str) -> Reply:
        """Search or take the answer; then keep to the limit of what is shown, and judge what was."""
        reply = super().respond(action)
        if reply.messages is not None:
            texts = self._limit.share([message["content"] for message in reply.messages], self._observation_tokens)
            for message, text in zip(reply.messages, texts, strict=True):
                message["content"] = text
            reply.terms |= self._judge.calls(reply.tool_calls, texts, self.tools)
            reply.metrics |= self._judge.metrics
            if self.turn + 1 == self.max_turns:
                reply.terms |= self._published(action, UNANSWERED)
        return reply

    def answer(self, text: str) -> Reply:
        """Score the final answer. The policy is told nothing about it."""
        given = tagged_answer(text)
        scores = self._judge.answer(given)
        terms = {**scores, "format": 0.0 if given is None else answer_format(text), **self._published(text, TERMS)}
        return Reply(
            terms=terms, metrics={**scores, **self._judge.metrics}, terminated=True, success=bool(scores["em"])
        )

    def expert_action(self, style: str = "default") -> str:
        """Search for the titles of the gold paragraphs, then state the gold answer.

        Args:
            style: "default", or "direct" to say "unknown" at once. A made-up answer would teach a policy to make up
                answers; in an experiment it lost the ability to copy one from a paragraph.
        """
        if style not in ("default", "direct"):
            raise ConfigError(f"the HotpotQA expert has no style {style!r}; known: default, direct")
        if style == "direct":
            return "<answer>unknown</answer>"
        titles = self._judge.question.titles
        # One search per turn, or more where the turns would not suffice: the last turn is for the answer.
        turns, n = min(len(titles), self.max_turns - 1), len(titles)
        if self.turn >= turns:
            return f"<answer>{self._judge.question.answers[0]}</answer>"
        due = titles[self.turn * n // turns : (self.turn + 1) * n // turns]
        return "\n".join(self.parser.render("search", {"query": title}) for title in due)

    def _published(self, text: str, names: Sequence[str] | Mapping[str, Any]) -> dict[str, float]:
        """The terms of published rewards, those that weigh anything."""
        # Templates of thinking models begin each turn with <think>, and Agent-R1 looks for it.
        begun = self.renderer.prefill if self.renderer else ""
        turns = [begun + segment.text for segment in self.transcript.segments if segment.source == "agent"]
        answers = self._judge.question.answers
        return {name: TERMS[name]([*turns, begun + text], answers) for name in names if self.weights[name]}

    def _find(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        return [[hit.document for hit in hits] for hits in self._engine().search(queries, k)]

    def _write(self, documents: Sequence[Document]) -> str:
        return render(documents, self._limit, self._passage_tokens)
