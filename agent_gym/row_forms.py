"""The forms in which data sets write a question and its answers, read as one: `question` and `answer`.

| form | question | answers |
|---|---|---|
| GSM8K, HotpotQA, nq_open | `question` | `answer`, a text or a list |
| FlashRAG (NQ, TriviaQA, PopQA, ...) | `question` | `golden_answers` |
| MATH, MATH-500, AIME | `problem`, `Problem` | `answer`, `Answer`, else the last box of `solution` |
| SVAMP, ASDiv | `Body` and `Question` | `Answer` |
| MAWPS, Alpaca, TRL | `input`; `instruction` and `input`; `prompt` | `target`; `output`; `completion` |
| verl, Search-R1, DAPO-Math-17k, Agent-R1 | `extra_info.question`, else the last message in `prompt` | as below |

The last form has the answers in `extra_info.answers`, `extra_info.answer` or `reward_model.ground_truth`. Capitals and
underscores in names do not matter. A question has the choices (row_choices.py) and the context of its row with it. What
its programs write around a question in `prompt` is left out, else the messages before the last one open the episode
(`opening_of`). Of several answers any is right (row_golds.py). Where two columns say different things, the row is
refused: `columns={"question": "..."}` decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from agent_gym.chat import MAX_OBSERVATION_CHARS
from agent_gym.rewards import boxed_answer
from agent_gym.row_choices import Choice, Survey, are_in, block, choice_columns, choices_of, right_choice
from agent_gym.row_columns import names_of
from agent_gym.row_golds import Fault, golds, is_plain, object_of, plain_name
from agent_gym.row_shown import CONTEXTS, Message, context_of, messages_of, text_of, unframed

FORMS = (
    "question (or problem, prompt, extra_info.question) and answer (or answers, golden_answers, solution, "
    "reward_model.ground_truth)"
)
_QUESTIONS = ("question", "problem", "questiontext", "questionstem", "query", "squestion", "content")
_PROMPTS = ("prompt", "messages", "conversations")
_WEAK_QUESTIONS = ("instruction", "input", "inputs", "ctx", "goal", "sentence", "claim", "statement")
_ANSWERS = ("answer", "answers", "goldenanswers", "goldanswers", "goldanswer", "finalanswer", "correctanswer",
            "correctanswers", "bestanswer", "groundtruth", "groundtruths", "expectedanswer", "referenceanswer",
            "possibleanswers", "shortanswer", "shortanswers", "answerspans", "answersspans", "lsolutions",
            "finaldecision", "ans", "answernumber", "answersobjects", "annotations")  # fmt: skip
_INDEXES = ("answerkey", "answeridx", "answerindex", "correctoption", "correctidx", "goldindex", "cop", "correct",
            "gold", "label")  # fmt: skip
_TARGETS = ("target", "targets", "output", "completion", "response")
_SOLUTIONS = ("solution", "solutions")
# They say where a row is from or what kind it is, which environments tell otherwise.
_FACTS = re.compile(
    r"(.*_?id|idx|index|uuid|key|type|level|kind|category|subject|topic|split|difficulty|source|data_source|dataset|url|"
    r"ability|agent_name|program|call|world|language)",
    re.IGNORECASE,
)
_SAID = re.compile(r"\b(?:final )?answer is:?\s*(\S.*?)\.?\s*$", re.IGNORECASE)  # as in MetaMathQA
_LONGEST = 200  # characters of a completion that is an answer and no solution
_CURE = 'name the column that is meant: columns={"question": ..., "answer": ...}'


class NeedsSurvey(Exception):
    """The first row with choices was met, and what its answer is follows from all rows."""


class Plan(NamedTuple):
    """Which of some columns are candidates for what, the first one first."""

    questions: tuple[str, ...]
    body: str | None  # what stands before a question, as in SVAMP
    prompt: str | None
    weak: tuple[str, ...]  # questions only where there are no others
    answers: tuple[str, ...]
    indexes: tuple[str, ...]
    targets: tuple[str, ...]
    solutions: tuple[str, ...]
    choices: tuple[str, ...]
    contexts: tuple[str, ...]


@lru_cache(maxsize=256)
def plan_of(columns: tuple[str, ...]) -> Plan:
    """Return what the names of columns leave open."""
    plain: dict[str, list[str]] = {}
    for column in columns:
        plain.setdefault(plain_name(column), []).append(column)

    def named(words: Sequence[str]) -> tuple[str, ...]:
        # The name itself before its other spellings: of a row that was read, `question` is what is asked.
        return tuple(one for word in words for one in sorted(plain.get(word, ()), key=lambda column: column != word))

    choices = choice_columns(columns)
    questions = tuple(one for one in named(_QUESTIONS) if one not in choices)
    body = next(iter(named(("body",))), None) if questions else None
    answers = tuple(one for one in named(_ANSWERS) if one not in choices)
    prompt = next(iter(named(_PROMPTS)), None)
    kinds = questions, body, prompt, named(_WEAK_QUESTIONS), answers, named(_INDEXES), named(_TARGETS)
    return Plan(*kinds, named(_SOLUTIONS), choices, named(CONTEXTS))


@dataclass(frozen=True)
class Reading:
    """A row as it is played."""

    question: str  # with context and choices
    golds: tuple[str, ...]  # none where the row has none, or hides it
    plain: bool  # whether the row's own `answer` says the same
    used: frozenset[str]  # the columns that were read
    added: tuple[str, ...] = ()  # columns that became part of the question
    before: tuple[Message, ...] = ()  # the conversation up to the question


def read(
    row: Mapping[str, Any],
    survey: Survey | None = None,
    own: Sequence[str] = (),
    fixed: Sequence[str] = (),
    judged: bool = True,
) -> Reading | None:
    """Read a row; None if it has no question in any form.

    Args:
        row: with columns in any of the forms.
        survey: of all rows of the data set; None for the first pass over it.
        own: columns that the environment itself reads, so that they are no part of the question.
        fixed: roles that were named, so that only the column of that name counts.
        judged: whether texts are compared with the answer; if not, `answer` may hold anything.

    Raises:
        Fault: if a value is of a wrong kind, or there are two readings.
        NeedsSurvey: for a row with choices, without a survey.
    """
    plan = plan_of(tuple(map(str, row)))
    asked, used, before = _question(row, plan, fixed)
    if asked is None:
        return None
    contexts = [column for column in plan.contexts if column not in own and column not in used]
    if "context" in fixed:
        contexts = ["context"]
    choices, choice_names = _choices(row, plan, used, own, fixed)
    try:
        found, plain, answered = _answer(row, plan, fixed, choices, survey)
    except Fault:
        if judged or row.get("answer") is None:
            raise
        found, plain, answered = (), True, ["answer"]
    text, added = asked, []
    for column in contexts:
        if about := context_of(row[column]):
            text = text if about in text else f"{about}\n\n{text}"
            added.append(column)
    if choices:
        added += [name for name in choice_names if name not in used]
        text = text if are_in(choices, text) else f"{text}\n\n{block(choices)}"
    return Reading(text, found, plain, frozenset([*used, *answered, *added]), tuple(added), tuple(before))


def survey_row(survey: Survey, row: Any, own: Sequence[str] = (), fixed: Sequence[str] = ()) -> None:
    """Take account of the answers of a row with choices; one that cannot be read is found when it is read."""
    if not isinstance(row, Mapping):
        return
    plan = plan_of(tuple(map(str, row)))
    with suppress(Fault):
        choices, names = _choices(row, plan, _question(row, plan, fixed)[1], own, fixed)
        for _, value, _ in _candidates(row, plan, fixed, True) if choices else ():
            survey.look(value, choices, names)


def _choices(
    row: Mapping[str, Any], plan: Plan, used: Sequence[str], own: Sequence[str], fixed: Sequence[str]
) -> tuple[list[Choice], tuple[str, ...]]:
    """Return the choices of a row, and the columns that they are from."""
    names = ("choices",) if "choices" in fixed else () if "choices" in own else plan.choices
    if names and (found := choices_of(row, names)):
        return found, names
    inside = object_of(row.get(used[0])) if used else None
    if isinstance(inside, Mapping) and "choices" in inside:  # ARC's own files
        return choices_of(inside, ("choices",)), (used[0],)
    return [], ()


def _question(row: Mapping[str, Any], plan: Plan, fixed: Sequence[str]) -> tuple[str | None, list[str], list[Message]]:
    """Return the question as the row has it, the columns it is from, and the messages before it."""
    extra = object_of(row.get("extra_info"))
    names = ("question",) if "question" in fixed else plan.questions
    texts = {name: text for name in names if (text := _stem(row[name]))}
    messages = None
    if plan.prompt and "question" not in fixed:
        try:
            messages = messages_of(row[plan.prompt])
        except Fault:  # such as a whole dialogue, beside the question
            if not texts:
                raise
        if messages is None and isinstance(row[plan.prompt], str) and (text := text_of(row[plan.prompt], "prompt")):
            messages = [{"role": "user", "content": text}]
    last = messages[-1]["content"] if messages else ""
    if texts:
        (name, text), *others = texts.items()
        for other, said in [*others, *([(str(plan.prompt), last)] if last else [])]:
            if not _holds(said, text) and not _holds(text, said) and not _holds(text, unframed(said)):
                raise Fault(f"{name} and {other} ask different things; {_CURE}")
        same = bool(messages) and _holds(text, last)
        if plan.body and "question" not in fixed and (body := text_of(row[plan.body], plan.body)):
            return (text if _holds(text, body) else f"{body} {text}"), [name, plan.body], []
        used = [name, *(other for other, _ in others), *([str(plan.prompt)] if same else [])]
        return text, used, messages[:-1] if same and messages else []
    if isinstance(extra, Mapping) and isinstance(extra.get("question"), str) and "question" not in fixed:
        return extra["question"], ["extra_info"], []
    if messages:
        inside = unframed(last)
        return inside, [str(plan.prompt)], messages[:-1] if inside == last else []
    weak = {name: text for name in plan.weak if (text := text_of(row[name], name))}
    if len(weak) > 1 and {plain_name(name) for name in weak} != {"instruction", "input"}:
        raise Fault(f"{' and '.join(weak)} may both be the question; {_CURE}")
    return ("\n\n".join(weak.values()) or None) if "question" not in fixed else None, [*weak], []


def _stem(value: Any) -> str:
    value = object_of(value)
    if isinstance(value, Mapping):
        value = next((value[name] for name in ("stem", "text") if name in value), value)
    return text_of(value, "question")


def _holds(text: str, part: str) -> bool:
    return part in text or " ".join(part.split()) in " ".join(text.split())


def _answer(
    row: Mapping[str, Any], plan: Plan, fixed: Sequence[str], choices: Sequence[Choice], survey: Survey | None
) -> tuple[tuple[str, ...], bool, list[str]]:
    """Return what is right, whether `answer` of the row says just that, and the columns it is from."""
    if choices and survey is None:
        raise NeedsSurvey
    good: dict[str, tuple[str, ...]] = {}
    faults: list[Fault] = []
    for name, value, kind in _candidates(row, plan, fixed, bool(choices)):
        index = kind == "index"
        if good and name not in plan.answers and not (choices and index):
            break
        try:
            value = _solved(value, name, row) if kind in ("target", "solution") else value
            if index and value in (-1, "-1"):  # as the hub hides the labels of test splits
                continue
            if index and not choices and _counts(value):
                raise Fault(f"{name} names a choice, and the row shows no choices", value)
            found = right_choice(value, choices, survey, index=index) if choices and survey else golds(value)
        except Fault as fault:
            faults.append(fault)
            continue
        if found:
            good[name] = found
    if not good:
        if faults:
            raise faults[0]
        return (), False, []
    (name, found), *others = good.items()
    for other, said in others:
        if not {*map(_key, found)} & {*map(_key, said)}:
            raise Fault(f"{name} and {other} are different answers; {_CURE}", (found[0], said[0]))
    plain = name == "answer" and (is_plain(row["answer"]) and not choices or found == tuple(golds(row["answer"])))
    return found, plain and not isinstance(row["answer"], bool | Mapping), [*good]


def _candidates(
    row: Mapping[str, Any], plan: Plan, fixed: Sequence[str], chosen: bool
) -> Iterator[tuple[str, Any, str]]:
    """Yield the columns that may hold the answer: name, value, and whether it is an index, a target or a solution."""
    if "answer" in fixed:
        yield "answer", row.get("answer"), "answer"
        return
    for name in plan.answers:
        yield name, _listed(row[name], name), "answer"
    if chosen:
        yield from ((name, row[name], "index") for name in plan.indexes)
    extra, truth = object_of(row.get("extra_info")), object_of(row.get("reward_model"))
    if isinstance(extra, Mapping):
        yield from ((f"extra_info.{name}", extra.get(name), "answer") for name in ("answers", "answer"))
    if isinstance(truth, Mapping):
        yield "reward_model", truth.get("ground_truth"), "answer"
    if not chosen:
        yield from ((name, row[name], "index") for name in plan.indexes)
    yield from ((name, row[name], "target") for name in plan.targets)
    yield from ((name, row[name], "solution") for name in plan.solutions)


def _counts(value: Any) -> bool:
    """Whether a value can be the number or the letter of a choice."""
    return isinstance(value, int | bool) or (isinstance(value, str) and bool(re.fullmatch(r"\W*(\w|\d\d)\W*", value)))


def _listed(value: Any, name: str) -> Any:
    """Return the list that a text holds as JSON, in columns that hold lists."""
    if isinstance(value, str) and value.startswith("[") and plain_name(name).endswith("s"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _key(text: str) -> str:
    last = text.rpartition("####")[2].strip().strip("$").casefold().rstrip(".")
    bare = last.replace(",", "")
    try:
        return repr(float(bare))
    except ValueError:
        return "".join(last.split())


def _solved(value: Any, name: str, row: Mapping[str, Any]) -> Any:
    """Return the answer that a target, a completion or a worked solution states.

    That is the last box, what is behind `####` or "the answer is", else all of a line that is short.
    """
    numbers = next((column for column in row if plain_name(str(column)) in ("nums", "numbers")), None)
    if numbers and plain_name(name) == "target" and value is not None:
        raise Fault(f"target is to be reached with {numbers}, and is no answer to a question")
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
        value = value[0]
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):  # TRL's completion
        value = value["content"]
    if not isinstance(value, str):
        return value
    if box := boxed(value):
        return box
    if "####" in value:
        return value.rpartition("####")[2].strip()
    last = value.strip().splitlines()[-1] if value.strip() else ""
    if found := _SAID.search(last):
        return found[1]
    if "\n" in value.strip() or len(value) > _LONGEST:
        raise Fault(f"{name} is worked out and states no answer: in a box, behind ####, or as 'The answer is: '")
    return value


def boxed(solution: str) -> str | None:
    r"""Return the last box of a solution; hendrycks MATH also has `\fbox{3}` and `\boxed 3`."""
    solution = solution.replace("\\fbox", "\\boxed")
    return boxed_answer(re.sub(r"\\boxed +([^\s{}$]+)", r"\\boxed{\1}", solution))


# What environments ask of one row.


def question_of(row: Mapping[str, Any], own: Sequence[str] = ()) -> str | None:
    """Return the question of a row in one of the forms, with its context and choices; None if there is none."""
    reading = read(row, Survey(), own)
    return None if reading is None else reading.question


def answers_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what counts as right, the gold answer first; none if the row has none, or hides it."""
    plan = plan_of(tuple(map(str, row)))
    return _answer(row, plan, (), _choices(row, plan, plan.questions[:1], (), ())[0], Survey())[0]


