"""`agent-gym recipe`: the recipe of another project as one command. recipes.toml has the recipes.

Each step of a recipe is a command of its own process: `prepare`, then a training for each part, into a folder inside
the recipe's. The recipe is a run with these trainings as its parts.
"""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.cli.early import check_early
from agent_gym.cli.launch import run_to_its_end
from agent_gym.cli.parser import CommandParser, as_text
from agent_gym.cli.runs import check_part, run_part, runs, status_of
from agent_gym.data import cache_folder
from agent_gym.errors import AgentGymError, ConfigError
from agent_gym.trainers.run_file import FILE, read, recorded

RECIPES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))


def recipe(argv: Sequence[str]) -> int:
    """Prepare a recipe's data and train on it by its algorithms, one after the other.

    Parts that are finished are left alone, and a training with a checkpoint is resumed. Flags after -- go to each
    training: agent-gym recipe hotpotqa -- --max_steps 100
    """
    parser = CommandParser("recipe", recipe.__doc__)
    told = "; ".join(f"{name}: {one['summary']}" for name, one in RECIPES.items())
    parser.flag("recipe RECIPE", told, choices=list(RECIPES))
    parser.flag("--from PATH", "files or folders to prepare instead of the hub's", dest="source", nargs="+", default=())
    parser.flag("--data DIR", "folder of the prepared data; default: that of agent-gym prepare")
    parser.flag("--model --model_name_or_path PATH", "folder, hub id or prepared name; default: the recipe's")
    parser.flag("--output_dir DIR", "where the runs go; default: runs/RECIPE")
    parser.flag("--dry_run", "only print the commands, each with its state", action="store_true")
    at = argv.index("--") if "--" in argv else len(argv)
    try:
        arguments, more = parser.parse(argv[:at]), argv[at + 1 :]
    except ConfigError as error:
        cure = "; flags of the trainings follow --" if "unknown argument" in str(error) else ""
        raise ConfigError(f"{error}{cure}") from error
    name, folder = arguments.recipe, Path(arguments.output_dir or f"runs/{arguments.recipe}")
    data = Path(arguments.data).expanduser().absolute() if arguments.data else cache_folder() / name
    prepared = ["prepare", name, *(["--from", *arguments.source] if arguments.source else []), "--output", str(data)]
    prepared = prepared if "data" in RECIPES[name] else []
    if not prepared and (arguments.source or arguments.data):
        raise ConfigError(f"recipe: {name} generates its tasks and prepares nothing; leave out --from and --data")
    parts = {part: [*words, *more] for part, words in _trainings(RECIPES[name], arguments.model, data).items()}
    if arguments.dry_run and prepared:
        print(shlex.join(["agent-gym", *prepared]))
    for part, (command, *words) in parts.items():  # before the first of them begins
        place = folder / part
        check_early(command, [*words, "--output_dir", str(place)])
        check_part(command, words, place)
        if arguments.dry_run:
            state = status_of(read(place / FILE)) if (place / FILE).is_file() else "not begun"
            print(f"{shlex.join(['agent-gym', command, *words, '--output_dir', str(place)])}  # {state}")
    if arguments.dry_run:
        return 0
    with recorded("recipe", argv, folder) as outcome:
        if prepared and run_to_its_end([sys.executable, "-m", "agent_gym", *prepared]):
            raise AgentGymError(f"recipe: the data were not prepared: {shlex.join(['agent-gym', *prepared])}")
        for part, (command, *words) in parts.items():
            print(f"agent-gym: {part} in {folder / part}", file=sys.stderr, flush=True)
            ended = status_of(run_part(command, words, folder / part, run_to_its_end))
            outcome["code"] = outcome.get("code", 0) or int(ended != "done")
    runs([str(folder)])
    return outcome["code"]


def _trainings(table: Mapping[str, Any], model: str | None, data: Path) -> dict[str, list[str]]:
    """Return the words of each part's command, by the name of the part."""
    paths = {argument: str(data / path) for argument, path in table.get("data", {}).items()}
    kwargs = json.dumps({**table["env_kwargs"], **paths}, ensure_ascii=False)
    found = {}
    for part, own in table["parts"].items():
        settings = {"env_kwargs": kwargs, "model_name_or_path": model or table["model"], **table["settings"], **own}
        command = settings.pop("command")
        flags = [word for name, value in settings.items() for word in (f"--{name}", as_text(value))]
        found[part] = [command, table["env_id"], *flags]
    return found
