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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agent_gym.chat import MAX_OBSERVATION_CHARS
from agent_gym.row_answers import CURE, Candidate, right_answers
from agent_gym.row_choices import (
    Choice,
    Survey,
    are_in,
    are_options,
    best_scored,
    block,
    choice_columns,
    choices_of,
    scored,
)
from agent_gym.row_columns import names_of
from agent_gym.row_golds import Fault, golds, object_of, plain_name
from agent_gym.row_shown import (
    CONTEXTS,
    Message,
    PromptTurns,
    completion_of,
    context_of,
    conversation_of,
    has_roles,
    text_of,
    unframed,
)
from agent_gym.row_usual import Usual, read_usual, usual_columns

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
            "finaldecision", "ans", "answernumber", "answersobjects", "annotations", "ideal")  # fmt: skip
_OTHER_ANSWERS = ("answertext", "gt", "gtanswer")  # where there are none of the above: they may be spelt otherwise
_INDEXES = ("answerkey", "answeridx", "answerindex", "answerlabel", "answerletter", "correctoption", "correctidx",
            "correctindex", "correctchoice", "correctlabel", "correctletter", "correctanswerid", "correctanswerindex",
            "correctanswerkey", "goldindex", "goldlabel", "cop", "correct", "gold", "label")  # fmt: skip
_SCORES = ("targetscores", "mc1targets")  # BIG-bench and TruthfulQA: each choice with its score
_ALIASES = "answer_aliases"
_TARGETS = ("target", "targets", "output", "completion", "response", "result")
_SOLUTIONS = ("solution", "solutions")
# They give a row's source or kind, which environments tell otherwise.
_FACTS = re.compile(
    r"(.*_?id|idx|index|uuid|key|type|level|kind|category|subject|topic|split|difficulty|source|data_source|dataset|url|"
    r"ability|agent_name|program|call|world|language)",
    re.IGNORECASE,
)


class Plan(NamedTuple):
    """The candidate columns for each meaning, the first one first."""

    questions: tuple[str, ...]
    body: str | None  # text before a question, as in SVAMP
    prompt: str | None
    weak: tuple[str, ...]  # questions only without others
    answers: tuple[str, ...]
    other_answers: tuple[str, ...]
    indexes: tuple[str, ...]
    targets: tuple[str, ...]
    solutions: tuple[str, ...]
    choices: tuple[str, ...]
    contexts: tuple[str, ...]
    scores: tuple[str, ...]  # choices and the score of each
    listed: tuple[str, ...]  # a column called answers, which holds choices where another one names one of them


@lru_cache(maxsize=256)
def plan_of(columns: tuple[str, ...]) -> Plan:
    """Return the decisions that names of columns leave open."""
    plain: dict[str, list[str]] = {}
    for column in columns:
        plain.setdefault(plain_name(column), []).append(column)

    def named(words: Sequence[str]) -> tuple[str, ...]:
        # The name itself before its other spellings: of a row that was read, `question` is the question.
        return tuple(one for word in words for one in sorted(plain.get(word, ()), key=lambda column: column != word))

    choices = choice_columns(columns)
    questions = tuple(one for one in named(_QUESTIONS) if one not in choices)
    body = next(iter(named(("body",))), None) if questions else None
    answers = tuple(one for one in named(_ANSWERS) if one not in choices)
    prompt = next(iter(named(_PROMPTS)), None)
    indexes = tuple(one for one in named(_INDEXES) if one not in choices)
    listed = named(("answers",)) if indexes and not choices else ()
    asked = questions, body, prompt, named(_WEAK_QUESTIONS)
    told = answers, named(_OTHER_ANSWERS), indexes, named(_TARGETS), named(_SOLUTIONS)
    return Plan(*asked, *told, choices, named(CONTEXTS), named(_SCORES), listed)


