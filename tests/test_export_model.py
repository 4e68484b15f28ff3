"""Exported models: the same logits to 1e-6 as the trained ones, with a card that is true; and the hub."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from cli_tools import complaint
from huggingface_hub import constants

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from model_server import free_port  # noqa: E402
from openai_tools import Server, serving  # noqa: E402
from peft import LoraConfig, PeftModel  # noqa: E402
from trainer_tools import ENV, make_trainer, model_folder  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.trainers import export_model, task_dataset  # noqa: E402
from agent_gym.trainers.checkpoints import provenance, read_provenance  # noqa: E402


def run(folder: Path, **options: Any) -> Any:
    """Train for two steps, save a checkpoint after each and the model at the end."""
    saved = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}
    trainer = make_trainer(folder, max_steps=2, learning_rate=0.02, **saved, **options)
    trainer.train()
    return trainer


def export(source: Path | str, out: Path, *flags: str) -> Path:
    assert main(["export", "model", str(source), str(out), *flags]) == 0
    return out


@torch.no_grad()
def logits(model: Any) -> Any:
    """Of random tokens."""
    ids = torch.randint(3, 500, (2, 40), generator=torch.Generator().manual_seed(0))
    return model.eval()(input_ids=ids).logits


def load(folder: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return model


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the trainer of a PPO run with a critic and evaluations, on a mixture of tasks."""
    folder = tmp_path_factory.mktemp("full")
    data = {"train_dataset": task_dataset(ENV, {"fail": 11}, tasks=8), "eval_dataset": task_dataset(ENV, tasks=4)}
    changes = {"critic": "head", "eval_strategy": "steps", "eval_steps": 1, "lam": 0.9, "epsilon_high": 0.3}
    trainer = run(folder, ppo=True, **data, **changes)
    trainer.save_model()
    return folder, trainer


@pytest.fixture(scope="module", params=["tied", "untied"])
def lora(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """The folder, the trainer and the base of a run with LoRA."""
    folder, base = tmp_path_factory.mktemp("lora"), model_folder(tied=request.param == "tied")
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights="gaussian")
    return folder, run(folder, model=base, peft_config=config), base


def test_a_whole_model_is_copied_bit_for_bit_without_what_is_the_trainer_s(
    full: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, trainer = full
    out = export(folder, tmp_path / "new" / "out")
    assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert torch.equal(logits(load(out)), logits(trainer.model))
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert not names & {"critic", "training_args.bin", "optimizer.pt", "trainer_state.json", "agent_gym.json"}
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template and GenerationConfig.from_pretrained(out).eos_token_id == [tokenizer.eos_token_id]
    first = folder / "checkpoint-1"
    out = export(first, tmp_path / "out", "--critic")
    critic = Path("critic", "model.safetensors")
    assert (out / critic).read_bytes() == (first / critic).read_bytes()
    load(out)  # which finds nothing unexpected


def test_an_adapter_is_merged_to_the_same_logits_or_stays_one(lora: tuple[Path, Any, str], tmp_path: Path) -> None:
    folder, trainer, base = lora
    out = export(folder, tmp_path / "merged", "--merge_adapter")
    wanted, plain = logits(trainer.model), logits(AutoModelForCausalLM.from_pretrained(base))
    assert (wanted - plain).abs().max() > 1e-2, "training has changed nothing"
    assert (logits(load(out)) - wanted).abs().max() < 1e-5  # the two sums have different orders
    # PEFT's own forward pass in double precision: what is left is one rounding of each merged weight.
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(folder / "checkpoint-2"))
    assert (logits(load(out).double()) - logits(adapted.double())).abs().max() < 1e-6
    assert not (out / "adapter_config.json").exists()
    assert load(out).config.tie_word_embeddings == trainer.model.config.tie_word_embeddings
    out = export(folder / "checkpoint-2", tmp_path / "adapter")
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(out))
    assert torch.equal(logits(adapted), wanted)
    assert "library_name: peft" in (out / "README.md").read_text() and not (out / "config.json").exists()


