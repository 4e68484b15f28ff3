"""What an optimizer step costs: `AgentGRPOTrainer` beside stock `trl.GRPOTrainer`, on identical single-turn rows.

Both trainers get the same tiny model and the same finished rows in place of their rollouts, TRL in its own layout
(prompts padded on the left, completions on the right), agent_gym in its own (`trainers/batch.py`). Each computes its
own loss. Timed is everything between the rows and the new weights: `training_step` and the step of the optimizer. The
sides take turns, so that a busy machine slows both. The losses are compared: a faster step that computes something else
would be no result.

    python benchmarks/train_step.py [--quick] [--json FILE]

With `--openings` the rows of a group begin with the same tokens, as those of a real group do. `AgentGRPOTrainer`
computes them once; beside it stand TRL, the same trainer with padded rows, and rows that share nothing. `--model
FOLDER` takes another model than the tiny one, and `--rows N` other than 48 rows.

With `--cuts` the same step of `AgentGRPOTrainer` alone, on rows as multi-turn episodes give them, whose lengths differ
by a factor of 16. They are cut into passes in three ways, with the same budget of tokens for the largest pass: equal
numbers of rows, rows filled up to the budget, and packed rows.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import _common
import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

from agent_gym.rollout import Row
from agent_gym.speedrun.tiny import make_tiny_model
from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset
from agent_gym.trainers.batch import TrainingEpisode, TrainingRow, collate
from agent_gym.trainers.losses import loss_weights
from agent_gym.transcript import Span

ENV = "AgentR1/GSM8K-v0"
BARE = {"system_prompt": ""}


Rows = list[tuple[list[int], list[int], float]]


def make_rows(n_rows: int, vocabulary: int, seed: int = 0) -> Rows:
    """(prompt ids, completion ids, advantage) of single-turn rows; lengths as in the embedded GSM8K."""
    rng = random.Random(seed)
    return _rows([(rng.randint(40, 80), rng.randint(8, 64)) for _ in range(n_rows)], vocabulary, rng)


def make_uneven_rows(n_rows: int, vocabulary: int, shortest: int, longest: int, seed: int = 0) -> Rows:
    """The same for episodes of very different lengths: log-uniform between two bounds, half of a row sampled."""
    rng = random.Random(seed)
    lengths = [round(shortest * (longest / shortest) ** rng.random()) for _ in range(n_rows - 1)] + [longest]
    return _rows([(length - length // 2, length // 2) for length in lengths], vocabulary, rng)


def _rows(lengths: list[tuple[int, int]], vocabulary: int, rng: random.Random) -> Rows:
    """Rows of random tokens with good and bad ones in turn."""

    def write(n: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(n)]

    return [(write(prompt), write(answer), 1.0 if i % 2 else -1.0) for i, (prompt, answer) in enumerate(lengths)]


def stock_batch(rows: Rows, pad_id: int) -> dict[str, torch.Tensor]:
    """The rows as `trl.GRPOTrainer` lays them out."""
    prompts = [torch.tensor(prompt) for prompt, _, _ in rows]
    completions = [torch.tensor(completion) for _, completion, _ in rows]
    mask = pad([torch.ones_like(x) for x in completions], padding_value=0)
    return {
        "prompt_ids": pad(prompts, padding_value=pad_id, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(x) for x in prompts], padding_value=0, padding_side="left"),
        "completion_ids": pad(completions, padding_value=pad_id),
        "completion_mask": mask,
        "advantages": torch.tensor([advantage for _, _, advantage in rows]),
        "num_items_in_batch": mask.sum(),
    }


def agent_batch(rows: Rows, pad_id: int) -> dict[str, torch.Tensor]:
    """The same rows as `AgentGRPOTrainer` lays them out: episodes of one step."""
    episodes = []
    for number, (prompt, completion, _) in enumerate(rows):
        row, stop = Row(), len(prompt) + len(completion)
        row.extend(prompt + completion, [Span(0, len(prompt), "user", 0), Span(len(prompt), stop, "agent", 0)])
        episodes.append(
            TrainingEpisode(number, number, True, [TrainingRow.of(row)], outcome=[0.0], process=[0.0], anchors=[0])
        )
    batch = collate(episodes, len(rows) + 1, pad_id)
    mask = batch["action_mask"]
    advantages = torch.tensor([advantage for _, _, advantage in rows] + [0.0])
    batch["advantages"] = advantages[:, None] * mask
    batch["weights"] = loss_weights(mask, batch["step_of"], batch["episode_of"], "token")
    return batch


def settings(n_rows: int, bf16: bool = False) -> dict[str, Any]:
    """What all trainers have in common: one step on the CPU with weights in float32, nothing written."""
    return {
        "per_device_train_batch_size": n_rows,
        "num_generations": 8,
        "max_steps": 1,
        "learning_rate": 1e-4,
        "bf16": bf16,
        "use_cpu": True,
        "use_vllm": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "model_init_kwargs": {"dtype": "float32"},
    }


def make_trainers(
    folder: Path, n_rows: int, scratch: Path | None = None, rows: Rows | None = None, bf16: bool = False
) -> dict[str, Any]:
    """Both trainers on the same model, with the rows in place of their rollouts, after one step to warm up."""
    scratch = scratch or folder
    common = settings(n_rows, bf16)
    stock = GRPOTrainer(
        str(folder),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=GRPOConfig(str(scratch / "stock"), loss_type="dapo", **common),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * n_rows),
    )
    ours = AgentGRPOTrainer(
        str(folder),
        args=AgentGRPOConfig(str(scratch / "ours"), trajectories_per_step=0, **common),
        train_dataset=task_dataset(ENV, BARE, tasks=n_rows),
    )
    rows = rows or make_rows(n_rows, 700)
    for trainer, layout in ((stock, stock_batch), (ours, agent_batch)):
        warm_up(trainer, layout(rows, trainer._tokenizer.pad_token_id))
    return {"trl": stock, "agent_gym": ours}


def warm_up(trainer: Any, batch: dict[str, torch.Tensor]) -> None:
    """Put a batch in the place of all rollouts, and make one step."""
    trainer._generate_and_score_completions = lambda inputs: dict(batch)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def one_step(trainer: Any) -> tuple[float, float]:
    """Seconds and loss of one optimizer step."""
    start = time.perf_counter()
    loss = trainer.training_step(trainer.model_wrapped, [{}], None)
    trainer.optimizer.step()
    trainer.model_wrapped.zero_grad()
    return time.perf_counter() - start, float(loss)


def compare_openings(
    model: str | None, repetitions: int, n_rows: int, opening: int, rest: int, bf16: bool
) -> dict[str, Any]:
    """Time rows of groups of eight that share their opening, and rows that share nothing, and print a table."""
    rng, measured, table = random.Random(0), {}, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(model or make_tiny_model(Path(name), ENV, BARE))
        for case, members in (("shared", 8), ("nothing shared", 1)):
            rows = _rows([(opening, rest)] * n_rows, 700, rng)
            rows = [(rows[i - i % members][0], answer, gain) for i, (_, answer, gain) in enumerate(rows)]
            trainers = make_trainers(folder, n_rows, Path(name), rows, bf16)
            ours = trainers["agent_gym"]
            if not ours.shares_prefixes:
                raise SystemExit("this model does not share openings")
            seconds: dict[str, list[float]] = {"trl": [], "padded": [], "agent_gym": []}
            for _ in range(repetitions):
                losses = {}
                for side in seconds:
                    ours.shares_prefixes = side == "agent_gym"
                    started = time.process_time()  # of the CPU: others may keep it waiting
                    _, losses[side] = one_step(trainers.get(side, ours))
                    seconds[side].append(time.process_time() - started)
                if max(losses.values()) - min(losses.values()) > (3e-2 if bf16 else 1e-3):
                    raise SystemExit(f"the sides compute different losses: {losses}")
            middle = {side: _common.median(values) for side, values in seconds.items()}
            gains = [middle[side] / middle["agent_gym"] for side in ("trl", "padded")]
            table.append([case, *middle.values(), *gains])
            measured[case] = {"seconds": seconds, "times_trl": gains[0], "times_padded": gains[1]}
    head = ["rows", "trl CPU s", "padded CPU s", "agent_gym CPU s", "times trl's speed", "times padded"]
    _common.print_table(head, table)
    kind = "bf16 autocast" if bf16 else "float32"
    print(f"\n{n_rows} rows of {opening} + {rest} tokens in groups of 8; {kind}; median of {repetitions}")
    return measured


def compare_cuts(repetitions: int, n_rows: int, longest: int) -> dict[str, Any]:
    """Time the same rows in passes that are cut in three ways, and print a table."""
    budget = 4 * longest
    cuts: dict[str, dict[str, Any]] = {
        "micro_batch_size": {"micro_batch_size": budget // longest},
        "micro_batch_tokens": {"micro_batch_tokens": budget},
        "packing": {"micro_batch_tokens": budget, "packing": True},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = make_tiny_model(Path(name), ENV, BARE)
        dataset = task_dataset(ENV, BARE, tasks=n_rows)
        rows = make_uneven_rows(n_rows, 700, longest // 16, longest)
        trainers = {}
        for cut, options in cuts.items():
            args = AgentGRPOConfig(str(folder / cut), trajectories_per_step=0, **settings(n_rows), **options)
            trainers[cut] = AgentGRPOTrainer(str(folder), args=args, train_dataset=dataset)
            warm_up(trainers[cut], agent_batch(rows, trainers[cut]._tokenizer.pad_token_id))
        seconds: dict[str, list[float]] = {cut: [] for cut in cuts}
        for _ in range(repetitions):
            losses = {}
            for cut, trainer in trainers.items():
                started = time.process_time()  # of the CPU: one thread computes, and others may keep it waiting
                _, losses[cut] = one_step(trainer)
                seconds[cut].append(time.process_time() - started)
            if max(losses.values()) - min(losses.values()) > 1e-4:
                raise SystemExit(f"the cuts compute different losses: {losses}")
        table, measured = [], {}
        tokens = sum(len(prompt) + len(answer) for prompt, answer, _ in rows)
        for cut, trainer in trainers.items():
            batch = trainer._buffered_inputs[0]
            widths = [(len(piece), batch["attention_mask"][piece].sum(1)) for piece in trainer._pieces(batch)]
            computed = sum(int(held.sum()) if cut == "packing" else n * int(held.max()) for n, held in widths)
            pairs = zip(seconds[cut], seconds["micro_batch_size"], strict=True)
            ratio = _common.median(mine / rows_alone for mine, rows_alone in pairs)
            measured[cut] = {"passes": len(widths), "padding": 1 - tokens / computed, "ratio": ratio}
            table.append([cut, *measured[cut].values()])
    _common.print_table(["cut by", "passes", "padding", "CPU time ratio"], table)
    print(f"\n{n_rows} rows of {longest // 16} to {longest} tokens, largest pass {budget}; ratio to micro_batch_size")
    return measured


def main() -> None:
    """Measure and print."""
    parser = _common.parser(__doc__)
    parser.add_argument("--cuts", action="store_true", help="compare ways to cut rows into passes")
    parser.add_argument("--openings", action="store_true", help="rows of groups, which begin with the same tokens")
    parser.add_argument("--model", metavar="FOLDER", help="of --openings, instead of the tiny model")
    parser.add_argument("--rows", type=int, default=48, metavar="N", help="of --openings, a multiple of 8")
    parser.add_argument("--bf16", action="store_true", help="of --openings, compute in bf16 (autocast)")
    options = parser.parse_args()
    repetitions = 3 if options.quick else 25
    facts = _common.provenance(["torch", "trl", "transformers", "accelerate"])
    _common.print_provenance(facts)
    if options.openings:
        sizes = (16, 40, 20) if options.quick else (options.rows, 200, 90)
        repetitions = 2 if options.quick or options.model else 5
        measured = compare_openings(options.model, repetitions, *sizes, options.bf16)
        _common.write_json(options.json, provenance=facts, openings=measured)
        return
    if options.cuts:
        n_rows, longest = (16, 128) if options.quick else (64, 512)
        measured = compare_cuts(2 if options.quick else 5, n_rows, longest)
        _common.write_json(options.json, provenance=facts, cuts=measured)
        return
    table = []
    measured = {}
    for n_rows in (16,) if options.quick else (32, 128):
        with tempfile.TemporaryDirectory() as name:
            trainers = make_trainers(make_tiny_model(Path(name), ENV, BARE), n_rows)
            seconds: dict[str, list[float]] = {side: [] for side in trainers}
            for _ in range(repetitions):
                losses = {}
                for side, trainer in trainers.items():
                    spent, losses[side] = one_step(trainer)
                    seconds[side].append(spent)
                if abs(losses["trl"] - losses["agent_gym"]) > 1e-4:
                    raise SystemExit(f"the sides compute different losses: {losses}")
        ratio = _common.median(ours / stock for ours, stock in zip(seconds["agent_gym"], seconds["trl"], strict=True))
        millis = {side: _common.median(values) * 1e3 for side, values in seconds.items()}
        table.append([f"{n_rows} rows", millis["trl"], millis["agent_gym"], ratio])
        measured[n_rows] = {"seconds": seconds, "ratio": ratio}
    _common.print_table(["one optimizer step", "trl ms", "agent_gym ms", "ratio"], table)
    print(f"\nratio: agent_gym / trl, median of {repetitions} pairs; goal: at most 1.05")
    _common.write_json(options.json, provenance=facts, rows=measured)


if __name__ == "__main__":
    main()