class Reading(NamedTuple):
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
        survey: of all rows of the data set; None means a closed one of no rows.
        own: columns that the environment itself reads, so that they are not a part of the question.
        fixed: roles that were named, so that only the column of that name counts.
        judged: whether texts are compared with the answer; if not, `answer` may hold anything.

    Raises:
        Fault: if a value is of a wrong kind, or there are two readings.
        NeedsSurvey: for an answer that follows from all rows, with an open survey, which has taken account of it.
    """
    plan = plan_of(tuple(map(str, row)))
    asked, used, before = _question(row, plan, fixed)
    if asked is None:
        return None
    contexts = [column for column in plan.contexts if column not in own and column not in used]
    if "context" in fixed:
        contexts = ["context"]
    survey = survey or Survey()
    choices, choice_names = _choices(row, plan, used, own, fixed)
    candidates: Iterable[Candidate] = _candidates(row, plan, fixed, bool(choices))
    if choices and survey.open:
        candidates = [*candidates]
        for _, value, _ in candidates:
            survey.look(value, choices, choice_names)
    try:
        found, answered = right_answers(row, candidates, choices, survey)
        if found and _ALIASES in row and _ALIASES not in own and not choices:
            found = tuple(dict.fromkeys((*found, *_checked_aliases(row))))
        plain = _is_plain(row, found, answered, bool(choices))
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


def _is_plain(row: Mapping[str, Any], found: tuple[str, ...], answered: Sequence[str], chosen: bool) -> bool:
    """Whether the column `answer` of the row states just the right answer."""
    if answered[:1] != ["answer"]:
        return False
    held = row["answer"]
    if isinstance(held, list | tuple) or (len(found) == 1 and not isinstance(held, bool | Mapping)):
        return found == ((held,) if type(held) is str and not chosen else golds(held))
    return False


def _choices(
    row: Mapping[str, Any], plan: Plan, used: Sequence[str], own: Sequence[str], fixed: Sequence[str]
) -> tuple[list[Choice], tuple[str, ...]]:
    """Return the choices of a row, and the columns that they are from."""
    names = ("choices",) if "choices" in fixed else () if "choices" in own else plan.choices
    if names and (found := choices_of(row, names)):
        return found, names
    if plan.scores and "choices" not in own and (found := scored(row[plan.scores[0]])):
        return found, plan.scores
    if plan.listed and "answer" not in fixed and are_options(row[plan.listed[0]], [row[name] for name in plan.indexes]):
        return choices_of(row, plan.listed), plan.listed
    inside = row.get(used[0]) if used else None
    inside = object_of(inside) if type(inside) is not str or inside[:1] == "{" else None
    if isinstance(inside, Mapping) and "choices" in inside:  # ARC's own files
        return choices_of(inside, ("choices",)), (used[0],)
    return [], ()


def _question(row: Mapping[str, Any], plan: Plan, fixed: Sequence[str]) -> tuple[str | None, list[str], list[Message]]:
    """Return the question as the row has it, the columns it is from, and the messages before it."""
    names = ("question",) if "question" in fixed else plan.questions
    texts = {name: text for name in names if (text := _stem(row[name]))}
    if "question" in fixed:
        return next(iter(texts.values()), None), [*texts], []
    if len(texts) == 1 and plan.prompt is None and plan.body is None:
        (name,) = texts
        return texts[name], [name], []
    extra = object_of(row.get("extra_info"))
    inside = extra.get("question") if isinstance(extra, Mapping) and not texts else None
    column, talk = _conversation(row, plan, bool(texts))
    if not texts and isinstance(inside, str) and inside.strip():
        texts = {"extra_info": inside}
    if texts:
        (name, text), *others = texts.items()
        told = [(column, talk.asked)] if talk else []
        if talk and talk.stated and not _agree(text, talk.asked):  # a dialogue about something else
            talk, told = None, []
        # The question of a row that was read has paragraphs and choices with it.
        parts = text.split("\n\n") if plan.choices or plan.contexts or plan.scores or plan.listed else []
        for other, said in [*others, *told]:
            if not _agree(text, said) and not any(part and part in said for part in parts):
                raise Fault(f"{name} and {other} ask different things; {CURE}")
        whole = talk and (_holds(text, talk.asked) or _holds(text, unframed(talk.asked)))
        used = [name, *(other for other, _ in others), *([column] if whole else [])]
        if plan.body and (body := text_of(row[plan.body], plan.body)):
            text, used = (text if _holds(text, body) else f"{body} {text}"), [*used, plan.body]
        return text, used, [*talk.before] if talk else []
    if talk:
        return unframed(talk.asked), [column], [*talk.before]
    weak = {name: text for name in plan.weak if (text := text_of(row[name], name))}
    if len(weak) > 1 and {plain_name(name) for name in weak} != {"instruction", "input"}:
        raise Fault(f"{' and '.join(weak)} may both be the question; {CURE}")
    return "\n\n".join(weak.values()) or None, [*weak], []


def _conversation(row: Mapping[str, Any], plan: Plan, asked: bool) -> tuple[str, PromptTurns | None]:
    """Return the column of the prompt and its conversation, if there is one; `asked`: whether a column asks already."""
    column = plan.prompt
    if column is None and not asked:  # OpenAI's evals keep their messages as the input
        column = next((name for name in plan.weak if has_roles(row[name])), None)
    if column is None:
        return "", None
    try:
        return column, conversation_of(row[column])
    except Fault:  # such as a dialogue with tools, besides the question
        if asked:
            return column, None
        raise


def _agree(text: str, said: str) -> bool:
    return _holds(said, text) or _holds(text, said) or _holds(text, unframed(said))


def _stem(value: Any) -> str:
    value = object_of(value)
    if isinstance(value, Mapping):
        value = next((value[name] for name in ("stem", "text") if name in value), value)
    return text_of(value, "question")


def _holds(text: str, part: str) -> bool:
    return part in text or " ".join(part.split()) in " ".join(text.split())


def _candidates(row: Mapping[str, Any], plan: Plan, fixed: Sequence[str], chosen: bool) -> Iterator[Candidate]:
    """Yield the columns that may hold the answer, the first one first; `chosen` says whether the row has choices."""
    if "answer" in fixed:
        yield Candidate("answer", row.get("answer"), "answer")
        return
    for name in plan.scores:
        yield Candidate(name, best_scored(row[name]), "answer")
    for name in plan.answers:
        if not (chosen and name in plan.listed):
            yield Candidate(name, row[name], "answer")
    yield from (Candidate(name, row[name], "nested") for name in plan.other_answers)
    if chosen:
        yield from (Candidate(name, row[name], "index") for name in plan.indexes)
    if "extra_info" in row and isinstance(extra := object_of(row["extra_info"]), Mapping):
        for name in ("answers", "answer", "ground_truth"):
            yield Candidate(f"extra_info.{name}", extra.get(name), "nested")
    if "reward_model" in row and isinstance(truth := object_of(row["reward_model"]), Mapping):
        yield Candidate("reward_model", truth.get("ground_truth"), "nested")
    if not chosen:
        yield from (Candidate(name, row[name], "index") for name in plan.indexes)
    yield from (Candidate(name, row[name], "target") for name in plan.targets)
    yield from (Candidate(name, row[name], "solution") for name in plan.solutions)
    if plan.prompt and (stated := completion_of(row[plan.prompt])):
        yield Candidate(plan.prompt, stated, "target")


# The queries of environments about one row.


def question_of(row: Mapping[str, Any], own: Sequence[str] = ()) -> str | None:
    """Return the question of a row in one of the forms, with its context and choices; None if there is none."""
    reading = read(row, Survey(), own)
    return None if reading is None else reading.question


def answers_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the right answers, the gold answer first; none if the row has none, or hides it."""
    plan = plan_of(tuple(map(str, row)))
    choices, _ = _choices(row, plan, plan.questions[:1], (), ())
    return right_answers(row, _candidates(row, plan, (), bool(choices)), choices, Survey())[0]


