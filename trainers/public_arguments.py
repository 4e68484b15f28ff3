"""The arguments that a trainer writes beside a model, `training_args.bin`, without the secrets in them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from transformers import Trainer

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


class PublicArguments(Trainer):
    """A trainer whose `training_args.bin` holds no secrets; a person publishes it with the model."""

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        args = self.args
        self.args = public_arguments(args)
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.args = args
