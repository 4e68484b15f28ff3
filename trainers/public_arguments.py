"""`training_args.bin`, the arguments that a trainer writes next to a model, without secrets."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from agent_gym.public import is_secret, public


def public_arguments(args: Any) -> Any:
    """Return a copy of the arguments of a trainer: texts and lists go through `public`, and each secret is None."""
    made = copy.copy(args)
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if isinstance(value, str | list | tuple | dict):
            # None is used because a masked token, loaded again, would be sent to the hub.
            object.__setattr__(made, field.name, None if is_secret(field.name) else public(value))
    return made
