"""Questions about invented worlds, in HotpotQA's own JSON: the data an environment has before anything is downloaded.

A row has the fields of HotpotQA's distractor setting (arXiv:1809.09600), and in `world` the number of the world to
search. Of the ten paragraphs in its `context` some are gold, the others the ones that a word search for the question
would put first.

| level | type | asks | example |
|---|---|---|---|
| easy | bridge | for a name | In which city was the director of the film Tobila born? |
| medium | bridge, comparison | for a year, or who was born earlier | Who was born earlier, ... or ...? |
| hard | comparison | yes or no | Were the singer of the song ... and the founder of ... born in the same city? |

A question leads from a thing that it names over one relation to a second thing, and from there over another relation to
the answer. One search cannot answer it: the paragraph with the answer is never among the first `HIDDEN` for a search
with the question itself, because the thing it is about is not named there. A search for its title finds it.

Every world states all relations, but no question of training asks for the ones that are held out: validation asks for
teachers and publishers, test for mayors and rivers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

from agent_gym.data import Row, SplitRows
from agent_gym.envs.hotpotqa.embedded.world import TABLES, Entity, World, get_world
from agent_gym.errors import ConfigError, some_of

_DEV, _TEST = range(80, 88), range(88, 96)
_UNSEEN = {"unseen_entities_dev": _DEV, "unseen_entities": _TEST}
WORLDS = {"train": range(80), "validation": _DEV, "test": _TEST, **_UNSEEN}
LEVELS = ("easy", "medium", "hard")
PARAGRAPHS = 10
HIDDEN = 12
HELD_OUT = {split: frozenset(relations) for split, relations in TABLES["held_out"].items()}
LINKS, ASKED = (
    {relation: (row["of"], row["wordings"]) for relation, row in TABLES[table].items()} for table in ("links", "asked")
)
COMPARED: dict[str, list[str]] = TABLES["compared"]
_LEADS_TO: dict[str, str] = TABLES["leads_to"]
_SHARES = {"easy": 6, "medium": 2, "hard": 2}


class GeneratedQuestions(SplitRows):
    """The questions of one split.

    Args:
        split, size: see `SplitRows`; of some levels there are fewer.
        levels: which of `LEVELS` occur.
        hops: paragraphs from the names in a question to its answer, 2 to 4; above 2 hard questions do not exist.
        alone: leave out `world`, so that only the ten paragraphs in `context` are searched.

    Raises:
        ConfigError: on an unknown split or level, no level, a size below one, or other hops.
    """

    SIZES = {split: 20_000 if split == "train" else 1_000 for split in WORLDS}
    KEY = "question"

    def __init__(
        self, split: str, size: int | None = None, levels: Sequence[str] = LEVELS, *, hops: int = 2, alone: bool = False
    ) -> None:
        super().__init__(split, size)
        self.levels = some_of("levels", levels, LEVELS)
        if hops not in (2, 3, 4) or (hops > 2 and "hard" in self.levels):
            raise ConfigError(f"hops is {hops} with the levels {self.levels}; allowed: 2, or 3 and 4 without 'hard'")
        self.hops, self.alone = hops, alone

    def draw(self, index: int, attempt: int) -> Row:
        split, hops = self.split, self.hops
        rng = random.Random(f"{split}/{','.join(self.levels)}/{hops}/{index}" + (f"/{attempt}" if attempt else ""))
        (level,) = rng.choices(self.levels, [_SHARES[level] for level in self.levels])
        number = rng.choice(WORLDS[split])
        world = get_world(number)
        asked_in = "train" if split.startswith("unseen_entities") else split
        while True:
            compare = level == "hard" or (level == "medium" and hops == 2 and rng.random() < 0.5)
            draft = _compare(world, level, asked_in, rng) if compare else _bridge(world, level, asked_in, hops, rng)
            # Paragraphs that the question does not name must not be hits of a search with the question.
            if draft and not set(draft[3]) & set(world.rank(draft[0], HIDDEN)):
                break
        question, answer, facts, _ = draft
        row = {
            "_id": f"{split}-{index}" if hops == 2 else f"{split}-{hops}hop-{index}",
            "question": question,
            "answer": answer,
            "type": "comparison" if compare else "bridge",
            "level": level,
            "supporting_facts": [list(fact) for fact in facts],
            "context": _context(world, question, [title for title, _ in facts], rng),
        }
        return row if self.alone else {**row, "world": number}


def _belongs_to(split: str, *relations: str) -> bool:
    # Each question belongs to at most one split.
    touched = {name for name, held in HELD_OUT.items() if held & set(relations)}
    return touched == ({split} if split in HELD_OUT else set())


@functools.cache
def _bridges(split: str, hops: int) -> list[tuple[str, ...]]:
    # Links, and the questions at their end.
    paths: list[tuple[str, ...]] = [(link,) for link in LINKS]
    for _ in range(hops - 2):
        paths = [(*path, link) for path in paths for link in LINKS if LINKS[link][0] == _LEADS_TO[path[-1]]]
    paths = [(*path, asked) for path in paths for asked in ASKED if ASKED[asked][0] == _LEADS_TO[path[-1]]]
    # The same relation twice ("the teacher of the teacher of") is a riddle and not a question.
    return [path for path in paths if len(set(path)) == len(path) and _belongs_to(split, *path)]


@functools.cache
def _comparisons(split: str) -> list[tuple[str, str, str]]:
    # (link, link, compared); both links lead to people.
    people = [link for link in LINKS if _LEADS_TO[link] == "person"]
    return [(a, b, by) for a in people for b in people for by in COMPARED if _belongs_to(split, a, b, by)]


_Draft = tuple[str, str, list[tuple[str, int]], list[str]]
"""Question, answer, supporting facts, and the gold titles that the question does not name."""


def _bridge(world: World, level: str, split: str, hops: int, rng: random.Random) -> _Draft | None:
    paths = [path for path in _bridges(split, hops) if (path[-1] == "year") == (level == "medium")]
    *links, asked = rng.choice(paths)
    phrase, facts, end = _follow(world, links, asked, rng)
    answer, titles = end.facts[asked], [title for title, _ in facts]
    # An answer that is in an earlier paragraph, or in the question, asks for no search for the last one.
    earlier = "".join(sentence for title in titles[:-1] for sentence in world.entities[title].sentences)
    if answer in earlier or len(set(titles)) < len(titles):
        return None
    return rng.choice(ASKED[asked][1]).format(np=phrase), answer, facts, titles[1:]


def _compare(world: World, level: str, split: str, rng: random.Random) -> _Draft | None:
    paths = [path for path in _comparisons(split) if (path[2] == "year") == (level == "medium")]
    left, right, by = rng.choice(paths)
    wanted = rng.random() < 0.5  # as many yes as no
    for _ in range(200):
        a, first, one = _follow(world, [left], by, rng)
        b, second, other = _follow(world, [right], by, rng)
        if len({title for title, _ in first + second}) < 4:
            continue
        x, y = one.facts[by], other.facts[by]
        if by == "year" and x != y:
            answer = one.title if x < y else other.title
        elif by != "year" and (x == y) == wanted:
            answer = "yes" if wanted else "no"
        else:
            continue
        return rng.choice(COMPARED[by]).format(a=a, b=b), answer, first + second, [one.title, other.title]
    return None


def _follow(
    world: World, links: Sequence[str], asked: str, rng: random.Random
) -> tuple[str, list[tuple[str, int]], Entity]:
    """Start somewhere and follow links: how a question names the end, the facts on the way, the end itself."""
    entity = world.entities[rng.choice(world.by_kind[LINKS[links[0]][0]])]
    phrase, facts = entity.title, []
    for link in links:
        facts.append((entity.title, entity.stated_in[link]))
        phrase = rng.choice(LINKS[link][1]).format(x=phrase)
        entity = world.entities[entity.facts[link]]
    return phrase, [*facts, (entity.title, entity.stated_in[asked])], entity


def _context(world: World, question: str, gold: list[str], rng: random.Random) -> list[list[Any]]:
    # Half of the distractors are hits of a search with the question, the rest hits of searches for the gold titles.
    found = [world.rank(query, PARAGRAPHS + len(gold)) for query in (question, *gold)]
    rest = PARAGRAPHS - len(gold)
    titles = [title for title in found[0] if title not in gold][: rest // 2]
    others = dict.fromkeys(title for near in zip(*found[1:], strict=False) for title in near)
    titles += [title for title in others if title not in gold and title not in titles][: rest - len(titles)]
    while len(titles) < rest:
        title = rng.choice(world.documents).title
        if title not in gold and title not in titles:
            titles.append(title)
    titles += gold
    rng.shuffle(titles)
    return [[title, list(world.entities[title].sentences)] for title in titles]