def opening_of(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a row's conversation before the question: its system message and earlier turns."""
    plan = plan_of(tuple(map(str, row)))
    return _question(row, plan, ())[2] if plan.prompt else []


def without_rivals(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what might be read as the question or the answer in place of the columns that were named."""
    plan = plan_of(tuple(map(str, row)))
    rivals = {*plan.questions, *plan.weak, *plan.answers, *plan.indexes, *plan.targets, *plan.solutions}
    rivals |= {str(plan.body), str(plan.prompt)}
    return {name: value for name, value in row.items() if name in ("question", "answer") or name not in rivals}


def aliases_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what else counts as right, from `answer_aliases`: a text or a list, which some copies hold as a JSON text.

    Raises ValueError for a text that begins as a list and is none.
    """
    aliases = row.get("answer_aliases")
    return golds(json.loads(aliases) if isinstance(aliases, str) and aliases.startswith("[") else aliases)


def pairs(value: Any, second: str) -> list[tuple[Any, Any]]:
    """Read HotpotQA's pairs of a title and something: the official `[[title, something], ...]`, or the hub's columns.

    The columns are "title" and `second`. Some copies hold either form as a JSON text. Raises KeyError, TypeError or
    ValueError for anything else.
    """
    value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return list(zip(value["title"], value[second], strict=True))
    return [(first, rest) for first, rest in value]


def normalize_columns(
    row: Any,
    survey: Survey | None = None,
    own: Sequence[str] = (),
    fixed: Sequence[str] = (),
    judged: bool = True,
) -> tuple[dict[str, Any], Reading]:
    """Return a row with `question` and `answer`, as it is if it has them, and how it was read.

    Raises:
        Fault: if there is no question or no answer in any form, or one is of a wrong kind.
    """
    if not isinstance(row, Mapping):
        raise Fault("a row must be an object with the columns question, answer", row)
    if not fixed and _is_simple(row, tuple(own)):
        return row, _SIMPLE  # type: ignore[return-value]
    reading = read(row, survey, own, fixed, judged)
    if reading is None:
        held = row.get("question", row.get("problem", row.get("prompt")))
        if held is None and not plan_of(tuple(map(str, row))).questions:
            raise Fault(f"no column 'question'; it has: {names_of(row)}; a row has {FORMS}, or {_CURE}")
        raise Fault("the question is empty")
    if not reading.golds and not reading.plain:
        plan = plan_of(tuple(map(str, row)))
        named = [*plan.answers, *plan.indexes, *plan.targets, *plan.solutions]
        if not named and "reward_model" not in row and "extra_info" not in row:
            raise Fault(f"no column 'answer'; it has: {names_of(row)}; a row has {FORMS}, or {_CURE}")
        raise Fault(f"it names no answer: {', '.join(named) or 'reward_model'} is empty; leave such rows out")
    size = len(reading.question) + sum(len(message["content"]) for message in reading.before)
    if size > MAX_OBSERVATION_CHARS:
        raise Fault(f"the question with its context has more than {MAX_OBSERVATION_CHARS:,} characters", size)
    if reading.plain and reading.question == row.get("question"):
        return row, reading  # type: ignore[return-value]
    answer = row["answer"] if reading.plain else reading.golds[0] if len(reading.golds) == 1 else [*reading.golds]
    return {**row, "question": reading.question, "answer": answer}, reading


_SIMPLE = Reading("", (), True, frozenset(("question", "answer")))


def _is_simple(row: Mapping[str, Any], own: tuple[str, ...]) -> bool:
    """Whether a row says by itself what `read` would return, as most do: a text and an answer, and nothing to add."""
    if not _has_simple_columns(tuple(map(str, row)), own):
        return False
    asked, right = row["question"], row["answer"]
    if type(asked) is not str or len(asked) > MAX_OBSERVATION_CHARS or asked[:1].strip() in ("{", ""):
        return False
    if type(right) is str:
        return right[:1].strip() not in ("{", "?", "<", "")
    return type(right) is int and abs(right) < 10**18


@lru_cache(maxsize=256)
def _has_simple_columns(columns: tuple[str, ...], own: tuple[str, ...]) -> bool:
    plan = plan_of(columns)
    alone = (plan.questions, plan.answers, plan.body, plan.prompt) == (("question",), ("answer",), None, None)
    return alone and not plan.choices and all(column in own for column in plan.contexts)


def unshown(row: Mapping[str, Any], reading: Reading, own: Sequence[str]) -> list[str]:
    """Return the columns that a row carries and that no reader looks at, but for facts about it."""
    rest = _other_columns(tuple(map(str, row)), reading.used, tuple(own))
    return [column for column in rest if row.get(column) not in (None, "", [], {})] if rest else []


@lru_cache(maxsize=256)
def _other_columns(columns: tuple[str, ...], used: frozenset[str], own: tuple[str, ...]) -> list[str]:
    named = {*own, *used, "question", "answer", "answer_aliases", "extra_info", "reward_model"}
    return [column for column in columns if column not in named and not _FACTS.fullmatch(column)]
