"""`ToolEnv`: parse, run, observe; and `QuestionEnv`, which makes an environment of questions and tools in ten lines.

A new task on top of `ToolEnv` is tools, tasks and a reward: the subclass defines `begin` (the question) and `answer`
(the meaning of a turn without a tool call, usually the final answer and its score). Where questions have known answers,
nothing has to be defined:

    def capital(country: str) -> str:
        '''Tell the capital of a country.'''
        return {"France": "Paris"}.get(country, "unknown")

    questions = [{"question": "How many letters has the capital of France?", "answer": "5"}]
    gymnasium.register(
        "Mine/Capitals-v0", entry_point=QuestionEnv, kwargs={"questions": questions, "tools": [capital]}
    )
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from agent_gym.call_format import for_model, said
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, EnvFailure, described, quoted, shown, whole_number
from agent_gym.formats.native import NativeParser
from agent_gym.function_tools import as_tools
from agent_gym.messages import Message
from agent_gym.reply import plain_number
from agent_gym.rewards import answer_format, exact_match, f1_score, final_answer, normalize_answer, number_match
from agent_gym.row_opening import RowOpening
from agent_gym.row_reader import read_given, rules_of
from agent_gym.tools import HermesParser, Parser, Tool, ToolCall, ToolResult

_WORD = re.compile(r"\w[\w'-]*")
_MAX_WORDS = 3
# `normalize_answer` takes away punctuation and articles, which tell 1.5 from 15, C++ from C, and A, C from C. So a text
# that is one letter, or has a digit, a sign or an article before no word, is compared unchanged.
_LITERAL = re.compile(r"[\d+#/^=<>]|(?<![\w.])(?:an?|the)\b(?!\s+\w|[.'-]\w)|^\W*\w\W*$", re.IGNORECASE)
_TYPED = str.maketrans("\u2010\u2011\u2012\u2013\u2014\u2212\u2018\u2019\u201c\u201d", "------''\"\"")
"""Dashes and quotation marks of typesetters, which models write, by the ones of a keyboard."""
_AROUND = "()\"'`*$"
"""The characters that may surround a word of such an answer: (B), "B" and **B** are B."""

Question = Mapping[str, Any]
Score = Callable[[str, Question], float]
"""From a stated answer and the question's row to 0..1."""


