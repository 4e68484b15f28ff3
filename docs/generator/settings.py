"""The configuration reference: every field of the trainers' dataclasses with its default and its help, ours first."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

HEAD = """\
# Settings

What `AgentGRPOConfig` and `AgentPPOConfig` take, in Python, as `--flag` of `agent-gym grpo` and `agent-gym ppo`, or as
a key of their yaml file. This page is made from the dataclasses. What the settings mean together is in
[algorithms.md](algorithms.md) and [trainer.md](trainer.md).

"""


def page() -> str:
    """Write the page.

    Raises:
        ImportError: where the training stack is not installed.
    """
    from agent_gym.trainers import AgentGRPOConfig, AgentPPOConfig
    from agent_gym.trainers.settings import CriticSettings

    bases = [base for base in AgentGRPOConfig.__mro__ if base.__module__.startswith("agent_gym.")]
    ours = [name for base in bases for name in _annotated(base)]
    inherited = sorted({field.name for field in dataclasses.fields(AgentGRPOConfig)} - set(ours))
    return (
        f"{HEAD}## AgentGRPOConfig\n\n{_table(AgentGRPOConfig, ours)}\n"
        "## AgentPPOConfig\n\nThe same, and these, some of them with another default than above:\n\n"
        f"{_table(AgentPPOConfig, _annotated(CriticSettings))}\n"
        "## From TRL and Transformers\n\nBoth have these, too. `trainers/config.py` says which of them allow one value "
        f"only, and why.\n\n{_table(AgentGRPOConfig, inherited)}"
    )


def _annotated(base: type[Any]) -> list[str]:
    return list(vars(base).get("__annotations__", {}))


def _table(config: type[Any], names: list[str]) -> str:
    known = {field.name: field for field in dataclasses.fields(config)}
    fields = [known[name] for name in dict.fromkeys(names) if name in known]
    rows = [f"| `{field.name}` | {_default(field)} | {_help(field)} |" for field in fields]
    return "\n".join(["| name | default | what it is |", "|---|---|---|", *rows]) + "\n"


def _default(field: dataclasses.Field[Any]) -> str:
    import torch

    if field.default_factory is torch.cuda.is_available:
        value = True  # whatever machine makes the page
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        value = field.default
    else:
        return "required"
    return f"`{value!r}`".replace("|", "\\|")


def _help(field: dataclasses.Field[Any]) -> str:
    """Return the help text for a cell of a table: one line, no markup of its own."""
    text = re.sub(r"\s+", " ", str(field.metadata.get("help", ""))).strip().replace("%%", "%")  # argparse's spelling
    if field.name in ("bf16", "gradient_checkpointing"):
        text += " Without a GPU it is off."
    # Between backticks everything is literal already, and outside nothing may become HTML, emphasis or a link.
    parts = re.split(r"(`[^`]*`)", text)
    safe = [part if i % 2 else re.sub(r"([\\*_\[\]<>])", r"\\\1", part) for i, part in enumerate(parts)]
    return "".join(safe).replace("|", "\\|")
