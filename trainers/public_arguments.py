"""The arguments that a trainer writes beside a model, `training_args.bin`, without the secrets in them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from agent_gym.public import is_secret, public


def public_arguments(args: Any) -> Any:
    """Return a copy of the arguments of a trainer: texts and lists go through `public`, and secrets are None."""
    made = copy.copy(args)
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if isinstance(value, str | list | tuple | dict):
            # None: a token that is loaded again as a mask would be sent to the hub.
            object.__setattr__(made, field.name, None if is_secret(field.name) else public(value))
    return made
