"""What a CPU gains by its cores and by bfloat16, for a tiny model and for SmolLM2: `agent_gym/threads.py`.

One forward and backward pass over rows of random tokens with the loss of a language model, by torch alone, as each
update of the trainers and each step of imitation has it: with one thread and with all cores, in float32 and under
bfloat16 autocast. The settings take turns, so that a busy machine slows all of them.

    python benchmarks/cores.py [--busy N] [--quick] [--json FILE]

`--busy N` starts N processes that do nothing but use a core, as environments, tests or other programs do. SmolLM2 comes
from `agent-gym prepare smollm2`; without it the tiny model stands alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

os.environ.pop("OMP_NUM_THREADS", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import _common
import torch
from transformers import AutoModelForCausalLM

from agent_gym.errors import ConfigError
from agent_gym.models import model_source
from agent_gym.speedrun.tiny import make_tiny_model
from agent_gym.threads import cores

ROWS, TOKENS = 3, 100
"""A quarter of a step of imitation of the preset smollm2: a CPU without instructions for bfloat16 takes long enough."""


def models() -> Iterator[tuple[str, Any]]:
    """The models by name, those that are here."""
    with tempfile.TemporaryDirectory() as folder:
        yield "tiny", AutoModelForCausalLM.from_pretrained(make_tiny_model(folder, "AgentR1/Bisect-v0", {}))
    try:
        yield "SmolLM2", AutoModelForCausalLM.from_pretrained(model_source("smollm2"), dtype=torch.float32)
    except ConfigError as error:
        print(f"without SmolLM2: {error}")


def seconds(model: Any, threads: int, bf16: bool, repeats: int) -> float:
    """Seconds of one pass forward and backward, the mean of some."""
    torch.set_num_threads(threads)
    ids = torch.randint(model.config.vocab_size, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    begin = time.perf_counter()
    for _ in range(repeats):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        model.zero_grad()
    return (time.perf_counter() - begin) / repeats


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that use a core each, for as long as the context lasts."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes beside it that use a core each")
    args = parser.parse_args()
    facts = _common.provenance(["torch", "transformers"])
    _common.print_provenance(facts)
    native = torch.cpu._is_avx512_bf16_supported()
    print(f"{cores()} cores, {args.busy} busy processes; instructions for bfloat16: {'yes' if native else 'no'}")
    settings = [(threads, bf16) for bf16 in (False, True) for threads in (1, cores())]
    measured = []
    for name, model in models():
        size, tiny = sum(weight.numel() for weight in model.parameters()), name == "tiny" and not args.quick
        rounds, repeats = (3, 20) if tiny else (1, 1)
        times: dict[tuple[int, bool], list[float]] = {setting: [] for setting in settings}
        with busy(args.busy):
            seconds(model, 1, False, 1)
            for _ in range(rounds):
                for setting in settings:
                    times[setting].append(seconds(model, *setting, repeats))
        taken = {setting: _common.median(found) for setting, found in times.items()}
        rows = [
            (f"{threads} threads, {'bfloat16' if bf16 else 'float32'}", one, taken[settings[0]] / one)
            for (threads, bf16), one in taken.items()
        ]
        print(f"\n{name}, {size / 1e6:.1f}M parameters, {ROWS} rows of {TOKENS} tokens, median of {rounds}")
        _common.print_table(("", "seconds", "times the first"), rows)
        measured.append({"model": name, "parameters": size, "rows": rows})
    _common.write_json(args.json, facts=facts, busy=args.busy, measured=measured)


if __name__ == "__main__":
    main()
