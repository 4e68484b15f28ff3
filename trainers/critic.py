"""The critic: it predicts the return of the rest of an episode from the hidden state after each token.

The critic is the submodule `critic` of the policy, so there is one model to wrap (DDP, FSDP, ZeRO), one optimizer and
one checkpoint. Saved folders, engines and PEFT see the policy alone (`policy_only`).

    model   a separate backbone, first a copy of the policy's: twice the memory. The default.
    head    one linear layer on the policy's last hidden state. It costs almost nothing. The value loss does not
            train the trunk, since values and words would pull at the same weights.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from agent_gym.errors import ConfigError
from agent_gym.models import adapter_folder, check_model, model_source
from agent_gym.policies.loading import load_whole
from agent_gym.trainers.forward import base_model_of

READ = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "pixel_values", "image_grid_thw")
"""The arguments of a forward pass that are its input; the other arguments concern the policy's output."""
PREFIX = "critic."
FILE = "critic/model.safetensors"
"""The path of the critic in the folder of a saved policy."""


class Critic(nn.Module):
    """A head that gives a value after each token, on a `backbone` or, if None, on the policy's hidden states."""

    def __init__(self, hidden_size: int, backbone: nn.Module | None = None) -> None:
        """Start at zero everywhere, so that an untrained critic predicts 0 and not a random number."""
        super().__init__()
        self.backbone: Any = backbone
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return values (B, T) float32 of hidden states (B, T, H)."""
        # In full precision: the head is regressed on returns, and bf16 has three digits.
        with torch.autocast(hidden_states.device.type, enabled=False):
            return self.head(hidden_states.to(self.head.weight.dtype)).squeeze(-1).float()


def make_critic(model: PreTrainedModel | str, kind: str, **init: Any) -> Critic:
    """Build the critic of a policy, "model" or "head"; raises `ConfigError` for a policy that already has an adapter.

    `model` is the policy, or an id or folder from which it is loaded with `init`, the arguments of `from_pretrained`.
    """
    if hasattr(model, "peft_config"):
        raise ConfigError("the critic starts as a copy of the plain policy: hand in the model, and its peft_config")
    if isinstance(model, str):
        check_model(model)
        # For a policy that continues from an adapter, the critic starts from the base model and the adapter.
        model = load_whole(model, **init) if adapter_folder(model) is not None else model_source(model)
    if kind == "head":
        # Only the arguments that locate a model, without the arguments for its weights.
        where = {name: init[name] for name in ("revision", "trust_remote_code") if name in init}
        config = AutoConfig.from_pretrained(model, **where) if isinstance(model, str) else model.config
        return Critic(config.get_text_config().hidden_size)
    backbone = AutoModel.from_pretrained(model, **init) if isinstance(model, str) else copy.deepcopy(model.base_model)
    backbone.requires_grad_(True)
    return Critic(backbone.config.get_text_config().hidden_size, backbone)


def attach(model: Any, critic: Critic) -> None:
    """Make the critic a part of the policy, which may have an adapter.

    From then on `model(..., critic=True)` returns (output, values), values (B, T).
    """
    inner = model.forward

    @functools.wraps(inner)
    def forward(self: Any, *args: Any, critic: bool = False, **kwargs: Any) -> Any:
        if not critic:
            return inner(*args, **kwargs)
        if self.critic.backbone is not None:
            seen = {name: kwargs[name] for name in READ if name in kwargs}
            output = inner(*args, **kwargs)
            return output, self.critic(self.critic.backbone(**seen, use_cache=False).last_hidden_state)
        # The head reads the hidden states of the policy's forward pass, which a hook catches when the trunk returns
        # them.
        caught: list[torch.Tensor] = []
        hook = base_model_of(self).base_model.register_forward_hook(
            lambda _m, _i, result: caught.append(result.last_hidden_state),
            prepend=True,  # before other hooks select positions for the output layer
        )
        try:
            output = inner(*args, **kwargs)
        finally:
            hook.remove()
        return output, self.critic(caught[-1].detach())

    model.critic = critic
    model.forward = types.MethodType(forward, model)


@contextlib.contextmanager
def policy_only(model: Any) -> Iterator[Any]:
    """Take the critic out of an unwrapped policy for a while, to save, load or list the policy alone."""
    critic = model._modules.pop("critic", None)
    try:
        yield model
    finally:
        if critic is not None:
            model._modules["critic"] = critic


def save_critic(state: dict[str, torch.Tensor], folder: str | Path) -> None:
    """Write the critic's state into the folder of the saved policy."""
    path = Path(folder, FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    # safetensors refuses tied weights, and writes views of one storage twice.
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in state.items()}, path)


def load_critic(critic: nn.Module, folder: str | Path) -> None:
    """Read the critic's state from a saved folder; raise `ConfigError` for none or another kind."""
    path = Path(folder, FILE)
    if not path.is_file():
        raise ConfigError(f"there is no critic at {path}: was this folder saved by AgentPPOTrainer?")
    try:
        critic.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ConfigError(f"{path} holds another kind of critic: {error}") from error