class ToolEnv(TextEnv):
    """An environment in which the policy calls tools and, by a turn without a call, answers.

    Args:
        tasks: see `TextEnv`.
        tools: the policy's tools: typed functions with a docstring (see `agent_gym.tool`), or `Tool`s.
        parser: the wire format of calls; by default that of the tokenizer's chat template (`ChatRenderer.call_format`),
            and Hermes/Qwen JSON without a tokenizer.
        max_calls_per_turn: calls beyond this many in one turn do not run; one error in their place says so.
        **kwargs: see `TextEnv`.

    Raises:
        ConfigError: if two tools share a name, one of them cannot be a tool, or no call is allowed.
    """

    explains_tools: bool = True
    """Whether the system prompt describes the tools where the chat template does not."""

    spoken: NativeParser | None = None
    """The parser of the model's calls where an agent mediates between the model and the environment."""

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Any]],
        *,
        tools: Sequence[Tool | Callable[..., Any]],
        parser: Parser | str | None = None,
        max_calls_per_turn: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(tasks, **kwargs)
        tools = as_tools(tools, type(self).__name__)
        self.tools = {one.name: one for one in tools}
        if len(self.tools) != len(tools):
            raise ConfigError(f"two tools share a name: {[one.name for one in tools]}")
        self.max_calls_per_turn = whole_number("max_calls_per_turn", max_calls_per_turn, 1)
        self._given_parser, self._hermes = parser, HermesParser()
        self._model_parser: NativeParser | None = None
        self.tool_schemas = [one.schema for one in tools]
        self.stop = self.parser.stop

    def answer(self, text: str) -> Reply:
        """Handle a turn that calls no tool."""
        raise ConfigError(f"{type(self).__name__} does not define answer(text): let it return an agent_gym.Reply")

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        """Return raw process-reward terms for one turn of calls; none by default."""
        return {}

    @property
    def parser(self) -> Parser:
        """The wire format of calls: the given one, or else the one of the model's chat template."""
        unseen = self.spoken or self._hermes
        model = unseen if self.renderer is None else self.renderer.call_format.parser
        if model is not self._model_parser:  # an environment may get its renderer, or another one, later
            self._model_parser = model
            self._parser = for_model(self._given_parser, model, self.tool_schemas)
        return self._parser

    @property
    def _in_template(self) -> bool:
        """Whether the chat template describes the tools, in the format that is read."""
        return self.parser.in_templates and (self.renderer is None or self.renderer.call_format.fits(self.parser))

    def opening_system_prompt(self) -> str:
        """Add a description of the tools where the chat template would not show them, or in another format."""
        if self.tools and self.renderer is not None:
            self.renderer.call_format.say()
        if self._in_template or not self.tools or not self.explains_tools:
            return self.system_prompt
        return "\n\n".join(filter(None, [self.system_prompt, self.parser.instructions(self.tool_schemas)]))

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a turn of a policy that knows the tools and nothing else.

        Each tool, and the answer, is as likely as the others; texts are words of the transcript so far.
        """
        words = words_of("\n".join(segment.text for segment in self.transcript.segments if segment.source != "system"))
        turn = int(rng.integers(len(self.tools) + 1))
        if turn == len(self.tools):
            return f"<answer>{random_words(words, rng)}</answer>"
        function = self.tool_schemas[turn]["function"]
        properties = function["parameters"].get("properties", {})
        arguments = {name: draw_argument(schema, words, rng) for name, schema in properties.items()}
        return self.parser.render(function["name"], arguments)

    def _begin_transcript(self, messages: list[Message]) -> dict[str, Any]:
        self._count_calls(0)
        return super()._begin_transcript(messages)

    def _count_calls(self, made: int) -> None:
        """Let the ids of calls that a script writes count over the episode."""
        if isinstance(self.parser, NativeParser):
            self.parser.made = made

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """None where the template would ask for another format: the policy has to read of one format only."""
        return self.tool_schemas if self._in_template else []

    def respond(self, action: str) -> Reply:
        """Run the calls of a turn, or take it as the answer if there are none."""
        calls = self.parser.parse(action) if self.tools else []
        if not calls:
            reply = self.answer(said(self.parser, action))
            if not isinstance(reply, Reply):
                name = type(self).__name__
                raise ConfigError(f"{name}.answer returned {shown(reply)}; it must return an agent_gym.Reply")
            return reply
        beyond = len(calls) - self.max_calls_per_turn
        if beyond > 0:
            # One answer for all of them: a megabyte of empty calls must not become several megabytes of answers.
            problem = f"only {self.max_calls_per_turn} tool calls are allowed per turn; {beyond} more did not run"
            calls = [*calls[: self.max_calls_per_turn], ToolCall("", error=problem)]
        self._count_calls(len(calls) + getattr(self.parser, "made", 0))
        started = perf_counter()
        results = self._run(calls)
        seconds = (perf_counter() - started) / len(calls)
        reply = Reply(tool_calls=calls, terms=self.score_calls(calls, results))
        for call, result in zip(calls, results, strict=True):
            call.answer, call.failed, call.seconds = result.text, result.error, seconds
            if result.metrics:
                reply.metrics |= result.metrics
            if result.error and reply.error is None:
                reply.error = result.text
        return reply

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls, calls of one tool together, and return their results in the order of the calls."""
        results: list[Any] = [None] * len(calls)
        batches: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            if not call.error and call.name in self.tools:
                batches.setdefault(call.name, []).append(place)
            else:
                unknown = f"unknown tool {quoted(call.name)}; available: {', '.join(self.tools)}"
                results[place] = ToolResult(f"Error: {call.error or unknown}", error=True)
        for name, places in batches.items():
            try:
                answers = self.tools[name].run_batch([calls[place].arguments for place in places])
            except (EnvFailure, ConfigError):
                raise
            except Exception as error:
                # A class of `Tool` answers bad input with a ToolResult, so an exception is the tool's own fault.
                # The exception of a plain function is an answer already (function_tools.py).
                raise EnvFailure(f"tool {name!r} broke: {described(error)}") from error
            self._check(name, answers, len(places))
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    def _check(self, name: str, answers: Any, calls: int) -> None:
        """Check the result of a tool, and make its rewards floats; the check of the reply covers its metrics."""
        if not isinstance(answers, (list, tuple)):
            raise ConfigError(f"run_batch of tool {name!r} returned {shown(answers)}; it must be a list of ToolResult")
        if len(answers) != calls:
            raise EnvFailure(f"tool {name!r} gave {len(answers)} answers to {calls} calls")
        for one in answers:
            if not isinstance(one, ToolResult):
                raise ConfigError(f"tool {name!r} returned {shown(one)}; it must return an agent_gym.ToolResult")
            if not isinstance(one.text, str):
                raise ConfigError(f"text in the ToolResult of tool {name!r} is {shown(one.text)}; it must be a text")
            if not (one.metrics is None or isinstance(one.metrics, dict)):
                wrong = shown(one.metrics)
                raise ConfigError(f"metrics in the ToolResult of tool {name!r} is {wrong}; it must be None or a dict")
            if one.reward is not None:
                one.reward = plain_number(one.reward, f"the reward of tool {name!r}", self.place)


