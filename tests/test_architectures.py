"""Engine and loss agree in every architecture that transformers maps to a causal language model.

Each is built small, with random weights, and plays a rollout of episodes of three turns, whose prompts and answers
differ in length, with the transformers engine. The trainer then finds for each token the logprob that the engine had:
in padded rows, in rows that share their prefixes where the model may (`can_share_prefixes`), and in packed ones where
it may (`check_packing`). `python tests/test_architectures.py` writes the table of docs/architectures.md.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from architectures import FAILS, NAMES, STOPPED, UNBUILT, small  # noqa: E402
from trainer_tools import batches_of, logged, make_trainer, model_folder  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.model_probes import check_packing  # noqa: E402

TABLE = Path(__file__).resolve().parents[1] / "docs" / "architectures.md"
BUILT = [name for name in NAMES if name not in {**UNBUILT, **STOPPED, **FAILS}]
# One of each kind: attention, windows and caps, experts, a recurrence, both, positions that are learned, ALiBi.
USUAL = ("llama", "gemma2", "mixtral", "mamba", "qwen3_5_text", "gpt2", "xlstm")
# Kernels of a recurrence that bound their steps otherwise token by token than over a row.
LOOSE = {"zamba2": 0.03, "nemotron_h": 0.005}
TOLERANCE = 1e-3  # nats, float32 on both sides
SHOWN = 1e-5  # nats; smaller differences are not in the table


class Found(NamedTuple):
    """What a rollout and an update have shown."""

    worst: float  # nats by which a token's logprob differs between engine and loss
    way: str  # how the engine advances the model, see policies/stepping.py
    head: str
    shares: bool
    packs: bool


def examine(name: str, folder: str) -> Found:
    model, tokenizer = small(name), AutoTokenizer.from_pretrained(model_folder())
    tokenizer.bos_token = tokenizer.pad_token  # some configurations want one
    trainer = make_trainer(
        folder, model=model, policy=None, max_steps=1, learning_rate=0.0, max_turn_tokens=6,
        per_device_train_batch_size=6, num_generations=3, max_turns=3, env_kwargs={"patient": True},
        processing_class=tokenizer,
    )  # fmt: skip
    batches = batches_of(trainer)
    trainer.train()
    (batch,) = batches
    mask = batch["action_mask"]
    turns = [batch["step_of"][mask].eq(step).sum().item() for step in range(3)]
    assert all(turns), "three turns"
    lengths = {int(n) for n in batch["attention_mask"].sum(1)}
    assert len(lengths) > 2, "rows of unequal length"
    (kl,) = logged(trainer, "sampling/kl")
    assert abs(kl) < 1e-4
    (worst,) = logged(trainer, "sampling/logp_difference_max")
    spread = batch["engine_logps"][mask].std()
    assert spread > 0.1, "a wrong history would show"
    trainer.model.eval()
    shares, trainer.shares_prefixes = trainer.shares_prefixes, False
    if shares:  # the pass of the update had them
        padded = trainer._score(trainer.model_wrapped, batch).logps
        worst = max(worst, (padded - batch["engine_logps"]).abs()[mask].max().item())
    trainer.args.packing = True
    try:
        check_packing(trainer)
        packed = trainer._score(trainer.model_wrapped, batch).logps
        worst, packs = max(worst, (packed - batch["engine_logps"]).abs()[mask].max().item()), True
    except (ConfigError, RuntimeError):  # RuntimeError: a pass longer than the positions of the model
        packs = False
    way = trainer.scheduler.policy.way
    return Found(worst, way.described, "fused" if trainer.fused_lm_head else "its own", shares, packs)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in USUAL else pytest.mark.slow) for n in BUILT])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_engine_and_loss_agree(tmp_path: Path, name: str) -> None:
    found = examine(name, str(tmp_path))
    assert found.worst < LOOSE.get(name, TOLERANCE), found
    assert not (found.packs and name in ("mamba", "xlstm", "rwkv")), "a recurrence knows no rows"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("roformer", "megatron-bert") else pytest.mark.slow) for n in STOPPED]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_stops_where_they_do_not(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"engine and loss disagree .* of '{small(name).config.model_type}'"):
        examine(name, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_fails_does_so_before_its_first_step(tmp_path: Path, name: str) -> None:
    with pytest.raises((AttributeError, RuntimeError)):
        examine(name, str(tmp_path))


def test_every_architecture_is_built_or_has_a_reason_and_the_table_has_them_all() -> None:
    unknown = {*UNBUILT, *STOPPED, *FAILS} - set(NAMES)
    assert not unknown, f"transformers has no {unknown} any more"
    listed = re.findall(r"`([\w.-]+)`", TABLE.read_text().partition("<!-- the table -->\n")[2])
    assert sorted(listed) == NAMES, "run python tests/test_architectures.py"
    assert len(BUILT) >= 45


def place(name: str, found: Found | None) -> tuple[str, ...]:
    """The row of an architecture in the table: how it is sampled and read, or why it is not."""
    if found is None:
        reasons = {"not compared": UNBUILT, "stopped": STOPPED, "fails": FAILS}
        (text,) = (f"{what}: {why[name]}" for what, why in reasons.items() if name in why)
        return (text, "", "", "")
    head = "own" if found.head != "fused" else "fused"
    return found.way.split(",")[0] or "in batches", head, "shared" * found.shares, "yes" * found.packs


def entry(name: str, found: Found | None) -> str:
    """The name of an architecture with its largest difference, where it is above `SHOWN`."""
    shown = float(f"{found.worst:.0e}") if found else 0.0
    return f"`{name}`" + (f" {shown:.0e}".replace("e-0", "e-") if shown > SHOWN else "")


def table(known: dict[str, Found]) -> str:
    """A row for all architectures that are sampled and read alike, the most frequent first."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in NAMES:
        rows.setdefault(place(name, known.get(name)), []).append(entry(name, known.get(name)))
    lines = ["| sampled | output layer | openings | packing | architectures, largest difference in nats above 1e-5 |"]
    lines += ["|" + "---|" * 5]
    lines += [
        f"| {' | '.join([*row, ', '.join(names)])} |"
        for row, names in sorted(rows.items(), key=lambda one: -len(one[1]))
    ]
    return "\n".join(lines) + "\n"


def examine_all() -> dict[str, Found]:
    known = {}
    for name in BUILT:
        with tempfile.TemporaryDirectory() as folder:
            known[name] = examine(name, folder)
        print(entry(name, known[name]), *place(name, known[name]), file=sys.stderr, flush=True)
    return known


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    head, mark, _ = TABLE.read_text().partition("<!-- the table -->\n")
    TABLE.write_text(head + mark + table(examine_all()))
