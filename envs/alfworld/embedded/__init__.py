"""Generated games, in the official format: played before anything is downloaded.

A game is a task in a furnished room (rooms.py). Each of the six types of tasks is drawn equally often; the room, the
objects that has to go where and where everything lies follow at random. `train` and `valid_seen` share their floor
plans, as the official splits do, and the rooms of `valid_unseen` occur nowhere else. Game i of a split depends on the
split and i alone.

A game can be solved by construction: nothing that is wanted lies where it has to go, and something that takes it is
there. Sliced objects and movable receptacles are left out, as in ALFWorld.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.data import EMBEDDED
from agent_gym.envs.alfworld.embedded import rooms
from agent_gym.envs.alfworld.embedded.files import Setting, domain, grammar_text, problem_text
from agent_gym.envs.alfworld.expert import Expert
from agent_gym.envs.alfworld.game import TASK_TYPES, AlfworldGame
from agent_gym.envs.alfworld.world import AlfworldWorld
from agent_gym.errors import ConfigError

GAME_FILE = "game.tw-pddl"
ROOT = "json_2.1.1"

SPLIT_SIZES = {"train": 3_553, "valid_seen": 140, "valid_unseen": 134}
"""As many as the official splits have."""
SMALL_SPLIT_SIZES = {"train": 30_000, "valid_seen": 3_000, "valid_unseen": 3_000}
"""Of small rooms, for which no official number exists: a policy that starts from nothing needs many short games."""

_SHARES = {"train": 8, "valid_seen": 1, "valid_unseen": 1}  # of the possible goals, a split's own
_COPIES = (1, 2, 2, 3)
_LONGEST = 20  # commands; the expert needs fewer
_SENTENCES = {
    "pick_and_place_simple": ("put a {thing} in {place}.", "put some {thing} on {place}."),
    "look_at_obj_in_light": ("look at {thing} under the {lamp}.", "examine the {thing} with the {lamp}."),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {place}.", "clean some {thing} and put it in {place}."),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {place}.", "heat some {thing} and put it in {place}."),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {place}.", "cool some {thing} and put it in {place}."),
    "pick_two_obj_and_place": ("put two {thing} in {place}.", "find two {thing} and put them in {place}."),
}
_TREATED = {
    "pick_clean_then_place_in_recep": (rooms.CLEANABLE, "SinkBasin"),
    "pick_heat_then_place_in_recep": (rooms.HEATABLE, "Microwave"),
    "pick_cool_then_place_in_recep": (rooms.COOLABLE, "Fridge"),
}


class GeneratedGame(NamedTuple):
    """A generated game, and its random choices."""

    game: AlfworldGame
    setting: Setting

    @property
    def file(self) -> dict[str, Any]:
        """The content of its `game.tw-pddl`, with the expert's way as `walkthrough`."""
        world, commands = AlfworldWorld(self.game), list[str]()
        expert = Expert(world)
        while not world.view.won:
            if len(commands) == _LONGEST:
                raise RuntimeError(f"{self.game.name} is not solved: {self.game.task} {commands}")
            commands.append(expert.next_command())
            world.step(commands[-1])
        return {**self.game.data, "solvable": True, "walkthrough": commands}


def type_of(index: int) -> str:
    """Return the type of game `index` of any split."""
    return TASK_TYPES[index % len(TASK_TYPES)]


def source(receptacles: int | None) -> str:
    """Return the beginning of the names of games."""
    return EMBEDDED if receptacles is None else f"{EMBEDDED}-{receptacles}"


def generate(split: str, index: int, grammar: str = "current", receptacles: int | None = None) -> GeneratedGame:
    """Make game `index` of a split; `receptacles` is how many its room has at most, None for as many as usual."""
    if split not in SPLIT_SIZES:
        raise ConfigError(f"unknown split {split!r}: generated games have {', '.join(SPLIT_SIZES)}")
    # A string seed goes through SHA-512, so neighbouring games share nothing and PYTHONHASHSEED has no influence.
    rng = random.Random(f"alfworld/{split}/{index}" + (f"/{receptacles}" if receptacles else ""))
    task_type, wanted = type_of(index), None
    while wanted is None:
        plan = rooms.floor_plan(_draw_plan(task_type, split == "valid_unseen", rng))
        if receptacles is not None:
            plan = rooms.corner(plan, receptacles, rng)
        wanted = _choose(task_type, plan, rng)
        if wanted and _owner(task_type, plan, wanted, small=receptacles is not None) not in (split, None):
            wanted = None
    setting = _scatter(task_type, plan, *wanted, receptacles is None, rng)
    words = {"thing": setting.thing.lower(), "place": setting.place.lower(), "lamp": rooms.LAMP.lower()}
    file = {
        "pddl_domain": domain(grammar),
        "grammar": grammar_text(grammar, rng.choice(_SENTENCES[task_type]).format(**words)),
        "pddl_problem": problem_text(f"generated_{split}_{index}", setting),
    }
    return GeneratedGame(AlfworldGame(file, f"{source(receptacles)}/{split}/{index}"), setting)


