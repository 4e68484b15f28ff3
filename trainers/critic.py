"""The critic: what the rest of an episode is worth, read off the hidden state after each token.

It lives inside the policy as the submodule `critic`, so that there is one model to wrap (DDP, FSDP, ZeRO), one
optimizer, one gradient clip and one checkpoint. Outside, nobody notices: saved folders, engines and PEFT see the
policy alone (`policy_only`), and a forward pass without `critic=` is the policy's own.

Two kinds:

    model   a backbone of its own, starting as a copy of the policy's. Twice the memory; what the critic learns cannot
            disturb the policy. The default.
    head    one linear layer on the policy's last hidden state. Nearly free; the trunk does not learn from the value
            loss, since values and words would pull at the same weights.
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

KINDS = ("model", "head")
READ = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "pixel_values", "image_grid_thw")
"""The arguments of a forward pass that say what is read; the others are for the policy's output."""
PREFIX = "critic."
FILE = "critic/model.safetensors"
"""Where the critic stands in a saved folder, beside the policy."""


class Critic(nn.Module):
    """A value for the state after each token.

    Args:
        hidden_size: width of the hidden states.
        backbone: a transformer without output layer, or None for a head on the policy's.
    """

    def __init__(self, hidden_size: int, backbone: nn.Module | None = None) -> None:
        """Start at zero everywhere: an untrained critic should say nothing rather than something random."""
        super().__init__()
        self.backbone: Any = backbone
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return values (B, T) float32 of hidden states (B, T, H)."""
        # In full precision: returns are regressed on, and bf16 has three digits.
        with torch.autocast(hidden_states.device.type, enabled=False):
            return self.head(hidden_states.to(self.head.weight.dtype)).squeeze(-1).float()


def make_critic(model: PreTrainedModel | str, kind: str, **init: Any) -> Critic:
    """Build the critic of a policy.

    Args:
        model: the policy before any adapter, or the id or folder it is loaded from.
        kind: one of `KINDS`.
        **init: arguments of `from_pretrained`.

    Raises:
        ConfigError: for an unknown kind, or a policy that already has an adapter.
    """
    if kind not in KINDS:
        raise ConfigError(f"critic is {kind!r}; allowed: {', '.join(KINDS)}")
    if hasattr(model, "peft_config"):
        raise ConfigError("the critic starts as a copy of the plain policy: hand in the model, and its peft_config")
    if kind == "head":
        config = AutoConfig.from_pretrained(model, **_shared(init)) if isinstance(model, str) else model.config
        return Critic(config.get_text_config().hidden_size)
    backbone = AutoModel.from_pretrained(model, **init) if isinstance(model, str) else copy.deepcopy(model.base_model)
    backbone.requires_grad_(True)
    return Critic(backbone.config.get_text_config().hidden_size, backbone)


def _shared(init: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that say where a model is, and not what to do with its weights."""
    return {name: init[name] for name in ("revision", "trust_remote_code") if name in init}


def attach(model: Any, critic: Critic) -> None:
    """Make the critic a part of the policy.

    From then on `model(..., critic="both")` returns (output, values) and `critic="only"` returns values, (B, T).

    Args:
        model: the policy, with its adapter if it has one.
        critic: what to attach.
    """
    inner = model.forward

    @functools.wraps(inner)
    def forward(self: Any, *args: Any, critic: str | None = None, **kwargs: Any) -> Any:
        if critic is None:
            return inner(*args, **kwargs)
        trunk = _trunk(self)
        seen = {name: kwargs[name] for name in READ if name in kwargs}
        if self.critic.backbone is not None:
            output = inner(*args, **kwargs) if critic == "both" else None
            hidden = self.critic.backbone(**seen, use_cache=False).last_hidden_state
        elif critic == "both":
            # The head reads the hidden states of the policy's own pass: caught where the trunk returns them.
            caught: list[torch.Tensor] = []
            hook = trunk.register_forward_hook(lambda _m, _i, result: caught.append(result.last_hidden_state))
            try:
                output = inner(*args, **kwargs)
            finally:
                hook.remove()
            hidden = caught[-1]
        else:
            output, hidden = None, trunk(**seen, use_cache=False).last_hidden_state
        if self.critic.backbone is None:
            hidden = hidden.detach()
        values = self.critic(hidden)
        return (output, values) if critic == "both" else values

    model.critic = critic
    model.forward = types.MethodType(forward, model)


def _trunk(model: Any) -> Any:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.base_model


@contextlib.contextmanager
def policy_only(model: Any) -> Iterator[Any]:
    """Take the critic out of an unwrapped policy for a while, for whoever saves, loads or lists the policy."""
    critic = model._modules.pop("critic", None)
    try:
        yield model
    finally:
        if critic is not None:
            model._modules["critic"] = critic


def without_critic(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the policy's part of a state dict."""
    return {name: value for name, value in state.items() if not name.startswith(PREFIX)}


def critic_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the critic's part of a state dict, under the critic's own names."""
    return {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}


def save_critic(state: dict[str, torch.Tensor], folder: str | Path) -> None:
    """Write the critic's state beside the policy."""
    path = Path(folder, FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tied weights would be refused, and views of one storage written twice.
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in state.items()}, path)


def load_critic(critic: nn.Module, folder: str | Path) -> None:
    """Read the critic's state from a saved folder.

    Raises:
        ConfigError: if there is none, or it belongs to another kind of critic.
    """
    path = Path(folder, FILE)
    if not path.is_file():
        raise ConfigError(f"there is no critic at {path}: was this folder saved by AgentPPOTrainer?")
    try:
        critic.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ConfigError(f"{path} holds another kind of critic: {error}") from error
