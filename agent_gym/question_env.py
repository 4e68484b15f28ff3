"""`QuestionEnv`: questions with known answers, and tools to find them. An environment in ten lines.

    def capital(country: str) -> str:
        '''Tell the capital of a country.'''
        return {"France": "Paris"}.get(country, "unknown")

    questions = [{"question": "How many letters has the capital of France?", "answer": "5"}]
    gymnasium.register(
        "Mine/Capitals-v0", entry_point=QuestionEnv, kwargs={"questions": questions, "tools": [capital]}
    )

Whatever needs more (an expert, process rewards, a state) is a `ToolEnv` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.checks import plain_number
from agent_gym.env import Reply
from agent_gym.errors import ConfigError
from agent_gym.rewards import answer_format, exact_match, f1_score, final_answer, number_match
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Tool, ToolResult, tool

Question = Mapping[str, Any]
Score = Callable[[str, Question], float]
"""From a stated answer and the question's row to 0..1."""


class QuestionEnv(ToolEnv):
    """Ask a question, let the policy call tools, score its answer.

    ## Description
    The first message is the row's `question`. Turns that call tools are answered by the tools; the first turn without
    a call is the answer.

    ## Action
    A call in the parser's format, or an answer as `<answer>...</answer>`.

    ## Reward
    `answer` (weight 1): what `score` says of the stated answer. `format` (weight 0): the turn states exactly one
    answer, at its end.

    ## Episode end
    `terminated` with the answer, `truncated` after `max_turns` turns. With the answer `info["metrics"]` has its `em`
    and `f1`, as HotpotQA computes them, whatever `score` says.

    Args:
        questions: rows with `question` and `answer`, or such rows by split. Rows may have more columns, for `score`.
        tools: typed functions with a docstring, or `Tool`s.
        score: from a stated answer and its row to 0..1, where 1 is success. By default 1 for the same number or, words
            being compared as HotpotQA does, the same words.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: if a row lacks `question` or `answer`, or there are no rows.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"answer": 1.0, "format": 0.0}
    default_system_prompt: ClassVar[str] = (
        "Answer the question. Use the tools where they help. Write the final answer as <answer>...</answer>."
    )

    def __init__(
        self,
        questions: Sequence[Question] | Mapping[str, Sequence[Question]],
        tools: Sequence[Tool | Callable[..., str | ToolResult]] = (),
        *,
        score: Score | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the rows."""
        splits = questions if isinstance(questions, Mapping) else {"train": questions}
        for split, rows in splits.items():
            if not rows:
                raise ConfigError(f"split {split!r} has no questions; give at least one row")
            for number, row in enumerate(rows):
                missing = [name for name in ("question", "answer") if name not in row]
                if missing:
                    raise ConfigError(
                        f"row {number} of split {split!r} has no {' and no '.join(missing)}: {row!r:.200}"
                    )
        super().__init__(splits, tools=[one if isinstance(one, Tool) else tool(one) for one in tools], **kwargs)
        self._score = score or same_answer

    def begin(self, task: Question) -> str:
        """Ask."""
        self._row = task
        return str(task["question"])

    def answer(self, text: str) -> Reply:
        """Score a turn without a call."""
        stated = final_answer(text)
        given = 0.0 if stated is None else self._score(stated, self._row)
        score = plain_number(given, "what the function score returned", self.place)
        gold = str(self._row["answer"])
        metrics = {"em": exact_match(stated, gold), "f1": f1_score(stated, gold)[0]}
        terms = {"answer": score, "format": answer_format(text)}
        return Reply(terms=terms, metrics=metrics, terminated=True, success=score >= 1.0)


def same_answer(stated: str, row: Question) -> float:
    """1.0 if the stated answer is the row's `answer`, as a number or in words."""
    gold = str(row["answer"])
    return max(number_match(stated, gold), exact_match(stated, gold))
