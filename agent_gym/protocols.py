"""Protocols: how a paper or a repository lets a policy play a task, as one setting of an environment.

A published number belongs to a prompt, a wire format, the world's answers, budgets and a reward. `protocol="..."` sets
all of them at once, so that a checkpoint can be evaluated as it was trained. The protocols of a task are records in its
`protocols.py`, with prompts as text files in its folder; registry/published.json has the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent_gym.errors import ConfigError, quoted
from agent_gym.renamed import renamed

Init = TypeVar("Init", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class PaperPreset:
    """How a policy plays a task in one paper or repository.

    `fixed` are arguments of the environment that define the protocol; no other value may be given for them. `budgets`
    are arguments too, such as turns and weights of the reward; values given with the protocol replace them.
    """

    source: str  # repository or paper, the files that were read, and their date or version
    ids: tuple[str, ...]  # of the environments
    fixed: Mapping[str, Any]
    budgets: Mapping[str, Any]
    rollout: Mapping[str, int] = field(default_factory=dict)  # budgets that a rollout has to set, in tokens
    split: str = "test"  # of evaluations
    turn: str = "{}"  # a whole turn of the expert around its action
    about: tuple[str, str] | None = None  # descriptions of the tool and of its argument


def takes_protocol(known: Mapping[str, PaperPreset]) -> Callable[[Init], Init]:
    """Decorate the constructor of an environment, so that `protocol="name"` fills in the arguments of the preset.

    Raises:
        ConfigError: from the constructor, for an unknown protocol, or another value of a fixed argument.
    """

    def decorate(init: Init) -> Init:
        @functools.wraps(init)
        def filled(self: Any, *args: Any, protocol: str | None = None, **given: Any) -> None:
            if protocol is not None:
                given = _filled(known, protocol, given)
                self.explains_tools = False  # the prompt does
            init(self, *args, protocol=protocol, **given)

        return filled  # type: ignore[return-value]

    return decorate


def _filled(known: Mapping[str, PaperPreset], name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if name not in known:
        raise ConfigError(f"protocol is {name!r}; allowed: {', '.join(known)}, or None")
    fixed = known[name].fixed
    for argument in fixed.keys() & given.keys():
        if given[argument] != fixed[argument]:
            raise ConfigError(
                f"protocol={name!r} and {argument}={quoted(given[argument])}: the protocol sets {argument} itself "
                f"({quoted(fixed[argument])}); leave one of the two out, and play {' or '.join(known[name].ids)}"
            )
    return {**known[name].budgets, **given, **fixed}


def prompt_file(module_file: str, name: str) -> str:
    """Return the text of the file `name` in the folder of the module `module_file`."""
    return (Path(module_file).parent / name).read_text(encoding="utf-8")


__getattr__ = renamed(__name__, {"Protocol": "PaperPreset"})
