"""What the world says, word for word as ALFWorld's grammar has it."""

from __future__ import annotations

from collections.abc import Iterable

NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"

_COMMANDS = (
    ("look", "look around your current location"),
    ("inventory", "check your current inventory"),
    ("go to (receptacle)", "move to a receptacle"),
    ("open (receptacle)", "open a receptacle"),
    ("close (receptacle)", "close a receptacle"),
    ("take (object) from (receptacle)", "take an object from a receptacle"),
    ("move (object) to (receptacle)", "place an object in or on a receptacle"),
    ("examine (something)", "examine a receptacle or an object"),
    ("use (object)", "use an object"),
    ("heat (object) with (receptacle)", "heat an object using a receptacle"),
    ("clean (object) with (receptacle)", "clean an object using a receptacle"),
    ("cool (object) with (receptacle)", "cool an object using a receptacle"),
    ("slice (object) with (object)", "slice an object using a sharp object"),
)
_MISPLACED = {"move (object) to (receptacle)": 32}  # the original's column is off by two here
_HELP_LINES = "".join(f"  {command + ':':<{_MISPLACED.get(command, 34)}}{what}\n" for command, what in _COMMANDS)
HELP = f"Available commands:\n{_HELP_LINES}"

# The first whose conditions all hold says how an object looks. A cool one is cold only when nothing else is to be said.
LOOKS = (
    (("clean", "hot", "sliced"), "hot and clean sliced"),
    (("clean", "cool", "sliced"), "cool and clean sliced"),
    (("clean", "sliced"), "clean sliced"),
    (("hot", "sliced"), "hot sliced"),
    (("cool", "sliced"), "cool sliced"),
    (("clean", "hot"), "hot and clean"),
    (("clean", "cool"), "cool and clean"),
    (("hot",), "hot"),
    (("clean",), "clean"),
    (("cool",), "cold"),
)


def enumerate_names(names: list[str]) -> str:
    """Join names with commas and a last "and"; one name stands alone."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


def listing(names: Iterable[str]) -> str:
    """List things with the article, which is "a" before any word; "nothing" if there are none."""
    named = [f"a {name}" for name in names]
    return enumerate_names(named) if named else "nothing"


def look_of(state: set[str]) -> str | None:
    """Say how an object looks that is, for example, {"clean", "hot"}; None if there is nothing to say."""
    return next((words for needed, words in LOOKS if state.issuperset(needed)), None)
