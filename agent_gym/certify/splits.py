"""Whether evaluation repeats its tasks, or tasks of training or of another evaluation split: by text and by content."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from typing import Any

from agent_gym.certify.record import OVERLAP, Record, SkippedCheck, Subject, judged
from agent_gym.chat import text_of
from agent_gym.images import images_of
from agent_gym.testing import policy_texts

_RARE = 0.01  # a word that fewer tasks have belongs to a task and not to its wording
_CHANCE = {False: 1000, True: 100}  # without and with a gold answer in words; see `_restated`
_SPACE = re.compile(r"\s+|[.,;:!?'\"](?=\s|$)")  # a full stop may go, the point of 3.5 and the sign of 3 - 4 may not
_Content = tuple[str, int, str, list[str]]  # split, index, gold answer, words


def splits(subject: Subject) -> Record:
    """Tasks of evaluation splits that occur twice, or in training: by the policy's view, and by content."""
    env, seen, shares = subject.env, dict[Any, tuple[str, int, str]](), dict[str, float]()
    found, content, looked, part = dict[str, list[str]](), list[_Content](), list[Any](), list[str]()
    if len(subject.splits) == 1:
        raise SkippedCheck(f"there is one split only, {subject.held_out}: nothing is held out")
    first = [(subject.held_out, index) for index in subject.some(subject.held_out, 5, 5)]
    if _alike(subject, *first) and env.tasks[first[0][0]][0] != env.tasks[first[-1][0]][first[-1][1]]:
        raise SkippedCheck("the seed and not the number of a task decides what is played: no split holds anything out")
    for split in sorted(subject.splits, key=lambda name: name != "train"):
        if any(env.tasks[split] is tasks for tasks in looked):
            continue  # another name of an evaluation split
        looked += [env.tasks[split]] if split != "train" else []
        again = found[f"repeated in {split}"] = []
        tasks = subject.some(split, 20_000 if split == "train" else 2_000, 3_000 if split == "train" else 1_000)
        before = len(content)
        for index in subject.in_time(tasks):
            ((_, info),) = subject.trace(env, (), (split, index))
            text = text_of(info["messages"][-1]["content"])
            shown = hash((plain(text), *(image.digest for image in images_of(info["messages"]))))
            content.append((split, index, _json(subject.gold(split, index)), re.findall(r"\w+", text.lower())))
            first_split, first_index, same = seen.setdefault(shown, (split, index, text))
            other = first_split, first_index
            # The places of things may differ under the same words: two tasks are one if the expert plays them alike.
            if other != (split, index) and split != "train" and _alike(subject, (split, index), other):
                but = "" if same == text else " but for case, spaces and stops"
                again.append(f"{split}/{index} shows what {other[0]}/{other[1]} shows{but}: {text}")
        shares[split] = 1 / (count := len(content) - before)
        part += [f"{count:,} of {len(tasks):,} tasks of {split}"] if count < len(tasks) else []
        if split != "train":
            found[f"restated from train in {split}"] = []
    for (split, source), pairs in _restated(subject, content).items():
        found[f"restated from {source} in {split}"] = pairs
    numbers = {name: len(one) * shares[name.rpartition(" ")[2]] for name, one in found.items()}
    problems = [one for name, some in found.items() if numbers[name] > OVERLAP for one in some]
    text = "evaluation repeats no task of its own or of training" + (f", by {', '.join(part)}" if part else "")
    return judged("splits", text, problems, numbers)


def plain(text: str) -> str:
    """Return a text without the usual disguises of a copied task: case, spaces, stops, forms of letters."""
    return _SPACE.sub("", unicodedata.normalize("NFKC", text).casefold())


def _alike(subject: Subject, *tasks: tuple[str, int], shown: bool = True) -> bool:
    """Whether tasks show the same (where `shown`), have the same gold answer and are played alike by the expert."""
    env, turns, plays = subject.env, subject.turns if subject.has_expert else lambda env: (), []
    for task in tasks:
        log = subject.trace(env, turns(env), task)
        turns_plain = [plain(text) for text in policy_texts(log)]
        view = shown and plain(text_of(log[0][1]["messages"][-1]["content"]))
        plays.append((view, plain(_json(subject.gold(*task))), turns_plain))
    return all(play == plays[0] for play in plays)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _restated(subject: Subject, tasks: list[_Content]) -> dict[tuple[str, str], list[str]]:
    """Find tasks with gold answer, numbers and rare words of one in train, or in another split.

    Small numbers agree by chance. So numbers and words must be too rare for that: by their frequencies less than one
    task in so many times the size of training would agree with a given one. A gold answer in words is evidence, too; a
    number follows from the numbers of the question. Where the environment names none, the expert has to play alike.
    """
    common = Counter(word for *_, words in tasks for word in set(words))
    golds = Counter(gold for _, _, gold, _ in tasks)
    before: dict[Any, tuple[str, int]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    training = sum(split == "train" for split, *_ in tasks) or 1
    for split, index, gold, words in tasks:
        kept = sorted(word for word in words if word.isdigit() or common[word] < _RARE * len(tasks))
        in_words = any(letter.isalpha() for letter in gold)
        rare = [common[word] for word in set(kept)] + [golds[gold]] * (in_words and bool(kept))
        if sum(math.log(len(tasks) / count) for count in rare) < math.log(_CHANCE[in_words] * training):
            continue
        other, same = before.setdefault((gold, *kept), (split, index))
        if other != split and (gold != "null" or _alike(subject, (split, index), (other, same), shown=False)):
            why = f"{split}/{index} has gold answer, numbers and names of {other}/{same}: {' '.join(kept)}"
            found.setdefault((split, other), []).append(why)
    return found
