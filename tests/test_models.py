"""A model by any of its names: a folder, an adapter's folder, one that is broken, moved or not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
peft = pytest.importorskip("peft")

from trainer_tools import ENV, lora, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym import models  # noqa: E402
from agent_gym.cli.engine import build, load_tokenizer  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.models import adapter_base, adapter_folder, check_model, config_source, model_source  # noqa: E402
from agent_gym.plan.models import find_shape  # noqa: E402
from agent_gym.policies import Request, SamplingParams  # noqa: E402
from agent_gym.policies.loading import load_model, load_whole, whole_source  # noqa: E402
from agent_gym.trainers.critic import make_critic  # noqa: E402

IDS = torch.tensor([[5, 9, 30, 41, 7]])


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes something, as an SFT with LoRA leaves it."""
    folder = tmp_path_factory.mktemp("sft") / "adapter"
    torch.manual_seed(0)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder()), lora())
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder()).save_pretrained(folder)
    return folder


def edited(adapter: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(adapter, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(IDS).logits


# An adapter is a model.


def test_an_adapter_goes_on_training_from_where_it_was(adapter: Path, tmp_path: Path) -> None:
    start = load_model(str(adapter), dtype=torch.float32)
    trainer = make_trainer(tmp_path, model=str(adapter), max_steps=2, beta=0.1, save_strategy="steps", save_steps=2)
    before = weights(trainer.model)
    assert torch.equal(logits(start), logits(trainer.model))
    trainer.train()
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is the adapter as it was
    after = weights(trainer.model)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved and all("lora_" in name and ".default" in name for name in moved)
    assert adapter_base(tmp_path / "checkpoint-2") == model_folder()
    trainer.save_model(str(tmp_path / "end"))
    assert torch.equal(logits(load_model(str(tmp_path / "end"), dtype=torch.float32)), logits(trainer.model))
    assert trainer.args.model_init_kwargs == {"dtype": "float32"}


def test_a_critic_starts_from_the_adapter_and_its_base(adapter: Path, tmp_path: Path) -> None:
    critic = make_critic(str(adapter), "model", dtype=torch.float32)
    merged = load_whole(str(adapter), dtype=torch.float32)
    assert torch.equal(critic.backbone.eval()(IDS).last_hidden_state, merged.model.eval()(IDS).last_hidden_state)
    assert all(weight.requires_grad for weight in critic.parameters())
    make_trainer(tmp_path, model=str(adapter), ppo=True, max_steps=1).train()


def test_an_adapter_on_an_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is an adapter, and is trained further without .*--merge_adapter"):
        make_trainer(tmp_path, model=str(adapter), peft_config=lora())


def test_engines_plan_and_teachers_take_it(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "cache"))
    tokenizer, policy = build(str(adapter), "transformers", context=200)
    policy.submit(Request(0, IDS[0].tolist(), SamplingParams(max_tokens=4, temperature=0.0)))
    found: list[Any] = []
    while not found:
        found = policy.poll()
    expected = logits(load_model(str(adapter), dtype=torch.float32))[0, -1].argmax().item()
    assert found[0].token_ids[0] == expected and len(tokenizer) == 512
    whole = whole_source(str(adapter))
    assert Path(whole).is_relative_to(tmp_path / "cache") and adapter_folder(whole) is None
    merged = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    assert torch.allclose(logits(merged), logits(load_model(str(adapter), dtype=torch.float32)), atol=1e-5)
    stamp = (Path(whole) / "config.json").stat().st_mtime_ns
    assert whole_source(str(adapter)) == whole and (Path(whole) / "config.json").stat().st_mtime_ns == stamp
    assert find_shape(str(adapter)) == find_shape(model_folder())
    make_trainer(tmp_path / "run", teacher=str(adapter), max_steps=1).train()


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(adapter: Path, tmp_path: Path) -> None:
    bare = edited(adapter, tmp_path / "bare")
    for file in (*bare.glob("tokenizer*"), *bare.glob("chat_template*"), *bare.glob("special*")):
        file.unlink()
    assert load_tokenizer(str(bare)).chat_template == AutoTokenizer.from_pretrained(model_folder()).chat_template
    make_trainer(tmp_path / "run", model=str(bare), processing_class=None, max_steps=1).train()


def test_a_base_that_was_moved_with_its_adapter_is_found(adapter: Path, tmp_path: Path) -> None:
    run = edited(adapter, tmp_path / "run", base_model_name_or_path="/gone/run/tiny")
    shutil.copytree(model_folder(), run / "tiny")
    assert config_source(str(run)) == str(run / "tiny")
    checkpoint = edited(adapter, run / "checkpoint-3", base_model_name_or_path="/gone/run/tiny")
    assert adapter_base(checkpoint) == str(run / "tiny")
    assert torch.equal(logits(load_model(str(checkpoint))), logits(load_model(str(adapter))))


# What is no model.


def broken(adapter: Path, folder: Path) -> dict[str, tuple[Path, str]]:
    cure = "set base_model_name_or_path in"
    missing = edited(adapter, folder / "missing", base_model_name_or_path="/gone/base")
    nameless = edited(adapter, folder / "nameless", base_model_name_or_path=None)
    nested = edited(adapter, folder / "nested", base_model_name_or_path=str(adapter))
    light = edited(adapter, folder / "light")
    (light / "adapter_model.safetensors").unlink()
    half = edited(adapter, folder / "half")
    file = half / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    (folder / "run" / "checkpoint-9").mkdir(parents=True)
    (folder / "run" / "checkpoint-20").mkdir()
    bare, cut, pointer, garbled = (folder / name for name in ("bare", "cut", "pointer", "garbled"))
    for one in (bare, cut, pointer, garbled):
        shutil.copytree(model_folder(), one)
    (bare / "model.safetensors").unlink()
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:5000])
    (pointer / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (garbled / "config.json").write_text('{"model_type": ')
    shares = folder / "shares"
    shutil.copytree(model_folder(), shares)
    (shares / "model.safetensors").unlink()
    (shares / "pytorch_model_fsdp_0").mkdir()
    return {
        "missing": (missing, f"belongs to the model '/gone/base', which is not there: {cure}"),
        "nameless": (nameless, f"names no base model: {cure}"),
        "nested": (nested, "which is an adapter, too: merge that one first"),
        "light": (light, "has adapter_config.json and no weights of an adapter"),
        "half": (half, "is not a whole file of weights .*: copy or download it again"),
        "run": (folder / "run", "without config.json, so it holds no model; its last checkpoint does: .*checkpoint-20"),
        "bare": (bare, r"is a folder without weights \(\*\.safetensors\)"),
        "cut": (cut, r"model\.safetensors is not a whole file of weights \(5,000 bytes\)"),
        "pointer": (pointer, "is a pointer of Git LFS and no weights: git lfs pull fetches them"),
        "garbled": (garbled, r"config\.json cannot be read"),
        "shares": (shares, "in shares of several processes; agent-gym export model joins them"),
        "none": (folder / "nothing", "no model folder at"),
        "file": (bare / "config.json", "is a file; a model is a folder or a hub id"),
    }


def test_a_folder_that_is_no_model_is_one_line_everywhere(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = broken(adapter, tmp_path)
    for name, (folder, message) in cases.items():
        for loads in (check_model, load_tokenizer, load_model, load_whole):
            with pytest.raises(ConfigError, match=message):
                loads(str(folder))
        if name not in ("none", "file"):
            with pytest.raises(ConfigError, match=message):
                make_trainer(tmp_path / "out", model=str(folder))
        with pytest.raises(ConfigError, match="teacher is .* which cannot be loaded"):
            make_trainer(tmp_path / "out", teacher=str(folder))
    capsys.readouterr()
    for command in (["grpo", "AgentR1/GSM8K-v0", "--model_name_or_path"], ["eval", "AgentR1/GSM8K-v0", "--model"]):
        for name in ("missing", "cut", "run"):
            assert main([*command, str(cases[name][0])]) == 2
            [line] = [line for line in capsys.readouterr().err.splitlines() if "loading" not in line]
            assert line.startswith("agent-gym: ") and "Traceback" not in line


def test_a_dry_run_names_the_adapter_and_its_base(adapter: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["grpo", "AgentR1/GSM8K-v0", "--model_name_or_path", str(adapter), "--output_dir", str(tmp_path / "run")]
    assert main([*command, "--dry_run"]) == 0
    assert f"its adapter, on {model_folder()}" in capsys.readouterr().out
    assert main([*command, "--dry_run", "--use_peft"]) == 2
    assert "leave --use_peft (peft_config) out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_names_with_a_prefix_are_found_by_what_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.SOURCES, "trained", lambda name: f"/models/{name}")
    assert model_source("trained:mine") == "/models/mine"
    assert model_source("other:mine") == "other:mine"
    with pytest.raises(ConfigError, match="no model folder at trained:mine"):
        check_model("trained:mine")
    assert ENV  # registered
