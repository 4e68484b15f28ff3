"""A run that is resumed from a damaged checkpoint ends at once in a sentence, or trains as before.

Checkpoints are damaged as others damage them: a copy that broke off, a full disk, a file that was left behind, a state
that a tool has written again.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from json_mutations import mutated  # noqa: E402
from trainer_tools import make_trainer  # noqa: E402

from agent_gym.errors import AgentGymError, ConfigError  # noqa: E402
from agent_gym.trainers.resumed import check_checkpoint  # noqa: E402

OPTIONS: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "optim": "adamw_torch"}
STATE = "trainer_state.json"
NEEDED = ("config.json", "model.safetensors", STATE)
FRESH = {"optimizer.pt": "optimizer", "scheduler.pt": "schedule", "rng_state.pth": "random numbers"}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a checkpoint after its first step."""
    folder = tmp_path_factory.mktemp("run")
    make_trainer(str(folder), **OPTIONS, max_steps=1).train()
    return folder


def resumed(folder: Path) -> Any:
    trainer = make_trainer(str(folder), **OPTIONS, max_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    return trainer


def copied(run: Path, place: Path) -> tuple[Path, Path]:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run, place)
    return place, place / "checkpoint-1"


def test_each_file_that_is_cut_or_gone_is_named(run: Path, tmp_path: Path) -> None:
    files = sorted(path.name for path in (run / "checkpoint-1").iterdir() if path.is_file())
    assert {*NEEDED, *FRESH} <= {*files}
    for name in files:
        for cut in ("gone", "empty", "half"):
            folder, checkpoint = copied(run, tmp_path / "broken")
            content = (checkpoint / name).read_bytes()
            (checkpoint / name).write_bytes(b"" if cut == "empty" else content[: len(content) // 2])
            if cut == "gone":
                (checkpoint / name).unlink()
            if name in NEEDED or (name in FRESH and cut != "gone"):
                with pytest.raises(ConfigError) as found:  # by a trainer, too, before it begins
                    resumed(folder) if cut == "gone" else check_checkpoint(checkpoint)
                reason = "without weights" if (name, cut) == ("model.safetensors", "gone") else name
                assert reason in str(found.value) and "start anew in another --output_dir" in str(found.value)
            elif name in FRESH:
                with pytest.warns(UserWarning, match=f"has no file of the {FRESH[name]}, which begin anew"):
                    resumed(folder)
            elif cut == "gone" and name in ("agent_gym.json", "training_args.bin"):
                resumed(folder)


def test_an_adapter_is_checked_without_its_base(run: Path, tmp_path: Path) -> None:
    """The base that the adapter names may have moved; the settings of the resumed run name it."""
    _, checkpoint = copied(run, tmp_path / "adapter")
    for name in ("config.json", "model.safetensors"):
        (checkpoint / name).rename(checkpoint / f"adapter_{name}")
    about = {"base_model_name_or_path": str(tmp_path / "gone"), "peft_type": "LORA"}
    (checkpoint / "adapter_config.json").write_text(json.dumps(about))
    check_checkpoint(checkpoint)
    (checkpoint / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="adapter_model.safetensors is not a whole file of weights"):
        check_checkpoint(checkpoint)
    (checkpoint / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match="it has no weights of an adapter"):
        check_checkpoint(checkpoint)


def test_a_critic_is_checked(run: Path, tmp_path: Path) -> None:
    folder, checkpoint = copied(run, tmp_path / "ppo")
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "critic").mkdir()
    (checkpoint / "critic" / "model.safetensors").write_bytes(weights)
    check_checkpoint(checkpoint)
    (checkpoint / "critic" / "model.safetensors").write_bytes(weights[:-7])
    with pytest.raises(ConfigError, match="critic/model.safetensors is not a whole file of weights"):
        resumed(folder)


@pytest.mark.parametrize("name", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_shares_of_several_processes_are_checked(name: str, run: Path, tmp_path: Path) -> None:
    _, checkpoint = copied(run, tmp_path / "shares")
    (checkpoint / "pytorch_model_fsdp_0").mkdir()
    values = {"model": {"a": torch.zeros(300), "b": torch.ones(7, 3)}}
    for place in ("pytorch_model_fsdp_0", "optimizer_0"):
        torch.distributed.checkpoint.save(values, checkpoint_id=checkpoint / place, no_dist=True)
    check_checkpoint(checkpoint)
    (share,) = (checkpoint / name).glob("*.distcp")
    whole = share.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b""):
        share.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{name}/{share.name} is not a whole file"):
            check_checkpoint(checkpoint)
    share.unlink()
    with pytest.raises(ConfigError, match=f"{name}/{share.name} is not a whole file"):
        check_checkpoint(checkpoint)
    (checkpoint / name / ".metadata").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be resumed from"):
        check_checkpoint(checkpoint)
    (checkpoint / name / ".metadata").unlink()
    with pytest.raises(ConfigError, match=f"{name} has no .metadata"):
        check_checkpoint(checkpoint)


@pytest.mark.parametrize("name", ["global_step1/mp_rank_00_model_states.pt", "pytorch_model_fsdp.bin", "optimizer.bin"])
def test_archives_of_several_processes_are_checked(name: str, run: Path, tmp_path: Path) -> None:
    _, checkpoint = copied(run, tmp_path / "archives")
    (checkpoint / name).parent.mkdir(exist_ok=True)
    torch.save({"a": torch.zeros(300)}, checkpoint / name)
    check_checkpoint(checkpoint)
    (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:-30])
    with pytest.raises(ConfigError, match=f"{name} is not a whole file"):
        check_checkpoint(checkpoint)


def test_another_checkpoint_is_named_as_the_cure(run: Path, tmp_path: Path) -> None:
    folder, checkpoint = copied(run, tmp_path / "broken")
    shutil.copytree(checkpoint, folder / "checkpoint-2")
    (folder / "checkpoint-2" / STATE).write_text("{")
    with pytest.raises(ConfigError, match=r"checkpoint-2 cannot be resumed from: .*another \(checkpoint-1"):
        resumed(folder)


@pytest.mark.parametrize("rounds", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_mutation_of_the_state_is_a_raw_error(rounds: int, run: Path, tmp_path: Path) -> None:
    good, ended = json.loads((run / "checkpoint-1" / STATE).read_text()), Counter[str]()
    for number in range(rounds):
        folder, checkpoint = copied(run, tmp_path / "broken")
        text = mutated(good, random.Random(number))
        (checkpoint / STATE).write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            make_trainer(str(folder), **OPTIONS, max_steps=2).train(resume_from_checkpoint=True)
            ended["trained"] += 1
        except AgentGymError as error:
            assert STATE in str(error) and "could not be written" not in str(error), (number, error)
            ended["told"] += 1
    assert min(ended["trained"], ended["told"]) > rounds // 8, ended
