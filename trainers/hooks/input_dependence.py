"""Whether the policy's text still depends on its prompt: the probe for template collapse.

RAGEN-2 (arXiv:2604.06268, section 2.2) splits the entropy of the policy's text, H(Z) = I(X;Z) + H(Z|X). The entropy
that training logs is about the second part. This part may stay high while the first falls to nothing: the policy then
writes many texts, and the same texts for every prompt. The probe scores each response under its own prompt and under
the other prompts of the rollout (section 2.3, in-batch cross-scoring), with the model of the trainer.

A response is the first turn of an episode with all its tokens, because the context of a later turn depends on earlier
turns. This is the paper's first-turn scope, without a parser that would cut out the reasoning. The probe runs between
two steps, draws no random number, and changes nothing in the steps. The trainer refuses
`probe_steps` for a model that reads images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from agent_gym.distributed import gather, gather_items
from agent_gym.trainers.batch import NOT_SAMPLED, TrainingEpisode, TrainingRow, collate
from agent_gym.trainers.model_probes import without_gradient

PROMPTS, RESPONSES = 8, 4
"""Most prompts of a measurement, and most responses to each. The paper has 8 prompts with 16 each (section 4.1)."""

TIE = 1e-3
"""Two scores within this many nats are the same, because a sum over tokens rounds differently in another batch."""

Response = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids of a prompt, and the ids of the response to it."""


def measures(scores: torch.Tensor, lengths: torch.Tensor, own: torch.Tensor) -> dict[str, float]:
    """Return the proxies of RAGEN-2, table 1, from a matrix of scores.

    Args:
        scores: (N, P) L[i, j] = log p(z_i | x_j), the logprob of all tokens of response i under prompt j, in nats.
        lengths: (N,) tokens of each response, at least 1.
        own: (N,) the prompt that each response answers.

    Returns:
        "probe/mutual_information": mean of L[i, own] - log mean_j exp L[i, j], in nats per response (MI-Seq-Est). It is
        about 0 if responses ignore their prompts, and at most log P. "probe/retrieval": share of responses that are
        likeliest under their own prompt (Retrieval-Acc). It is 1 / P by chance; prompts that tie share the hit.
        "probe/entropy": the conditional entropy H(Z|X), mean of -L[i, own] / length, in nats per token.
    """
    scores = scores.double()
    matched = scores.gather(1, own[:, None])[:, 0]
    marginal = scores.logsumexp(1) - math.log(scores.size(1))
    best = (scores >= scores.amax(1, keepdim=True) - TIE).double()
    hits = best.gather(1, own[:, None])[:, 0] / best.sum(1)
    return {
        "probe/mutual_information": (matched - marginal).mean().item(),
        "probe/retrieval": hits.mean().item(),
        "probe/entropy": -(matched / lengths).mean().item(),
    }


def first_turns(batch: dict[str, Any]) -> list[Response]:
    """Return the prompt and the first turn of the episode in each trained row of a batch that holds a first turn."""
    found = []
    for row in ((batch["step_of"] == 0) & (batch["weights"] > 0)).any(1).nonzero().view(-1).tolist():
        ids, mine = batch["input_ids"][row], (batch["step_of"][row] == 0).nonzero().view(-1)
        found.append((tuple(ids[: mine[0]].tolist()), tuple(ids[mine].tolist())))
    return found


def choose(responses: Sequence[Response]) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the first prompts, each with its first responses, up to `PROMPTS` and `RESPONSES`."""
    answers: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for prompt, response in responses:
        if prompt in answers or len(answers) < PROMPTS:
            answers.setdefault(prompt, []).append(response)
    return {prompt: given[:RESPONSES] for prompt, given in answers.items()}


def probe(trainer: Any, responses: Sequence[Response]) -> dict[str, float]:
    """Score responses under each other's prompts with the weights of a `RowTrainer`, and return the `measures`.

    The processes divide the rows. All processes have to take part, with the same responses. The result also has the
    number of prompts, as "probe/prompts". The result is empty for fewer than two prompts, which cannot be told apart.
    """
    answers = choose(responses)
    if len(answers) < 2:
        return {}
    written = [(i, response) for i, given in enumerate(answers.values()) for response in given]
    pairs = [(prompt, response) for _, response in written for prompt in answers]
    processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
    mine = [_row(*pair) for pair in pairs[rank::processes]]
    holder = TrainingEpisode(0, 0, True, mine, [0.0], [0.0], [0])
    n_rows = -(-len(pairs) // processes) + 1  # the same number in each process, and the dummy
    batch = collate([holder], n_rows, trainer._tokenizer.pad_token_id)
    with without_gradient(trainer.model):
        logps = trainer._score(trainer.model, batch, critic=False).logps
    totals = logps.sum(1)[: len(mine)].tolist()
    scores = torch.empty(len(pairs), dtype=torch.float64)
    for part, found in enumerate(gather(totals)):
        scores[part::processes] = torch.tensor(found, dtype=torch.float64)
    own = torch.tensor([i for i, _ in written])
    lengths = torch.tensor([len(response) for _, response in written])
    return measures(scores.view(len(written), len(answers)), lengths, own) | {"probe/prompts": float(len(answers))}


def _row(prompt: Sequence[int], response: Sequence[int]) -> TrainingRow:
    steps = [NOT_SAMPLED] * len(prompt) + [0] * len(response)
    return TrainingRow(np.array([*prompt, *response]), np.array(steps), np.zeros(len(steps), np.float32))


class InputDependenceCallback(TrainerCallback):
    """Probes the responses of the last rollout once in `every` optimizer steps, and logs the result with the step."""

    def __init__(self, trainer: Any, every: int) -> None:
        self._trainer, self._every = trainer, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every:
            return
        started, trainer = time.perf_counter(), self._trainer
        found = probe(trainer, gather_items(first_turns(trainer._generated)))
        trainer.record(found | {"time/probe": time.perf_counter() - started})


def attach(trainer: Any) -> None:
    """Attach with `probe_steps`."""
    if trainer.args.probe_steps:
        trainer.add_callback(InputDependenceCallback(trainer, trainer.args.probe_steps))