class QuestionEnv(RowOpening, ToolEnv):
    """Ask a question, let the policy call tools, score its answer.

    ## Description
    The first message is the row's `question`, with its choices and its context where it has them. The messages of a
    chat open the episode as they are. Turns that call tools are answered by the tools; the first turn without
    a call is the answer.

    ## Action
    A call in the parser's format, or an answer as `<answer>...</answer>`.

    ## Reward
    `answer` (weight 1): the result of `score` for the stated answer. `format` (weight 0): the turn states exactly one
    answer, at its end.

    ## Episode end
    `terminated` with the answer, `truncated` after `max_turns` turns. With the answer `info["metrics"]` has its `em`
    and `f1`, as HotpotQA computes them, whatever `score` says.

    Args:
        questions: rows with `question` and `answer`, in any of the forms of row_forms.py: a list, a data set of
            `datasets`, a table of pandas, or such by split; or a file, a folder or a name on the hub, as `load_splits`
            reads them. All are read and checked here. Rows may have more columns, for `score`.
        tools: typed functions with a docstring, or `Tool`s.
        columns: names of other columns, as {"question": "Body+Question", "answer": "Answer"}.
        skip_bad: whether rows that cannot be used are left out, and counted on stderr.
        score: from a stated answer and its row to 0..1, where 1 is success. It may read an `answer` of any
            kind. By default 1 for the same number or the
            same words. Words are compared as HotpotQA does, unless digits, signs or single letters are among them.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: if rows have no question, or no answer that a text can be compared with, or the rows are empty.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"answer": 1.0, "format": 0.0}
    default_system_prompt: ClassVar[str] = (
        "Answer the question. Use the tools where they help. Write the final answer as <answer>...</answer>."
    )

    def __init__(
        self,
        questions: Sequence[Question] | Mapping[str, Sequence[Question]] | str | Path,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        *,
        score: Score | None = None,
        columns: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        **kwargs: Any,
    ) -> None:
        self.rules = rules_of(columns, skip_bad=skip_bad, judged=score is None)
        self.row_system = kwargs.get("system_prompt") is None
        splits = read_given(questions, self.rules, "questions")
        super().__init__(splits, tools=tools, **kwargs)
        self._score = same_answer if score is None else _checked_score(score)

    def begin(self, task: Question) -> str:
        self._row = row = self.rules.again(task)
        return self.open_row(row)

    def answer(self, text: str) -> Reply:
        stated = final_answer(text)
        given = 0.0 if stated is None else self._score(stated, self._row)
        score = plain_number(given, "what the function score returned", self.place)
        if not 0.0 <= score <= 1.0:
            raise ConfigError(f"score returned {quoted(given)} in {self.place}; it must be a number from 0 to 1")
        golds = gold_texts(self._row)
        em, f1 = (max(exact_match(stated, gold) for gold in golds), max(f1_score(stated, gold)[0] for gold in golds))
        metrics = {"em": em, "f1": f1}
        terms = {"answer": score, "format": answer_format(text)}
        return Reply(terms=terms, metrics=metrics, terminated=True, success=score >= 1.0)


def _checked_score(score: Any) -> Score:
    """Return the function if it takes a stated answer and a row; `ConfigError` otherwise."""
    form = "it must be a function of a stated answer and its row, which returns a number from 0 to 1"
    if not callable(score):
        raise ConfigError(f"score is {shown(score)}; {form}")
    try:
        inspect.signature(score).bind("", {})
    except TypeError as error:
        raise ConfigError(f"score cannot be called with two arguments: {error}; {form}") from None
    except ValueError:  # a builtin that does not tell its arguments
        pass
    return score


def same_answer(stated: str, row: Question) -> float:
    """1.0 if the stated answer is the row's `answer`, or one of several in a list, as a number or in words."""
    return max(_same(stated, gold) for gold in gold_texts(row))