def opening_of(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a row's conversation before the question: its system message and earlier turns."""
    plan = plan_of(tuple(map(str, row)))
    _, talk = _conversation(row, plan, bool(plan.prompt))
    if talk is None or (talk.stated and not _agree(str(row.get("question") or talk.asked), talk.asked)):
        return []
    return [*talk.before]


def without_rivals(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out columns that might be read as the question or the answer in place of the columns that were named."""
    plan = plan_of(tuple(map(str, row)))
    rivals = {
        *plan.questions,
        *plan.weak,
        *plan.answers,
        *plan.other_answers,
        *plan.indexes,
        *plan.targets,
        *plan.solutions,
    }
    rivals |= {str(plan.body), str(plan.prompt)}
    return {name: value for name, value in row.items() if name in ("question", "answer") or name not in rivals}


def aliases_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the other right answers, from `answer_aliases`: a text or a list, which some copies hold as a JSON text.

    Raises ValueError for a text that begins as a list and is none.
    """
    aliases = row.get(_ALIASES)
    return golds(json.loads(aliases) if isinstance(aliases, str) and aliases.startswith("[") else aliases)


def _checked_aliases(row: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return aliases_of(row)
    except ValueError as error:  # also a `Fault` of its values
        raise Fault(f"{_ALIASES} is no list of texts", row[_ALIASES]) from error


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
        Fault: if the question or the answer is missing in every form, or one is of a wrong kind.
    """
    if not isinstance(row, Mapping):
        raise Fault("a row must be an object with the columns question, answer", row)
    if not fixed and _is_simple(row, tuple(own)):
        return row, _SIMPLE  # type: ignore[return-value]
    reading = _usual(row, survey, tuple(own)) if survey and not fixed else None
    reading = reading or read(row, survey, own, fixed, judged)
    if reading is None:
        held = row.get("question", row.get("problem", row.get("prompt")))
        if held is None and not plan_of(tuple(map(str, row))).questions:
            raise Fault(f"no column 'question'; it has: {names_of(row)}; a row has {FORMS}, or {CURE}")
        raise Fault("the question is empty")
    if not reading.golds and not reading.plain:
        plan = plan_of(tuple(map(str, row)))
        named = [*plan.scores, *plan.answers, *plan.other_answers, *plan.indexes, *plan.targets, *plan.solutions]
        named += [column for column in ("reward_model", "extra_info") if not named and column in row]
        if not named:
            raise Fault(f"no column 'answer'; it has: {names_of(row)}; a row has {FORMS}, or {CURE}")
        raise Fault(f"it names no answer: {', '.join(named)} is empty; leave such rows out")
    size = len(reading.question) + sum(len(message["content"]) for message in reading.before)
    if size > MAX_OBSERVATION_CHARS:
        raise Fault(f"the question with its context has more than {MAX_OBSERVATION_CHARS:,} characters", size)
    if reading.plain and reading.question == row.get("question"):
        return row, reading  # type: ignore[return-value]
    answer = row["answer"] if reading.plain else reading.golds[0] if len(reading.golds) == 1 else [*reading.golds]
    return {**row, "question": reading.question, "answer": answer}, reading


def _usual(row: Mapping[str, Any], survey: Survey, own: tuple[str, ...]) -> Reading | None:
    usual = _usual_of(tuple(map(str, row)), own)
    found = None if usual is None else read_usual(row, usual, survey)
    return None if found is None or usual is None else Reading(*found, False, usual.used, usual.choices)


@lru_cache(maxsize=256)
def _usual_of(columns: tuple[str, ...], own: tuple[str, ...]) -> Usual | None:
    return usual_columns(plan_of(columns), columns, own)


_SIMPLE = Reading("", (), True, frozenset(("question", "answer")))


def _is_simple(row: Mapping[str, Any], own: tuple[str, ...]) -> bool:
    """Whether a row is already as `read` would return it, as most do: a text and an answer, and nothing to add."""
    if not _has_simple_columns(tuple(map(str, row)), own):
        return False
    asked, right = row["question"], row["answer"]
    if type(asked) is not str or len(asked) > MAX_OBSERVATION_CHARS or asked[:1].strip() in ("{", ""):
        return False
    if type(right) is str:
        worked = "####" not in right and ("\n" in right or "\\boxed" in right)
        return right[:1].strip() not in ("{", "?", "<", "") and not worked
    return type(right) is int and abs(right) < 10**18


@lru_cache(maxsize=256)
def _has_simple_columns(columns: tuple[str, ...], own: tuple[str, ...]) -> bool:
    plan = plan_of(columns)
    alone = (plan.questions, plan.answers, plan.body, plan.prompt) == (("question",), ("answer",), None, None)
    aliases = _ALIASES in columns and _ALIASES not in own
    return alone and not plan.choices and not aliases and all(column in own for column in plan.contexts)


def unshown(row: Mapping[str, Any], reading: Reading, own: Sequence[str]) -> list[str]:
    """Return the columns that a row carries and that no reader looks at, but for facts about it."""
    rest = _other_columns(tuple(map(str, row)), reading.used, tuple(own))
    return [column for column in rest if row.get(column) not in (None, "", [], {})] if rest else []


@lru_cache(maxsize=256)
def _other_columns(columns: tuple[str, ...], used: frozenset[str], own: tuple[str, ...]) -> list[str]:
    named = {*own, *used, "question", "answer", "answer_aliases", "extra_info", "reward_model"}
    return [column for column in columns if column not in named and not _FACTS.fullmatch(column)]
