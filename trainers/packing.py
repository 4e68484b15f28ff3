"""Rows one behind the other in one sequence, instead of one below the other with padding.

    padded   a a a a a a        packed   a a a a a a b b c c c
             b b . . . .                 0 1 2 3 4 5 0 1 0 1 2   position_ids
             c c c . . .

Where positions start anew a row begins, and the attention of each row ends there: transformers reads that off
`position_ids` when there is no attention mask. Flash attention then computes each row by itself. `sdpa` and `eager` get
a mask over the whole sequence, which is right, too, but grows with the square of the tokens of a pass. Other models
carry something from token to token that no mask holds back (the state of a state-space layer, a convolution), and would
let rows read each other; `PackingCheck` finds out by trying.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from agent_gym.errors import ConfigError

ROWS = (48, 16)
"""Tokens of the two rows that are tried: the first long enough to be heard in the second, if anything is."""


def pack(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Put the attended tokens of rows behind each other.

    Args:
        inputs: `input_ids`, `labels` and `attention_mask`, (B, T). The first label of a row must be -100, because the
            row before it would be asked for it.

    Returns:
        `input_ids`, `labels`, `position_ids` (1, N) for N attended tokens; no mask.
    """
    kept = inputs["attention_mask"].bool()
    positions = (kept.cumsum(1) - 1)[kept]
    return {
        "input_ids": inputs["input_ids"][kept][None],
        "labels": inputs["labels"][kept][None],
        "position_ids": positions[None],
        "attention_mask": None,
    }


def unpack(numbers: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Bring (1, N) numbers of attended tokens back to their rows, (B, T), 0 in padding. Gradients pass."""
    return numbers.new_zeros(attention_mask.shape).masked_scatter(attention_mask.bool(), numbers)


class PackingCheck(TrainerCallback):
    """Refuses, before the first rollout, a model that does not keep packed rows apart.

    Args:
        trainer: a `RowTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        """Try nothing yet: only now are weights being placed, and sharded ones need the wrapped model."""
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score a row behind two different ones; it must not notice.

        Raises:
            ConfigError: if it does, or if the model takes no positions.
        """
        model = self._trainer.model_wrapped
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                one, other = (self._second_row(model, seed) for seed in (0, 1))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self._refusal(f"it fails with {type(error).__name__}: {error}") from error
        finally:
            model.train(training)
        heard = (one - other).abs().max().item()
        # Nothing in exact arithmetic. Experts are given their tokens in groups, whose size moves the last digits.
        exact = self._trainer.model.dtype == torch.float32 and not self._trainer.accelerator.native_amp
        if not heard <= (1e-4 if exact else 0.02):
            raise self._refusal(f"another first row moves the logprobs of the second by {heard:.2g}")

    def _second_row(self, model: Any, seed: int) -> torch.Tensor:
        """Score two rows of random tokens, of which only the first depends on the seed; return the second's."""
        vocabulary = self._trainer.accelerator.unwrap_model(model).config.get_text_config().vocab_size
        device = self._trainer.accelerator.device
        width = max(ROWS)
        ids = [
            torch.randint(vocabulary, (width,), generator=torch.Generator().manual_seed(row_seed))
            for row_seed in (seed, 2)
        ]
        attended = torch.arange(width) < torch.tensor(ROWS)[:, None]
        sampled = attended & (torch.arange(width) > 0)
        batch = {"input_ids": torch.stack(ids), "attention_mask": attended.long(), "action_mask": sampled}
        scores = self._trainer._forward(model, {name: value.to(device) for name, value in batch.items()})
        parts = [scores.logps] if scores.values is None else [scores.logps, scores.values]
        return torch.cat([part[1, : ROWS[1]] for part in parts])

    def _refusal(self, why: str) -> ConfigError:
        config = self._trainer.accelerator.unwrap_model(self._trainer.model).config
        return ConfigError(
            f"packing does not work with {config.model_type!r} and attention {config._attn_implementation!r}: {why}. "
            "Leave packing out; micro_batch_tokens keeps padding small. Packed rows need attention that starts anew "
            "where position_ids do: flash_attention_2, sdpa, eager or flex_attention, and no state-space layers"
        )
