"""HotpotQA as an environment: a question that no single search answers, a search engine, a short answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from agent_gym.env import Reply
from agent_gym.envs.hotpotqa.data import (
    EMBEDDED,
    OWN,
    RULES,
    check_row,
    official,
    paragraphs,
    questions,
    read_question,
)
from agent_gym.envs.hotpotqa.embedded.world import get_world
from agent_gym.envs.hotpotqa.protocols import PROTOCOLS, Browser, RagenParser, first_characters
from agent_gym.envs.hotpotqa.scoring import REWARDS, TERMS, UNANSWERED, AnswerScorer, render
from agent_gym.errors import AgentGymError, ConfigError, EnvFailure, described, quoted, whole_number
from agent_gym.formats.react import ReActParser
from agent_gym.protocols import prompt_file, takes_protocol
from agent_gym.rewards import answer_format, preset_weights, tagged_answer
from agent_gym.row_opening import RowOpening
from agent_gym.row_reader import Rules, rules_of
from agent_gym.search import BM25Retriever, Hit, Retriever
from agent_gym.search.base import TokenLimit
from agent_gym.search.engines import ENGINES, open_retriever
from agent_gym.search.sources import documents_of, open_documents
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Parser, TextTool, ToolCall, ToolResult, same_text

NOTHING = "No results."
_ABOUT = "Search an encyclopedia for paragraphs.", "what to search for"
_CANDIDATES = 10  # a paragraph that a search for its own title does not put among the first ten has another title

SEARCH = (
    "Answer the question by searching. One search is rarely enough: search for what the question names, then for what "
    "you find. When you know the answer, write it as briefly as possible in <answer></answer>."
)
RETRIEVED = "The passages before the question are what a search for it found."
READ = (
    "Answer the question with the help of the passages before it, which a search for the question found. Think about "
    "it, then write the answer as briefly as possible in <answer></answer>."
)
DIRECT = "Answer the question. Think about it, then write the answer as briefly as possible in <answer></answer>."

# With one example, since instructions alone leave open how a thought should help. Its places do not exist, so that it
# answers no question.
REACT = prompt_file(__file__, "react-chat.txt")


class HotpotQAEnv(RowOpening, ToolEnv):
    """Multi-hop questions, answered by searching.

    ## Description
    The answer to a question is in a paragraph that the question does not name: another has to be found first. The
    policy searches as often as its turns allow, several times per turn if it likes. A turn without a call answers.

    ## Observation
    `reset` returns the question, after the passages that a search for it finds with `retrieve_question`. A call is
    answered by up to `top_k` paragraphs as lines `[1] Title: text`, by "No results.", or by a line that starts with
    "Error:", in ReAct after "Observation: ". The answer returns nothing. Gold answers and supporting facts are never
    shown, except as hits of a search.

    ## Action
    Free text. A call as `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`, or with
    `calls="react"` as a line `Action: Search[...]` (agent_gym/formats/react.py). The calls of a turn are one batched
    search. The answer as `<answer>...</answer>`, in ReAct as `Action: Finish[...]`.

    ## Reward
    Outcome, paid with the answer. HotpotQA's official normalisation: case, punctuation and articles do not matter.
    - `em` (weight 1): 1 if the last tagged answer of the turn is the gold answer.
    - `f1` (0): the F1 of its words. `sub_em` (0): 1 if the gold answer is a substring of it.
    - `format` (0): 1 if the turn states exactly one tagged answer and nothing after it.
    - `response_em`, `floor`, `turn_format`, `graded_answer`, `passing_f1` (0): parts of published rewards, see
      scoring.py. The three in the middle are also paid when the turns run out. In ReAct a thought counts as
      `<think>`, an action as `<tool_call>`, and `Finish[...]` as `<answer>`.

    Process terms, paid with the turn:
    - `new_gold`, `fact_recall` (0): share of the gold paragraphs, and of the supporting facts (sentences), that this
      turn was the first to show.
    - `repeat` (0): minus the share of this turn's calls that had been made before.
    - `invalid` (0): -1 for a turn that a protocol refuses, since it neither searches nor answers.

    `reward="agent_r1"`, `"search_r1"`, `"steppo"` or `"ragen"` sets the weights of a published formula instead of
    `"em"`; `reward_weights` then replaces single ones.

    ## Episode end
    `terminated` when the policy answers, `truncated` after `max_turns` turns. `is_success` is `em` alone.
    `info["metrics"]` has `gold_recall` and `searches` so far, and with the answer `em`, `f1`, `sub_em`. The passages of
    `retrieve_question` count for `gold_recall` and not as a search.

    ## Arguments
    - `data`: "embedded" (default), an official JSON file, a folder with such files, or "hotpotqa/hotpot_qa".
    - `columns`: names of other columns, as {"question": "query", "answer": "gold"}.
    - `skip_bad`: whether rows that cannot be played are left out, and counted on stderr. False (default): an error.
    - `corpus`: the searched corpus: a folder or file (agent_gym.search.corpus, BEIR's corpus.jsonl), or a hub name. By
      default each embedded question searches its own world, and other data the paragraphs of all its questions.
    - `retriever`: "bm25" (default), the folder of an index of `corpus`, the address of a server that speaks Search-R1's
      protocol, or any object with `search(queries, k)`; the last two decide on the corpus.
    - `tools`: ("search",), ("search", "lookup"), or () for none; `lookup(title)` reads the paragraph with this title.
    - `protocol`: "search-r1", "agent-r1", "react" or "ragen" plays as these do (docs/protocols.md): prompt, format, the
      shown part of a search, and, unless they are given, turns, `top_k`, limits and reward. None by default.
    - `calls`: how calls are written, "hermes" (default) or "react". `parser` takes any other format, such as
      `TagParser({"search": "query"})`.
    - `retrieve_question`: whether the hits of a search for it come before it. `top_k`: paragraphs per search.
    - `max_passage_tokens`, `max_observation_tokens`: limits of a paragraph, and of all that a turn is answered, in
      tokens of `tokenizer`, or of four bytes each without one, as in rollouts.
    - `difficulty`: 1 to 5, of embedded questions: 1 and 2 for a name over two paragraphs, among ten or all 405; 3 for a
      year or the earlier born; 4 and 5 for a name or a year over three and four paragraphs.
    - `levels`: only questions of these levels ("easy", "medium", "hard").
    - everything `ToolEnv` and `TextEnv` take.

    ## Data
    "embedded" is a seeded generator of invented worlds (embedded/): 20,000 train questions over 80 worlds, 1,000
    validation and 1,000 test questions over 8 others each, for relations that no training question asks for;
    `unseen_entities` and `unseen_entities_dev` ask the questions of training about the worlds of test and validation.
    HotpotQA has 90,447 train and 7,405 dev questions (CC BY-SA 4.0); dev serves as test.

    ## References
    Yang et al., HotpotQA, arXiv:1809.09600. The setting follows Agent-R1 (arXiv:2511.14460) and Search-R1
    (arXiv:2503.09516), the baselines Agent-R1. Yao et al., ReAct, arXiv:2210.03629.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {
        "em": 1.0,
        **dict.fromkeys(("f1", "sub_em", "format", *TERMS, "new_gold", "fact_recall", "repeat", "invalid"), 0.0),
    }
    process_terms: ClassVar[frozenset[str]] = frozenset({"new_gold", "fact_recall", "repeat", "invalid"})
    default_system_prompt: ClassVar[str] = SEARCH
    load_tasks = staticmethod(questions)
    row_rules: ClassVar[Rules] = RULES
    turns: ClassVar[int] = 6
    """Default of `max_turns`."""

    @takes_protocol(PROTOCOLS)
    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        columns: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        protocol: str | None = None,
        retriever: str | Retriever = "bm25",
        corpus: str | None = None,
        tools: Sequence[str] = ("search",),
        calls: str = "hermes",
        parser: Parser | None = None,
        retrieve_question: bool = False,
        top_k: int = 3,
        max_passage_tokens: int = 200,
        max_observation_tokens: int = 1000,
        levels: Sequence[str] | None = None,
        difficulty: int | None = None,
        reward: str = "em",
        reward_weights: Mapping[str, float] | None = None,
        system_prompt: str | None = None,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.protocol = PROTOCOLS[protocol] if protocol else None
        self.inline = bool(self.protocol and self.protocol.frame)
        weights = preset_weights(reward, REWARDS, type(self).reward_weights, reward_weights)
        _check_tools(tools, calls, parser)
        self._top_k = whole_number("top_k", top_k, 1)
        self._passage_tokens = whole_number("max_passage_tokens", max_passage_tokens, 1)
        self._observation_tokens = whole_number("max_observation_tokens", max_observation_tokens, 1)
        self.rules = rules_of(columns, own=OWN, check=check_row, skip_bad=skip_bad)
        self.row_system = system_prompt is None and not protocol
        tasks, rows = self.load_tasks(data, levels, difficulty, self.rules)
        self._browser = Browser(self._find, self._write)
        known = self._known_tools()
        chosen = [known[name] for name in dict.fromkeys(tools)]
        self._argument = known["search"].argument
        if calls == "react":
            parser = ReActParser({tool.name: tool.argument for tool in chosen})
        self._react = parser if isinstance(parser, ReActParser) else None
        self._stating = parser if isinstance(parser, ReActParser | RagenParser) else None  # answers in its own words
        self._retrieves = retrieve_question
        super().__init__(
            tasks,
            tools=chosen,
            parser=parser,
            system_prompt=self._default_prompt(bool(tools)) if system_prompt is None else system_prompt,
            reward_weights=weights,
            max_turns=self.turns if max_turns is None else max_turns,
            **kwargs,
        )
        # NQ and its like bring no paragraphs.
        self._rows = [some for some in rows if official(some[0]).get("context")]
        self._corpus = None if corpus is None else open_documents(corpus)
        self._retriever = open_retriever(retriever, self._corpus)
        self._limit = TokenLimit(self.renderer)

    def _known_tools(self) -> Mapping[str, TextTool]:
        """The tools by name: those of a paper that browses pages, or search and lookup in the corpus."""
        if self.protocol and self.protocol.browses:
            return self._browser.tools
        summary, about = (self.protocol and self.protocol.about) or _ABOUT
        what = "Read the paragraph with this title.", "title", "the exact title"
        return {
            "search": TextTool("search", summary, "query", about, do_all=self._search),
            "lookup": TextTool("lookup", *what, do_all=self._lookup),
        }

    def _default_prompt(self, with_tools: bool) -> str:
        if not with_tools:
            return READ if self._retrieves else DIRECT
        return (REACT if self._react else SEARCH) + (f"\n\n{RETRIEVED}" if self._retrieves else "")

    def gold(self, task: Any) -> list[str]:
        return [*read_question(self.rules.again(task)).answers]

    def begin(self, task: Any) -> str:
        task = self.rules.again(task)
        question = read_question(task)
        self.open_row(task)
        self._judge = AnswerScorer(question)
        self._task, self._found = task, list[str]()
        self._browser.begin()
        searches = self.tools or self._retrieves
        given = not searches or self._retriever is not None or self._corpus is not None or self._rows
        if not given and not isinstance(task.get("world"), int) and not official(task).get("context"):
            raise ConfigError("a task with an empty context has nothing to search: give corpus= or retriever=")
        text = question.text
        if self.protocol:
            mark = "?" if self.protocol.marked and not text.strip().endswith("?") else ""
            text = self.protocol.prompt.replace("{question}", text.strip() + mark)
            self._turns, self._shown = list[str](), text
            if self.protocol.message:
                text = self.protocol.message(self._turns, text)
        return f"{self._passages(question.text)}\n\n{text}" if self._retrieves else text

    def respond(self, action: str) -> Reply:
        self._found.clear()  # the hits of each search of this turn, uncut
        self._action = action
        reply = super().respond(action)
        if calls := reply.tool_calls:
            texts = [self._written(call) for call in calls]
            texts = self._limit.share(texts, self._observation_tokens)
            for call, text in zip(calls, texts, strict=True):
                call.answer = text
            self._shown = "\n".join(texts)
            if self.inline:
                reply.text = self._framed(action, self._shown)
            elif self._react:
                # As the user's words: a tool's would be framed as the answer to a call of the template's own form.
                reply.messages = [{"role": "user", "content": "\n".join(texts)}]
            # Only hits of a search count: an error repeats the policy's text.
            shown = self._found if self.protocol else [call.answer for call in calls if not call.failed]
            reply.terms |= self._judge.calls(calls, self.tools, shown)
            reply.metrics |= self._judge.metrics
        if self.protocol and self.protocol.message and not reply.terminated:
            self._turns.append(action)
            reply.messages = [{"role": "user", "content": self.protocol.message(self._turns, self._shown)}]
        if not reply.terminated and self.turn + 1 == self.max_turns:
            reply.terms |= self._published(action, UNANSWERED)
        return reply

    def answer(self, text: str) -> Reply:
        text = self._action if self._stating else text  # text after an answer has its terms
        tagged = self._tagged(text)
        stated = tagged_answer(tagged)
        if stated is None and self.protocol and self.protocol.invalid:
            refusal = self.protocol.invalid.replace("{turn}", str(self.turn + 1))
            return Reply(refusal, error="no action", terms={"invalid": -1.0})
        scores = self._judge.answer(stated)
        terms = {**scores, "format": answer_format(tagged), **self._published(text, TERMS)}
        metrics = {**scores, **self._judge.metrics}
        return Reply(terms=terms, metrics=metrics, terminated=True, success=bool(scores["em"]))

    def _written(self, call: ToolCall) -> str:
        """Write the answer to a call as the policy reads it, before it is cut to its limit of tokens."""
        if self.protocol is None:
            return self._react.observe(call.answer) if self._react else call.answer
        if call.failed and self.protocol.refusal:
            return self.protocol.refusal(call)
        before, _, after = self.protocol.results.partition("{}")
        before = before.replace("{query}", str(call.arguments.get(self._argument, "")))
        return before + first_characters(call.answer, self.protocol.max_chars or len(call.answer)) + after

    def _framed(self, action: str, answer: str) -> str:
        """Put the protocol's frame around an answer of the world; the policy may have sampled its beginning."""
        assert self.protocol is not None and self.protocol.frame is not None
        text = self.protocol.frame.replace("{turn}", str(self.turn + 1)).replace("{}", answer)
        begun = next((stop for stop in self.stop if action.endswith(stop) and text.startswith(stop)), "")
        return text.removeprefix(begun)

    def expert_action(self, style: str = "default") -> str:
        # "direct" answers at once with the text at hand. A made-up answer would teach a policy to make up answers: in
        # an experiment it lost the ability to copy one from a paragraph.
        self.check_style(style)
        titles, answer = self._judge.question.titles, self._judge.question.answers[0]
        # One search per turn, or more where the turns would not suffice: the last turn is for the answer.
        turns, n = min(len(titles), self.max_turns - 1) if self.tools else 0, len(titles)
        if style == "direct":
            turns, answer = 0, answer if self._judge.metrics["gold_recall"] == 1.0 else "unknown"
        if self.turn < turns:
            due = titles[self.turn * n // turns : (self.turn + 1) * n // turns]
            thought = f"I have to read about {' and '.join(due)}."
            stated = "\n".join(self.parser.render("search", {self._argument: title}) for title in due)
        else:
            thought = "I can answer now."
            stated = self._stating.render_answer(answer) if self._stating else f"<answer>{answer}</answer>"
        if self.protocol:
            turn = self.protocol.turn.replace("{turn}", str(self.turn + 1)).replace("{}", stated)
            # A turn that the world answers inside ends with its stop string.
            stopped = self.turn < turns and self.inline and not turn.endswith(self.stop)
            return turn + self.stop[0] if stopped else turn
        return f"Thought: {thought}\n{stated}" if self._react else stated

    def _tagged(self, text: str) -> str:
        return self._stating.tagged(text) if self._stating else text

    def _published(self, text: str, names: Iterable[str]) -> dict[str, float]:
        # Templates of thinking models begin each turn with <think>, and Agent-R1 looks for it.
        begun = self.renderer.prefill if self.renderer else ""
        before = [segment.text for segment in self.transcript.segments if segment.source == "agent"]
        turns = [begun + self._tagged(turn) for turn in [*before, text]]
        return {name: TERMS[name](turns, self._judge.question.answers) for name in names if self.weights[name]}

    def _passages(self, question: str) -> str:
        try:
            found = self._write(self._find([question], self._top_k)[0]) or NOTHING
        except AgentGymError:
            raise
        except Exception as error:
            raise EnvFailure(f"the search for the question broke: {described(error)}") from error
        passages = self._limit.cut(found, self._observation_tokens)
        self._judge.show([passages])
        return passages

    def _search(self, queries: Sequence[str]) -> list[ToolResult]:
        return [ToolResult(self._write(found) or NOTHING) for found in self._find(queries, self._top_k)]

    def _lookup(self, titles: Sequence[str]) -> list[ToolResult]:
        results = []
        for title, found in zip(titles, self._find(titles, _CANDIDATES), strict=True):
            exact = [hit for hit in found if same_text(hit.document.title) == same_text(title)]
            problem = f"Error: no paragraph has the title {quoted(title)}"
            results.append(ToolResult(self._write(exact[:1]) if exact else problem, error=not exact))
        return results

    def _find(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return self._engine().search(queries, k)

    def _engine(self) -> Retriever:
        """Return the engine that searches for this task; nothing is read or indexed before the first search."""
        task, corpus, rows = self._task, self._corpus, self._rows
        if self._retriever is not None:
            return self._retriever
        if corpus is not None:
            return ENGINES.get(id(corpus), lambda: BM25Retriever(documents_of(corpus)), corpus)
        if isinstance(world := task.get("world"), int):
            return ENGINES.get(("world", world), lambda: BM25Retriever(get_world(world).documents))
        if rows:
            return ENGINES.get(tuple(map(id, rows)), lambda: BM25Retriever(paragraphs(chain(*rows))), rows)
        # A task that was handed in brings its own paragraphs.
        return ENGINES.get(("task", id(task)), lambda: BM25Retriever(paragraphs([task])), task)

    def _write(self, hits: Sequence[Hit]) -> str:
        self._found.append(render([hit.document for hit in hits], self._limit, self._passage_tokens))
        return self._found[-1] if self.protocol is None else self.protocol.passages(hits)


def _check_tools(tools: Sequence[str], calls: str, parser: Parser | None) -> None:
    if isinstance(tools, str) or not set(tools) <= {"search", "lookup"} or (tools and "search" not in tools):
        raise ConfigError(f"tools is {tools!r}; allowed: ('search',), ('search', 'lookup') or ()")
    if calls not in ("hermes", "react") or (calls == "react" and not tools):
        raise ConfigError(f"calls is {calls!r} with the tools {tuple(tools)}; allowed: 'hermes', or 'react' with some")
    if calls == "react" and parser is not None:
        raise ConfigError("calls='react' brings its own parser: leave parser= out, or calls= at 'hermes'")