def _draw_plan(task_type: str, unseen: bool, rng: random.Random) -> int:
    """Draw a room in which there may be such a task: kitchens offer the most, as in the official data."""
    if task_type == "look_at_obj_in_light":
        room = rng.choice(rooms.LAMP_ROOMS)
    elif task_type == "pick_clean_then_place_in_recep":
        room = rng.choices(("kitchen", "bathroom"), (3, 1))[0]
    elif task_type in _TREATED:
        room = "kitchen"
    else:
        room = rng.choice(rooms.ROOMS)
    return rng.choice(rooms.plan_numbers(room, unseen=unseen))


def _owner(task_type: str, plan: rooms.FloorPlan, wanted: tuple[str, str], *, small: bool) -> str | None:
    """Return the split that alone may ask for this in a room with such furniture, None if all that draw it may.

    Without this an opening of `valid_seen` would often be one of training, and so would, in small rooms, which look
    alike, one of `valid_unseen`: the expert's actions there would then often win here.
    """
    if not small and plan.number in rooms.plan_numbers(plan.room, unseen=True):
        return None  # no other split has these rooms
    key = "/".join([task_type, *wanted, *sorted(plan.receptacles.values())])
    return random.Random(f"alfworld/owner/{key}").choices([*_SHARES], [*_SHARES.values()])[0]


def _choose(task_type: str, plan: rooms.FloorPlan, rng: random.Random) -> tuple[str, str] | None:
    """Choose the wanted objects and places; None if the room has no such task."""
    if task_type == "look_at_obj_in_light":
        stands = set(plan.receptacles.values()) & set(rooms.LAMP_STANDS)
        return (rng.choice(plan.things), "") if stands else None
    able, tool = _TREATED.get(task_type, (None, ""))
    pairs = [
        (thing, place)
        for thing in plan.things
        # It has to lie somewhere else at first.
        if (able is None or thing in able) and len(plan.homes[thing]) > 1
        for place in plan.homes[thing]
        if place != tool
    ]
    return rng.choice(pairs) if pairs else None


def _scatter(task_type: str, plan: rooms.FloorPlan, wanted: str, place: str, full: bool, rng: random.Random) -> Setting:
    objects: dict[str, str] = {}
    inside: dict[str, str] = {}
    for kind in plan.things:
        copies = 1 if kind in rooms.SINGLE else rng.choice(_COPIES if full else (1,))
        if kind == wanted and task_type == "pick_two_obj_and_place":
            copies = max(2, copies)
        homes = plan.homes[kind]
        # Kinds of receptacles are drawn first: else a kitchen with fifteen cabinets would have everything in them.
        home_kinds = [home for home in homes if kind != wanted or home != place]
        for _ in range(copies):
            home_kind = rng.choice(home_kinds)
            thing = rooms.object_id(kind, rng)
            objects[thing] = kind
            inside[thing] = rng.choice(homes[home_kind])
    stands = [r for r, kind in plan.receptacles.items() if kind in rooms.LAMP_STANDS]
    if plan.room in rooms.LAMP_ROOMS and stands and (task_type == "look_at_obj_in_light" or rng.random() < 0.6):
        lamp = rooms.object_id(rooms.LAMP, rng)
        objects[lamp], inside[lamp] = rooms.LAMP, rng.choice(stands)
    for kind, most in rooms.DECOR[plan.room].items():
        for _ in range(rng.randint((most + 1) // 2, most + 1) if most > 1 else 1):
            objects[rooms.object_id(kind, rng)] = kind
    places = {thing: plan.places[inside[thing]] if thing in inside else rooms.location_id(rng) for thing in objects}
    spot = rooms.location_id(rng)
    while spot in plan.places.values():
        spot = rooms.location_id(rng)
    return Setting(plan, objects, inside, places, spot, task_type, wanted, place)


def write_embedded(folder: str | Path, sizes: Mapping[str, int] = SPLIT_SIZES, grammar: str = "current") -> Path:
    """Write generated games to a folder, as the official ones are: for the original engine, or for reading.

    `data=` takes the folder, and so does ALFWorld as its `$ALFWORLD_DATA`.
    """
    folder = Path(folder).expanduser()
    for split, size in sizes.items():
        for index in range(size):
            made = generate(split, index, grammar)
            file, setting, number = made.file, made.setting, made.setting.plan.number
            lamp = "" if setting.place else rooms.LAMP
            targets = {"object_target": setting.thing, "parent_target": setting.place, "toggle_target": lamp}
            task = f"{setting.task_type}-{setting.thing}-None-{setting.place or rooms.LAMP}-{number}"
            trial = folder / ROOT / split / task / f"trial_G{index:06d}"
            trial.mkdir(parents=True, exist_ok=True)
            (trial / GAME_FILE).write_text(json.dumps(file), encoding="utf-8")
            (trial / "initial_state.pddl").write_text(file["pddl_problem"], encoding="utf-8")
            about = {
                "task_id": trial.name,
                "task_type": setting.task_type,
                "pddl_params": targets | {"mrecep_target": "", "object_sliced": False},
                "scene": {"floor_plan": f"FloorPlan{number}", "scene_num": number},
                "turk_annotations": {"anns": [{"task_desc": made.game.task}]},
            }
            (trial / "traj_data.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    return folder
