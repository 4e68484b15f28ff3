"""What accelerate offers for sequences that are too long for one device: tried here, and used by no trainer so far.

Two processes hold a half of a sequence each, with keys and values passed around (ring attention, arXiv:2310.01889).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import in_ranks, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.doctor.ranks import shard  # noqa: E402

TOKENS = 64


def whole(folder: str) -> tuple[Any, Any]:
    """Return the tokens, and the logprob of each that follows another, of one process."""
    ids = torch.randint(3, 512, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    logps = model(ids).logits.log_softmax(-1)[0, :-1]
    return ids, logps.gather(1, ids[0, 1:, None])[:, 0]


def halves(folder: str) -> tuple[Any, Any]:
    """Return the same of this process's half, and the gradient's norm of the embedding for the sum of all."""
    shard("fsdp2", Path(tempfile.gettempdir()), on_cpu=True)
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig

    accelerator = Accelerator(
        parallelism_config=ParallelismConfig(cp_size=2, dp_shard_size=1),
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
    )
    ids, _ = whole(folder)
    places, labels = torch.arange(TOKENS)[None], torch.cat([ids[:, 1:], ids[:, :1]], 1)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    buffers = [ids, places, labels]
    with accelerator.maybe_context_parallel(buffers=buffers, buffer_seq_dims=[1] * 3, no_restore_buffers=set(buffers)):
        logps = model(ids, position_ids=places).logits.log_softmax(-1).gather(2, labels[..., None])[0, :, 0]
        logps.sum().backward()
    return places[0].numpy(), logps.detach().numpy()


@pytest.mark.slow
def test_two_processes_with_a_half_of_a_sequence_each_find_its_logprobs() -> None:
    _, expected = whole(model_folder())
    found = torch.empty(TOKENS)
    for places, logps in in_ranks(halves, 2, model_folder()):
        assert len(places) == TOKENS // 2
        found[torch.from_numpy(places)] = torch.from_numpy(logps)
    assert (found[:-1] - expected).abs().max() < 1e-5
