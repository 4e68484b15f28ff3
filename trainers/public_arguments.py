"""The arguments of a trainer without secrets: in `training_args.bin`, and for trackers (TensorBoard, W&B, trackio)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from trl import SFTConfig

from agent_gym.public import is_secret, public


class ReportedArguments:
    """Arguments that trackers get without secrets; transformers masks the values whose names end in `_token` only."""

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments for trackers, and for nothing that is loaded again."""
        return public(super().to_dict())  # type: ignore[misc]  # of `TrainingArguments`


@dataclasses.dataclass
class ReportedSFTConfig(ReportedArguments, SFTConfig):
    """`trl.SFTConfig`, for trackers without secrets."""


def reported(args: SFTConfig) -> SFTConfig:
    """Return arguments of TRL that trackers get without secrets; of a class of the user's, the arguments themselves."""
    if type(args) is not SFTConfig:
        return args
    made = copy.copy(args)
    made.__class__ = ReportedSFTConfig
    return made


def public_arguments(args: Any) -> Any:
    """Return a copy of the arguments of a trainer: texts and lists go through `public`, and each secret is None."""
    made = copy.copy(args)
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if isinstance(value, str | list | tuple | dict):
            # None is used because a masked token, loaded again, would be sent to the hub.
            object.__setattr__(made, field.name, None if is_secret(field.name) else public(value))
    return made
