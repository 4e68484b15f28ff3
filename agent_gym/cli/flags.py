"""What the training commands take: dataclasses of settings, and the flags for several processes.

The names of the dataclasses stand here and not the classes, so that `--help` can read them from their sources
(fast_help.py), while a run imports them (launch.py). Both dress their parser alike.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError

PRESETS = "agent_gym.trainers.accelerate_configs"


@dataclass(frozen=True, slots=True)
class TrainingFlags:
    """The flags of a training command.

    Attributes:
        command: what the user types.
        summary: what it does, for `--help`.
        settings: the dataclasses whose fields are flags, as "module:Class".
        defaults: those that differ from the dataclasses'.
    """

    command: str
    summary: str
    settings: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def classes(self) -> list[Any]:
        """Import the dataclasses, which takes seconds."""
        return [getattr(import_module(module), name) for module, _, name in self.named()]

    def named(self) -> list[tuple[str, str, str]]:
        """Return the module and the name of each dataclass, with the colon between them."""
        return [name.partition(":") for name in self.settings]

    def dress(self) -> dict[str, Any]:
        """Return the arguments of a parser that tell what it is for."""
        prog = f"agent-gym {self.command}"
        # The usage that argparse would write lists two hundred flags before it says what the command does.
        usage = f"{prog} ENV [--config FILE] [--accelerate_config NAME] [any argument below]"
        return {"prog": prog, "usage": usage, "description": self.summary, "allow_abbrev": False}

    def complete(self, parser: ArgumentParser) -> None:
        """Add to a parser of the settings what is no setting, and the defaults."""
        parser.set_defaults(**self.defaults)
        for action in parser._actions:
            # The help must not depend on the machine, and to find a GPU takes torch (launch.py).
            if action.dest in ("bf16", "dataloader_pin_memory") and action.help:
                action.help = f"{action.help} Without a GPU it is off."
        launcher = parser.add_argument_group("several processes")
        launcher.add_argument("--config", metavar="FILE", help="A yaml file with any of these arguments.")
        launcher.add_argument(
            "--accelerate_config",
            metavar="NAME",
            help=f"A preset ({', '.join(presets())}) or a file of `accelerate config`. This and all arguments of "
            "`accelerate launch` (--num_processes, ...) start several processes; without any there is one.",
        )


def presets() -> list[str]:
    """Return the names of our accelerate presets."""
    names = (file.name for file in resources.files(PRESETS).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def preset_file(name: str) -> str:
    """Return the file of a preset, or the name itself if it is a file.

    Raises:
        ConfigError: if it is neither.
    """
    if Path(name).is_file():
        return name
    if name not in presets():
        raise ConfigError(f"accelerate_config {name!r} is neither a file nor a preset; presets: {', '.join(presets())}")
    return str(resources.files(PRESETS).joinpath(f"{name}.yaml"))
