"""Reward terms: pure functions from text to a number.

An environment sums weighted terms and reports each by name, so that a better answer and a better format are two curves.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

from agent_gym.errors import one_of
from agent_gym.formats.thoughts import after_thought as after_thought  # one rule for answers and calls
from agent_gym.renamed import renamed
from agent_gym.short_numbers import number_match as number_match
from agent_gym.short_numbers import parse_number as parse_number

# In TeX a backslash takes the next character along, so that \{ is not a brace.
_BRACE = re.compile(r"\\boxed\s*+\{|\\.|[{}]", re.DOTALL)
_BEHIND_BOX = re.compile(r"[\s.,;:$)\]*\\]*+(?:</answer>\s*+)?")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_OPEN, _CLOSE = "<answer>", "</answer>"
_CLOSED_ANSWERS = ("yes", "no", "noanswer")

JUDGE_TERMS = JUDGE_TERM, JUDGE_STEPS_TERM = "judge", "judge_steps"
"""The reward terms of a model that judges: for an episode, on its last step, and for each step."""


def final_answer(text: str) -> str | None:
    """Return the final answer that a turn states, or None.

    The content of the last `<answer>...</answer>`, else the rest of the line after the last `####`, with which GSM8K
    ends its own solutions (arXiv:2110.14168).
    """
    if (tagged := tagged_answer(text)) is not None:
        return tagged
    _, mark, rest = text.rpartition("####")
    return rest.strip().split("\n")[0].strip() if mark else None


def tagged_answer(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>` of a turn, or None."""
    tagged = _tagged(text)
    return tagged[-1].strip() if tagged else None


def _tagged(text: str) -> list[str]:
    # One walk over the text: `<answer>(.*?)</answer>` takes minutes over a megabyte of opening tags, and a possessive
    # group, which would not, finds nothing in Python before 3.11.5 (its issue 106052).
    parts = [part.rpartition(_OPEN) for part in text.split(_CLOSE)[:-1]]
    return [content for _, opened, content in parts if opened]


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}` of a turn, or None; of nested boxes the innermost counts."""
    boxes = _boxes(text)
    return text[slice(*max(boxes))].strip() if boxes else None


def boxed_format(text: str) -> float:
    r"""1.0 if the turn states, after `</think>`, one `\boxed{...}` that is not empty, and then only `</answer>`."""
    text = after_thought(text)
    boxes = _boxes(text)
    if len(boxes) != 1 or text.count("\\boxed") != 1:
        return 0.0
    start, stop = boxes[0]
    return float(bool(text[start:stop].strip()) and _BEHIND_BOX.fullmatch(text, stop + 1) is not None)


def _boxes(text: str) -> list[tuple[int, int]]:
    # One walk over the text, however many boxes are left open.
    found: list[tuple[int, int]] = []
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        mark = match[0]
        if mark == "}":
            if opened and (start := opened.pop()) >= 0:
                found.append((start, match.start()))
        elif mark == "{" or mark.startswith("\\boxed"):
            opened.append(-1 if mark == "{" else match.end())
    return found


def answer_format(text: str) -> float:
    """1.0 if the turn states one `<answer>...</answer>` that is not empty, nothing after it, and none by `####`.

    A thought states nothing: it counts from `</think>` on.
    """
    text = after_thought(text)
    tagged = _tagged(text)
    return float(len(tagged) == 1 and bool(tagged[0].strip()) and "####" not in text and text.rstrip().endswith(_CLOSE))


def normalize_answer(text: str) -> str:
    """Return a short answer in lower case, then without ASCII punctuation, then without articles and double spaces.

    So do SQuAD (arXiv:1606.05250) and HotpotQA (arXiv:1809.09600): "The Beatles!" becomes "beatles".
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str | None, gold: str) -> float:
    """1.0 if the answer is the gold answer after `normalize_answer`, else 0.0: EM, the strict one."""
    return float(answer is not None and normalize_answer(answer) == normalize_answer(gold))


def sub_exact_match(answer: str | None, gold: str) -> float:
    """1.0 if the normalised gold answer is a substring of the normalised answer: Agent-R1 reports this as "EM".

    It is generous: "no" is a substring of "unknown", and a list of all candidates always wins. Of a gold answer that is
    empty after normalising only the same is right.
    """
    if answer is None:
        return 0.0
    wanted, given = normalize_answer(gold), normalize_answer(answer)
    return float(wanted in given if wanted else wanted == given)


def f1_score(answer: str | None, gold: str) -> tuple[float, float, float]:
    """Return (F1, precision, recall) over the words that answer and gold have in common.

    An answer of "yes", "no" or "noanswer" is right or wrong as a whole, as HotpotQA's own evaluation has it: it shares
    no words with a longer answer.
    """
    if answer is None:
        return 0.0, 0.0, 0.0
    given, wanted = normalize_answer(answer), normalize_answer(gold)
    if given != wanted and (given in _CLOSED_ANSWERS or wanted in _CLOSED_ANSWERS):
        return 0.0, 0.0, 0.0
    given_words, wanted_words = given.split(), wanted.split()
    shared = (Counter(given_words) & Counter(wanted_words)).total()
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / len(given_words), shared / len(wanted_words)
    return 2 * precision * recall / (precision + recall), precision, recall


def preset_weights(
    reward: str, presets: Mapping[str, Mapping[str, float]], terms: Iterable[str], weights: Mapping[str, float] | None
) -> dict[str, float]:
    """Return the weights of a preset such as a published reward: 0 for all other terms, and `weights` over that.

    `ConfigError` if the preset does not exist.
    """
    one_of("reward", reward, presets, ", refined by reward_weights")
    return {**dict.fromkeys(terms, 0.0), **presets[reward], **(weights or {})}


__getattr__ = renamed(
    __name__,
    {name: f"agent_gym.reply:{name}" for name in ("MAX_REWARD", "plain_number", "plain_numbers", "sum_by_name")},
)