def _same(stated: str, gold: str) -> float:
    if not stated.strip():
        return 0.0
    name, words = _words_before(gold), _words_before(stated)  # the number of Apollo 11 alone is another answer
    number = number_match(stated, gold) if name == words[len(words) - len(name) :] else 0.0
    stated, gold = stated.translate(_TYPED), gold.translate(_TYPED)
    if not normalize_answer(gold) or _LITERAL.search(gold) or _LITERAL.search(stated):
        return max(number, float(_plain_words(stated) == _plain_words(gold)))
    return exact_match(stated, gold)


def _words_before(text: str) -> list[str]:
    """Return the words in front of the first digit, and after the name before a sign of equality or a colon.

    Words that are not a part of a name are left out: "in 1947" is 1947.
    """
    before = re.split(r"\d", text.casefold(), maxsplit=1)[0]
    words = re.findall(r"[^\W\d_]+", re.split("[=:]", before)[-1])
    return [word for word in words if word not in ("the", "a", "an", "in", "on", "at", "about", "around")]


def _plain_words(text: str) -> list[str]:
    text = re.sub(r"^\s*\\\((.*)\\\)\s*$|^\W*\[(\w)\]\W*$", r"\1\2", text.casefold())  # \(B\) and [B]
    text = re.sub(r"\b(?:the|an?)\s+(?=\d|\w{2})|\\(?=[a-z])", "", text.replace("{", "(").replace("}", ")"))
    text = re.sub(r"(?<=\d),(?=\d{3}\b)|(?<=[a-z])\.", "", text).replace(",", ", ")  # 16,000 and p.m., not (2,3)
    return [word.lstrip(_AROUND).rstrip(_AROUND + ".,;:!?") or word for word in text.split()]


def gold_texts(row: Question) -> list[str]:
    """Return the texts that are right for a row with an `answer`; of a worked solution the text after its `####`."""
    gold = row["answer"]
    texts = [str(one) for one in gold] if isinstance(gold, list | tuple) and gold else [str(gold)]
    return [text.rpartition("####")[2].strip() or text for text in texts]


def words_of(text: str) -> list[str]:
    """Return the words of a text, at least one."""
    return _WORD.findall(text) or ["a"]


def random_words(words: Sequence[str], rng: np.random.Generator) -> str:
    """Return one to three adjacent words."""
    start = int(rng.integers(len(words)))
    return " ".join(words[start : start + int(rng.integers(1, _MAX_WORDS + 1))])


def draw_argument(schema: Mapping[str, Any], words: Sequence[str], rng: np.random.Generator) -> Any:
    """Draw a value that a JSON schema allows; texts are adjacent words."""
    kind = schema.get("type")
    if schema.get("enum"):
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    if kind in ("integer", "number"):
        return int(rng.integers(1, 6))
    if kind == "boolean":
        return bool(rng.integers(2))
    if kind == "array":
        return [draw_argument(schema.get("items", {}), words, rng)]
    return random_words(words, rng)
