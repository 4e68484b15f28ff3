"""Are its tasks what they seem: answers that can be read off, splits that overlap; and how hard they are.

For how a model fares, `agent-gym`'s own commands run in a process of their own: what they print is what a user gets.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_gym.certify.record import LEAK, LEARNED, OVERLAP, SOLVED, Record, SkippedCheck, Subject, judged, outcome
from agent_gym.chat import text_of
from agent_gym.images import images_of
from agent_gym.testing import expert_turns, leaves, policy_texts

_BEFORE = (3, 12)  # characters before a gold answer, by which its place in a text is known; all digits are alike there
_FEW = 3  # different gold answers at one place; fewer may be there by chance, such as the 2 of an example
_MOSTLY = 0.8  # of what stands there; of two options that a question names, half
_BAD_PLAY = (
    ("I do not know.",),
    ("<tool_call>{</tool_call>", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "<answer>-1</answer>"),
)
_RARE = 0.01  # a word that fewer tasks have belongs to a task and not to its wording
_CHANCE = 1000
_DIGIT = re.compile(r"\d")
_Place = tuple[str, str]  # kind of text, and what stands before
_Said = tuple[str, str, set[str]]  # kind of text, text, secrets to look for
_Content = tuple[str, int, str, list[str]]  # split, index, gold answer, words


def leaks(subject: Subject) -> Record:
    """Gold answers that a policy, or its code, can read off: in the prompt, the tools, `info`, or what errors say.

    A gold answer may stand in a question by chance or as one of two options. It leaks where it stands behind the same
    words, or in the same field, of too many tasks, and little else does. So a short one, such as "3", is found, too.
    """
    looked, said = 0, defaultdict[str, list[str]](list)  # kind of text to all texts of it
    places = defaultdict[_Place, list[tuple[str, str]]](list)  # place to tasks and their gold answers
    for split in subject.env.tasks:
        for index in subject.some(split, 200, 50):
            answers, keys = _secrets(subject, split, index)
            looked += bool(answers or keys)
            for name, text, secrets in _shown(subject, (split, index), answers, keys) if answers or keys else ():
                said[name].append(_DIGIT.sub("0", text))
                for place, secret in _found(name, text, secrets):
                    places[place].append((f"{split}/{index}", secret))
    if not looked:
        raise SkippedCheck("no turn of an expert states a part of gold(task), so that it is a goal and no secret")
    shares = {place: len(dict(held)) / looked for place, held in places.items() if _gives_away(place, held, said)}
    problems = [
        f"the gold answer stands in {name} behind {before!r} in {share:.0%} of {looked} tasks, such as {held[0]}"
        for (name, before), share in sorted(shares.items(), key=lambda one: (-one[1], -len(one[0][1])))
        if share > LEAK and (held := places[name, before])
    ]
    numbers = {"tasks": float(looked), "most in one place": max(shares.values(), default=0.0)}
    text = f"no place of prompt, tools, info or errors gives the answers of {looked} tasks away"
    return judged("leaks", text, problems, numbers)


def _gives_away(place: _Place, held: list[tuple[str, str]], said: dict[str, list[str]]) -> bool:
    """Whether what stands there mostly is the gold answer, and not a few numbers or one of several options."""
    name, before = place
    stands = sum(text.count(before) if before else 1 for text in said[name])
    return len({secret for _, secret in held}) >= _FEW and len(held) > _MOSTLY * stands


def _secrets(subject: Subject, split: str, index: int) -> tuple[set[str], set[str]]:
    """Return the parts of the gold answer that the expert's last turn states, and those that its other turns do.

    Without an expert all of them are answers. Parts that it never writes are a goal. Where no gold answer is named, it
    is what the expert states.
    """
    parts = {str(value).strip() for where, value in leaves(subject.gold(split, index)) if not where.endswith(" key")}
    parts -= {"", "None"}
    if not subject.has_expert:
        return parts, set()
    *before, last = policy_texts(subject.play(subject.env, expert_turns(subject.env), (split, index)))
    start, end, _ = subject.stated
    parts = parts or {last[len(start) : len(last) - len(end)].strip()} - {""}
    answers = {part for part in parts if [*_places(last, part)]}
    return answers, {part for part in parts - answers for turn in before if [*_places(turn, part)]}


def _places(text: str, secret: str) -> Iterator[int]:
    for match in re.finditer(rf"(?<!\w){re.escape(secret)}(?!\w)", text):
        yield match.start()


def _found(name: str, text: str, secrets: set[str]) -> Iterator[tuple[_Place, str]]:
    for secret in secrets:
        for start in _places(text, secret):
            for length in _BEFORE:
                yield (name, _DIGIT.sub("0", text[max(0, start - length) : start])), secret


def _shown(subject: Subject, task: tuple[str, int], answers: set[str], keys: set[str]) -> Iterator[_Said]:
    """Yield texts with their kind, and the secrets to look for. Keys are none where the prompt has them."""
    for number, actions in enumerate(_BAD_PLAY):
        (_, info), *steps = subject.play(subject.env, actions, task)
        if not number:
            prompt = "\n\n".join(text_of(one["content"]) for one in info["messages"])
            yield "the prompt", prompt, answers
            yield "the tools", json.dumps(info["tools"]), answers
            answers = answers | {key for key in keys if not [*_places(prompt, key)]}
            yield from _fields("info of reset", info, answers)
        for observation, *_, info in steps:
            yield "the answer to bad play", observation, answers
            yield from _fields("info of step", info, answers)


def _fields(name: str, info: dict[str, Any], secrets: set[str]) -> Iterator[_Said]:
    kept = {key: value for key, value in info.items() if key not in ("messages", "spans", "tools")}
    for where, value in leaves(kept, name):
        if not where.endswith(" key"):
            yield where, str(value), secrets


def splits(subject: Subject) -> Record:
    """Tasks of evaluation splits that occur twice, or in training: by what the policy sees, and by content."""
    env, seen, shares = subject.env, dict[Any, tuple[str, int]](), dict[str, float]()
    found, content, looked = dict[str, list[str]](), list[_Content](), list[Any]()
    if len(env.tasks) == 1:
        raise SkippedCheck(f"there is one split only, {subject.held_out}: nothing is held out")
    first = [(subject.held_out, index) for index in subject.some(subject.held_out, 5, 5)]
    if _alike(subject, *first) and env.tasks[first[0][0]][0] != env.tasks[first[-1][0]][first[-1][1]]:
        raise SkippedCheck("the seed and not the number of a task decides what is played: no split holds anything out")
    for split in sorted(env.tasks, key=lambda name: name != "train"):
        if any(env.tasks[split] is tasks for tasks in looked):
            continue  # another name of an evaluation split
        looked += [env.tasks[split]] if split != "train" else []
        again = found[f"repeated in {split}"] = []
        tasks = subject.some(split, 20_000 if split == "train" else 2_000, 3_000 if split == "train" else 1_000)
        for index in tasks:
            ((_, info),) = subject.play(env, (), (split, index))
            text = text_of(info["messages"][-1]["content"])
            shown = hash((text, *(image.digest for image in images_of(info["messages"]))))
            content.append((split, index, _json(subject.gold(split, index)), re.findall(r"\w+", text.lower())))
            other = seen.setdefault(shown, (split, index))
            # Where things lie may differ behind the same words: two tasks are one if the expert plays them alike.
            if other != (split, index) and split != "train" and _alike(subject, (split, index), other):
                again.append(f"{split}/{index} shows what {other[0]}/{other[1]} shows: {text}")
        shares[split] = 1 / len(tasks)
    found |= {f"restated from train in {split}": pairs for split, pairs in _restated(content).items()}
    numbers = {name: len(one) * shares[name.rpartition(" ")[2]] for name, one in found.items()}
    problems = [one for name, some in found.items() if numbers[name] > OVERLAP for one in some]
    return judged("splits", "evaluation repeats no task of its own or of training", problems, numbers)


def _alike(subject: Subject, *tasks: tuple[str, int]) -> bool:
    """Whether tasks show the same, have the same gold answer and are played alike by the expert."""
    env, turns, plays = subject.env, subject.turns if subject.has_expert else lambda env: (), []
    for task in tasks:
        log = subject.play(env, turns(env), task)
        plays.append((log[0][0], _json(subject.gold(*task)), policy_texts(log)))
    return all(play == plays[0] for play in plays)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _restated(tasks: list[_Content]) -> dict[str, list[str]]:
    """Find tasks with gold answer, numbers and rare words of one in train; what is left are other sentences.

    Small numbers agree by chance. So the numbers and words must be too rare for that: by their frequencies less than
    one task in `_CHANCE` times as many as training has would agree with a given one.
    """
    common = Counter(word for *_, words in tasks for word in set(words))
    train: dict[Any, int] = {}
    found: dict[str, list[str]] = {split: [] for split, *_ in tasks if split != "train"}
    enough = math.log(_CHANCE * sum(split == "train" for split, *_ in tasks) or 1)
    for split, index, gold, words in tasks:
        kept = sorted(word for word in words if word.isdigit() or common[word] < _RARE * len(tasks))
        if sum(math.log(len(tasks) / common[word]) for word in set(kept)) < enough:
            continue
        if split == "train":
            train.setdefault((gold, *kept), index)
        elif (same := train.get((gold, *kept))) is not None:
            found[split].append(f"{split}/{index} has gold answer, numbers and names of train/{same}: {' '.join(kept)}")
    return found


def solvable(subject: Subject) -> Record:
    """The environment's own expert solves the tasks of every split, in one of 8 attempts if it plays by chance."""
    if not subject.has_expert:
        raise SkippedCheck("it has no expert")
    env, problems, numbers = subject.env, list[str](), dict[str, float]()

    def solved(split: str, index: int, seed: int = 0) -> bool:
        return outcome(subject.play(env, expert_turns(env), (split, index), seed))[1]

    for split in env.tasks:
        tasks = subject.some(split, 100, 20)
        left = [index for index in tasks if not solved(split, index)]
        numbers[f"solved at once in {split}"] = 1 - len(left) / len(tasks)
        lost = [index for index in left if not any(solved(split, index, seed) for seed in range(1, 8))]
        numbers[f"solved in {split}"] = share = 1 - len(lost) / len(tasks)
        problems += [f"the expert does not solve {split}/{index}" for index in lost] if share < SOLVED else []
    return judged("solvable", "the expert solves the tasks of every split", problems, numbers)


