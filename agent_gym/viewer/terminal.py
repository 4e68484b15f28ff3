"""Trajectories as text: the list of episodes, and one of them, turn by turn.

browser.py shows both, by keys. Into a pipe or a file go the same words without colours. A model's text is shown as
text: control characters, with which a text could move the cursor or rename the window, are replaced by their pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agent_gym.chat import text_of
from agent_gym.transcript import kind_of
from agent_gym.untrusted import harmless
from agent_gym.viewer.page import opening_of

_STYLES = {"system": "dim", "user": "blue", "tool": "yellow", "policy": "green", "world": "yellow", "failed": "red"}
_OUTCOMES = {"solved": ("✓", "green"), "unsolved": ("✗", "red"), "failed": ("!", "yellow")}
_NUMBERS = ("#", "reward", "turns", "tokens")
COLUMNS = ("#", "", "reward", "turns", "tokens", "task", "question")
"""Of the list of episodes."""

Record = Mapping[str, Any]


def plain(text: Any, style: str = "") -> Text:
    """Return a harmless text in which nothing is markup."""
    return Text(harmless(text), style=style)


def episode_table(records: Sequence[Record]) -> Table:
    """List episodes, one a line."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in COLUMNS:
        # The question gives way on a narrow screen; it is cut and not wrapped.
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "question")
    for number, record in enumerate(records, 1):
        table.add_row(*episode_cells(record, number))
    return table


def episode_cells(record: Record, number: int) -> list[Text]:
    """Return the line of an episode, one text for each of `COLUMNS`."""
    mark, colour = _OUTCOMES[_outcome(record)]
    *_, last = ("", *(text_of(message["content"]) for message in opening_of(record)))
    question = plain(" ".join(str(last).split()))
    question.no_wrap, question.overflow = True, "ellipsis"
    turns = sum(step.get("kind", "act") == "act" for step in record["steps"])
    spans = [span for row in record["rows"] for span in row["spans"]]
    sampled = sum(stop - start for start, stop, source, _ in spans if kind_of(source) == "agent")
    numbers = [Text(str(each), justify="right") for each in (number, _number(record["reward"]), turns, sampled)]
    task = plain(record["task_id"] or record["spec"]["env_id"])
    return [numbers[0], Text(mark, colour), *numbers[1:], task, question]


def episode_view(record: Record, number: int = 1, total: int = 1) -> Group:
    """Show one episode: the opening, then each turn with its reward, coloured by its source."""
    spec, (mark, colour) = record["spec"], _OUTCOMES[_outcome(record)]
    ending = f"cut off: {record['truncation']}" if record["truncated"] else ""
    ending = "the task ended" if record["terminated"] else ending
    facts = [spec["env_id"], spec["split"], record["task_id"], f"seed {spec['seed']}", ending]
    parts: list[RenderableType] = [
        Rule(plain(f"episode {number} of {total}"), align="left"),
        Text(f"{mark} {_outcome(record)}  reward {_number(record['reward'])}  ", colour)
        + _terms(record["reward_terms"]),
        plain("  ".join(str(fact) for fact in facts if fact), "dim"),
    ]
    for message in opening_of(record):
        parts += _speech(message["role"], text_of(message["content"]))
    turns, total_reward = 0, 0.0
    for step in record["steps"]:
        is_turn = step.get("kind", "act") == "act"
        turns += is_turn
        total_reward = round(total_reward + step["reward"], 9)  # a sum of 0 is shown as 0
        name = f"turn {turns}" if is_turn else "summary"
        earned = f"{name}  {_number(step['reward'])}, so far {_number(total_reward)}  "
        parts += [Text(), Text(earned) + _terms(step["reward_terms"])]
        parts += _speech("policy", step["action"])
        parts += [plain(f"  error: {step['error']}", "red")] if step["error"] else []
        parts += _speech("world", step["observation"]) if step["observation"] else []
    if record["failure"]:
        details = record.get("failure_details", {})
        parts += _speech("failed", "\n".join([record["failure"], *filter(None, [details.get("traceback")])]))
    return Group(*parts)


def _speech(name: str, text: Any) -> list[RenderableType]:
    style = _STYLES.get(name, "")
    return [plain(name, style), Padding(plain(str(text).rstrip(), style), (0, 0, 0, 2))]


def _terms(terms: Mapping[str, float]) -> Text:
    return plain("  ".join(f"{name} {_number(value)}" for name, value in terms.items()), "dim")


def _outcome(record: Record) -> str:
    return "failed" if record["failure"] else "solved" if record["success"] else "unsolved"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3g}" if value else "0"
