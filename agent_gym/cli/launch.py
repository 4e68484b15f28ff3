"""How the training commands read their arguments, and how they become several processes.

The arguments are TRL's, read by TRL's own parser, plus ours. What none of the dataclasses knows belongs to
`accelerate launch`, from the command line and from the yaml file alike, as with the command `trl`:

    agent-gym grpo AgentR1/GSM8K-v0 --config run.yaml --accelerate_config zero2 --num_processes 2

Two things differ from `trl`. Without any launcher argument nothing is launched: training runs in this process. And an
argument that `accelerate launch` does not know either is an error of one line instead of a traceback from a process
further down.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from trl import TrlParser

from agent_gym.cli.flags import TrainingFlags, preset_file
from agent_gym.cli.parser import as_text, nearest, one_line, read_yaml, take_option, with_underscores
from agent_gym.cli.worker import LAUNCHER, end_with
from agent_gym.errors import ConfigError


class TrainingParser(TrlParser):
    """TRL's parser, with errors of one line, that parts our arguments from the launcher's.

    Args:
        flags: what the command takes.
    """

    def __init__(self, flags: TrainingFlags) -> None:
        super().__init__(flags.classes(), **flags.dress())
        flags.complete(self)
        self._count = len(flags.settings)
        self.command = flags.command

    def read(self, argv: Sequence[str]) -> tuple[list[Any], list[str], list[str]]:
        """Read the command line over the yaml file that it names, if any.

        Returns:
            The dataclasses, the arguments of `accelerate launch`, and the arguments without those.

        Raises:
            ConfigError: for anything that does not fit, in one line.
        """
        if not torch.cuda.is_available():
            # TRL's default is bf16 everywhere, which transformers then refuses on a CPU; and torch warns of pinned
            # memory at the beginning of each epoch.
            self.set_defaults(bf16=False, dataloader_pin_memory=False)
        arguments = with_underscores(argv)
        if arguments and not arguments[0].startswith("-"):
            arguments.insert(0, "--env_id")
        preset, arguments = take_option(arguments, "--accelerate_config")
        path, arguments = take_option(arguments, "--config")
        launch: list[str] = []
        if path is not None:
            content = read_yaml(path)
            preset = preset or content.pop("accelerate_config", None)
            launch += self._launcher_keys(path, content)
            arguments = ["--config", path, *arguments]
        try:
            *parsed, _, extra = self.parse_args_and_config(
                arguments, return_remaining_strings=True, separate_remaining_strings=True
            )
            del parsed[self._count :]  # a namespace with --config, which is in no dataclass
        except ConfigError:
            raise
        except ValueError as error:  # settings that contradict each other, found by TRL's dataclasses
            raise ConfigError(f"{self.command}: {one_line(error)}") from error
        known = _launcher_flags() if extra else {}
        for word in extra:
            if word.startswith("-") and word.partition("=")[0] not in known:
                flags = [*self._option_string_actions, *known]
                raise ConfigError(f"{self.command}: unknown argument {word!r}; {nearest(word, flags)}")
        if preset is not None:
            launch = ["--config_file", preset_file(preset), *launch]
        return parsed, launch + extra, _without(arguments, extra)

    def error(self, message: str) -> NoReturn:
        """Say it in one line, without the usage text."""
        raise ConfigError(f"{self.command}: {message} (see {self.prog} --help)")

    def _launcher_keys(self, path: str, content: dict[str, Any]) -> list[str]:
        """Turn the yaml keys that are not ours into arguments of `accelerate launch`."""
        ours = {action.dest for action in self._actions}
        foreign = {key: value for key, value in content.items() if key not in ours}
        if not isinstance(foreign.pop("env", {}), dict):
            raise ConfigError(f"{path}: `env` sets environment variables (a mapping); the task is `env_id`")
        launch: list[str] = []
        known = _launcher_flags() if foreign else {}
        for key, value in foreign.items():
            if f"--{key}" not in known:
                names = [*ours, *(flag.lstrip("-") for flag in known)]
                raise ConfigError(f"{path}: unknown key {key!r}; {nearest(key, names)}")
            if known[f"--{key}"].nargs == 0:  # a switch has no value on the command line
                launch += [f"--{key}"] if value else []
            else:
                launch += [f"--{key}", as_text(value)]
        return launch


def run(parser: TrainingParser, argv: Sequence[str], check: Callable[..., None], train: Callable[..., None]) -> int:
    """Check the arguments, then train here, or in the processes that the arguments ask for.

    Args:
        parser: reads the arguments.
        argv: the arguments.
        check: gets the dataclasses; finds the cheap mistakes before processes are started or models loaded.
        train: gets the dataclasses.

    Returns:
        The exit code.
    """
    parsed, launch, own = parser.read(argv)
    check(*parsed)
    if not launch:
        train(*parsed)
        return 0
    worker = ["--module", "agent_gym.cli.worker", parser.command, *own]
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, *worker]
    here = os.getpid()

    def begin() -> None:
        end_with(here)
        os.environ[LAUNCHER] = str(os.getpid())

    # A group of its own: Ctrl-C reaches it once, from here, and it has the time to end its processes.
    launcher = subprocess.Popen(command, preexec_fn=begin, process_group=0)
    try:
        return launcher.wait()
    except KeyboardInterrupt:
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.wait()
        raise


def _launcher_flags() -> dict[str, Any]:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()._option_string_actions


def _without(arguments: Sequence[str], removed: Sequence[str]) -> list[str]:
    """Return the arguments without `removed`, which is an ordered part of them."""
    rest = list(removed)
    return [word for word in arguments if not (rest and word == rest[0] and rest.pop(0))]