def test_the_card_is_what_the_run_has_written(full: tuple[Path, Any], tmp_path: Path) -> None:
    folder, trainer = full
    estimator = trainer.args.advantage_estimator
    first, last = read_provenance(folder / "checkpoint-1"), read_provenance(folder)
    assert (first["step"], last["step"], len(last["evaluations"])) == (1, 2, 2)
    assert last["environments"] == [{"env_id": ENV, "env_kwargs": {"fail": 11}, "split": "train", "tasks": 8}]
    assert last["settings"]["lam"] == 0.9 and last["settings"]["advantage_estimator"] == estimator
    assert last["settings"]["critic"] == "head" and last["settings"]["max_staleness"] == 0
    assert last["settings"]["epsilon_high"] == 0.3 and "scale_rewards" not in last["settings"]
    episodes = tmp_path / "eval.jsonl"
    command = ["eval", "AgentR1/GSM8K-v0", "--expert", "--episodes", "8", "--output", str(episodes)]
    assert main(command) == 0
    card = (export(folder, tmp_path / "my-model", "--eval", str(episodes)) / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "\n# my-model\n" in card and "# license: yours" in card
    assert f"trained by `AgentPPOTrainer` ({estimator}) for 2 steps" in card
    assert "| expert | AgentR1/GSM8K-v0 | test | 100.0% | 67.6% to 100.0% | 1.100 | 8 |" in card
    logged = [entry for entry in trainer.state.log_history if "eval_success" in entry][-1]
    low, high = logged["eval_success_low"], logged["eval_success_high"]
    assert "During training:" in card
    assert f"| 2 | {logged['eval_success']:.1%} | {low:.1%} to {high:.1%} |" in card
    assert f"| {ENV} |" in card and '| `{"fail": 11}` |' in card and f"| torch | {version('torch')} |" in card
    for text in (json.dumps(last), card):
        assert str(folder) not in text and model_folder() not in text
    card = (export(model_folder(), tmp_path / "no-run") / "README.md").read_text()
    assert "## Versions" in card and "## Settings" not in card and model_folder() not in card


def test_the_teacher_is_named_and_where_it_is_is_not(full: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, folder = full[1], Path(model_folder())
    monkeypatch.setattr(trainer.args, "sft_coef", 0.5)
    for given, shown in ((str(folder), folder.name), ("initial", "initial"), ("http://10.0.0.2:8000/v1", "a server")):
        monkeypatch.setattr(trainer.args, "teacher", given)
        settings = provenance(trainer)["settings"]
        assert (settings["teacher"], settings["sft_coef"]) == (shown, 0.5)


def test_mistakes_are_one_line_and_leave_nothing(
    full: tuple[Path, Any], lora: tuple[Path, Any, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")

    def wrong(*arguments: str) -> str:
        line = complaint(capsys, "export", "model", *arguments)
        assert not list(tmp_path.glob("out*"))
        return line

    assert "no folder at" in wrong("nowhere", out)
    assert "holds no model" in wrong(str(tmp_path), out)
    assert "no LoRA adapter" in wrong(str(full[0]), out, "--merge_adapter")
    assert "has no critic" in wrong(str(lora[0]), out, "--critic")
    assert "is there already" in complaint(capsys, "export", "model", str(full[0]), str(full[0]))
    (file := tmp_path / "file").touch()
    assert f"cannot write {file}/out: " in complaint(capsys, "export", "model", str(full[0]), str(file / "out"))
    assert "names no owner" in wrong(str(full[0]), out, "--push_to_hub", "model")
    assert "is not a name for the hub" in wrong(str(full[0]), out, "--push_to_hub", "a/b/c")
    shutil.copytree(lora[0] / "checkpoint-2", adapter := tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": "/gone"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert "belongs to the model '/gone', which is not there: set base" in wrong(str(adapter), out, "--merge_adapter")


# The hub.


class Hub(Server):
    """As much of the hub as its client needs to upload a folder: `files` are what was uploaded."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.files = 200, dict[str, bytes]()

    def read(self, body: bytes) -> Any:
        return [json.loads(line) for line in body.splitlines()]

    def answer(self, path: str, content: Any, key: str | None) -> tuple[int, Any]:
        if content is None:
            return self.status, {"id": "me/m", "sha": "0" * 40, "siblings": []}
        if "/preupload/" in path:
            paths = [file["path"] for file in content[0]["files"]]
            files = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            return self.status, {"files": files}
        values = [entry["value"] for entry in content if entry.get("key") == "file"]
        self.files |= {value["path"]: base64.b64decode(value["content"]) for value in values}
        url = "https://huggingface.co/me/m"
        commit = {"success": True, "commitOid": "0" * 40, "commitUrl": f"{url}/commit/0", "hookOutput": ""}
        return self.status, {"url": url, **commit}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A hub that the client reaches."""
    hub: Any = Hub()
    with serving(hub) as url:
        hub.api = huggingface_hub.HfApi(endpoint=url.removesuffix("/v1"), token="hf_test")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(export_model, "HfApi", lambda: hub.api)
        huggingface_hub.close_session()
        yield hub
        huggingface_hub.close_session()


def test_a_push_uploads_what_was_exported_or_names_the_cause_and_keeps_the_folder(
    full: tuple[Path, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hub: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = export(full[0], tmp_path / "out", "--push_to_hub", "me/m")
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert "\n# m\n" in hub.files["README.md"].decode()
    hub.status = 403

    def failed(name: str) -> str:
        line = complaint(capsys, "export", "model", str(full[0]), str(tmp_path / name), "--push_to_hub", "me/m")
        assert f"hf upload me/m {tmp_path / name}" in line
        load(tmp_path / name)
        return line

    assert "answered 403" in failed("refused")
    hub.api.endpoint = f"http://127.0.0.1:{free_port()}"
    assert "no hub within reach" in failed("away")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in failed("offline")