def model(subject: Subject) -> Record:
    """The success of a model that was not trained for the task, greedy, on held-out tasks."""
    if subject.model is None:
        raise SkippedCheck("no model was named: --model smollm2, after agent-gym prepare smollm2, or any other")
    split = subject.held_out
    number = len(subject.some(split, 100, 20))
    arguments = ["--model", subject.model, "--episodes", str(number), "--split", split, "--json"]
    (found,) = json.loads(_agent_gym(subject, ["eval", subject.env_id, *arguments]))["results"]
    numbers = {name: found["measures"][name]["value"] for name in ("episode/success", "reward")}
    text = f"{subject.model} solves {numbers['episode/success']:.0%} of {number} tasks of {split}, untrained"
    return judged("model", text, [], {**numbers, "tasks": float(number)})


def learnable(subject: Subject) -> Record:
    """Imitation and GRPO with the tiny model of `agent-gym speedrun --env`: success before and after RL."""
    if not subject.learn:
        raise SkippedCheck("it was not asked for: --learn, some minutes of training")
    with tempfile.TemporaryDirectory() as folder:
        _agent_gym(subject, ["speedrun", "--env", subject.env_id, "--output_dir", folder])
        rows = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))["results"]
    greedy = [row for row in rows if row["decoding"] == "greedy"]
    before, after = greedy[-2]["success"], greedy[-1]["success"]
    text = f"GRPO leads the tiny model from {before:.0%} to {after:.0%}"
    flat = after < min(before + LEARNED, 1 - LEARNED)
    return judged("learnable", text, [text] if flat else [], {"before": before, "after": after})


def _agent_gym(subject: Subject, arguments: Sequence[str]) -> str:
    command = [sys.executable, "-m", "agent_gym", *arguments, "--env_kwargs", json.dumps(subject.env_kwargs)]
    subject.beat(" ".join(command[2:]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout
