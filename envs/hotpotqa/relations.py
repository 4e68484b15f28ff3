"""What is true in an invented world and how it is said: the sentences of its encyclopedia, and its questions.

A question follows a *path*: from a thing that it names over one relation to a second thing, and from there over another
relation to the answer. Some relations are held out. Every paragraph of every world states them, but no question of
the training split asks for them: validation asks for teachers and publishers, test for mayors and rivers, and training
for the rest. A policy that answers those has understood what a question asks, since it never saw that question.
"""

from __future__ import annotations

import functools

SPLITS = ("train", "validation", "test")

HELD_OUT: dict[str, frozenset[str]] = {
    "validation": frozenset({"teacher", "publisher"}),
    "test": frozenset({"mayor", "river"}),
}

# Kind of thing -> its sentences, each with two wordings. One sentence is one supporting fact. A relation stands in
# it as {relation}, {name} is the title, {last} a person's last name and {sort} what sort of its kind the thing is.
SENTENCES: dict[str, tuple[tuple[str, str], ...]] = {
    "person": (
        ("{name} is a {sort} born in {birthplace} in {year}.", "{name}, born in {birthplace} in {year}, is a {sort}."),
        (" {last} works for {employer}.", " The employer of {last} is {employer}."),
        (" The teacher of {last} was {teacher}.", " {teacher} was the teacher of {last}."),
    ),
    "film": (
        ("{name} is a film directed by {director}.", "The director of the film {name} is {director}."),
        (" The film is set in the city of {setting}.", " {setting} is the city where the film is set."),
    ),
    "book": (
        ("{name} is a book written by {writer}.", "The writer of the book {name} is {writer}."),
        (" The book was published by {publisher}.", " The publisher of the book is {publisher}."),
    ),
    "song": (
        ("{name} is a song sung by {singer}.", "The singer of the song {name} is {singer}."),
        (" The song was recorded in the city of {studio}.", " {studio} is the city where the song was recorded."),
    ),
    "organisation": (
        ("{name} is a {sort} founded by {founder}.", "The founder of the {sort} {name} is {founder}."),
        (" The {sort} is based in the city of {seat}.", " {seat} is the city where the {sort} is based."),
    ),
    "city": (
        ("{name} is a city in the region of {region}.", "{name} is a city, and its region is {region}."),
        (" Its mayor is {mayor}.", " {mayor} is its mayor."),
        (" The river {river} flows through the city.", " The city lies on the river {river}."),
    ),
}

SORTS: dict[str, tuple[str, ...]] = {
    "person": ("director", "writer", "singer", "teacher", "doctor", "lawyer"),
    "organisation": ("publisher", "university", "theatre"),
}

# Relation -> the kind of thing that has it, and how a question names the other end of it.
LINKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "director": ("film", ("the director of the film {x}", "the director of {x}")),
    "writer": ("book", ("the writer of the book {x}", "the writer of {x}")),
    "singer": ("song", ("the singer of the song {x}", "the singer of {x}")),
    "founder": ("organisation", ("the founder of {x}",)),
    "mayor": ("city", ("the mayor of {x}",)),
    "teacher": ("person", ("the teacher of {x}",)),
    "employer": ("person", ("the employer of {x}",)),
    "publisher": ("book", ("the publisher of the book {x}", "the publisher of {x}")),
    "birthplace": ("person", ("the city where {x} was born",)),
    "setting": ("film", ("the city where the film {x} is set",)),
    "studio": ("song", ("the city where the song {x} was recorded",)),
    "seat": ("organisation", ("the city where {x} is based",)),
}

# Relation -> the kind of thing that has it, and how a question asks for it.
ASKED: dict[str, tuple[str, tuple[str, ...]]] = {
    "birthplace": ("person", ("In which city was {np} born?", "Where was {np} born?")),
    "employer": ("person", ("For whom does {np} work?", "Who is the employer of {np}?")),
    "teacher": ("person", ("Who was the teacher of {np}?",)),
    "founder": ("organisation", ("Who founded {np}?", "Who is the founder of {np}?")),
    "seat": ("organisation", ("In which city is {np} based?", "Where is {np} based?")),
    "region": ("city", ("In which region is {np}?", "What is the region of {np}?")),
    "mayor": ("city", ("Who is the mayor of {np}?",)),
    "river": ("city", ("Which river flows through {np}?", "On which river lies {np}?")),
    "year": ("person", ("In what year was {np} born?",)),
}

# Relation -> how two people are compared by it. With the year the answer is a name, otherwise yes or no.
COMPARED: dict[str, tuple[str, ...]] = {
    "year": ("Who was born earlier, {a} or {b}?",),
    "birthplace": ("Were {a} and {b} born in the same city?",),
    "employer": ("Do {a} and {b} work for the same employer?",),
}

KIND_OF: dict[str, str] = {
    **dict.fromkeys(("director", "writer", "singer", "founder", "mayor", "teacher"), "person"),
    **dict.fromkeys(("employer", "publisher"), "organisation"),
    **dict.fromkeys(("birthplace", "setting", "studio", "seat"), "city"),
}
"""What kind of thing stands at the other end of a link."""


def belongs_to(split: str, *relations: str) -> bool:
    """Whether a question over these relations may stand in a split: each question belongs to at most one."""
    touched = {name for name, held in HELD_OUT.items() if held & set(relations)}
    return touched == ({split} if split in HELD_OUT else set())


@functools.cache
def bridges(split: str, hops: int = 2) -> list[tuple[str, ...]]:
    """Return the paths of a split that have this many paragraphs: links, and what is asked at their end."""
    paths: list[tuple[str, ...]] = [(link,) for link in LINKS]
    for _ in range(hops - 2):
        paths = [(*path, link) for path in paths for link in LINKS if LINKS[link][0] == KIND_OF[path[-1]]]
    paths = [(*path, asked) for path in paths for asked in ASKED if ASKED[asked][0] == KIND_OF[path[-1]]]
    # The same relation twice ("the teacher of the teacher of") is a riddle and not a question.
    return [path for path in paths if len(set(path)) == len(path) and belongs_to(split, *path)]


@functools.cache
def comparisons(split: str) -> list[tuple[str, str, str]]:
    """Return the (link, link, compared) paths of a split; both links lead to people."""
    people = [link for link in LINKS if KIND_OF[link] == "person"]
    return [(a, b, by) for a in people for b in people for by in COMPARED if belongs_to(split, a, b, by)]
