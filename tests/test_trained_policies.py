"""The policies that come with the package: their weights, and their numbers, which anyone gets again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.data import MODELS, cache_folder
from agent_gym.models import check_model, model_source
from agent_gym.registry.trained import FOLDER, arguments_of_training, trained_policies
from agent_gym.speedrun.presets import PRESETS

NAMES = sorted(trained_policies())


def prepared() -> bool:
    return (cache_folder() / "smollm2" / MODELS["smollm2"]).is_dir()


def test_an_adapter_without_its_base_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="the model 'smollm2' is not in .* yet; to get it: agent-gym prepare smollm2"):
        check_model("trained:zero")


def test_there_are_policies_and_each_is_whole() -> None:
    assert "bisect" in NAMES
    for name in NAMES:
        facts, folder = trained_policies()[name], Path(model_source(f"trained:{name}"))
        adapter = (folder / "adapter_config.json").is_file()
        if not adapter or prepared():
            check_model(f"trained:{name}")
        weights = folder / ("adapter_model.safetensors" if adapter else "model.safetensors")
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == facts["sha256"]
        assert facts["command"] == f"agent-gym speedrun --preset {name} --seed {facts['seed']}"
        assert PRESETS[name].env_id == facts["env_id"] and (PRESETS[name].lora is not None) == adapter
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert size < 1_500_000, f"{name} has {size} bytes, and every installation carries them"
        texts = [file.read_text(encoding="utf-8") for file in folder.iterdir() if file.suffix == ".json"]
        assert not any(word in text for text in texts for word in ("/home/", "/root/", "/tmp/"))
    assert {folder.name for folder in FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", ["bisect", *(pytest.param(one, marks=pytest.mark.slow) for one in NAMES)])
def test_a_policy_has_its_published_success(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    facts = trained_policies()[name]
    if PRESETS[name].model == "smollm2" and not prepared():
        pytest.skip("SmolLM2 is not here: run agent-gym prepare smollm2")
    greedy = next(one for one in facts["results"] if one["decoding"] == "greedy")
    words = ["eval", facts["env_id"], "--model", f"trained:{name}", "--split", facts["split"], "--json"]
    episodes = greedy["episodes"] if request.node.get_closest_marker("slow") else 48
    assert main([*words, "--engine", "transformers", "--episodes", str(episodes)]) == 0
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)["results"]
    success = result["measures"]["episode/success"]
    assert abs(success["value"] - greedy["success"]) <= (0.0 if episodes == greedy["episodes"] else 0.2)
    assert not facts["env_kwargs"] or f"--env_kwargs '{json.dumps(facts['env_kwargs'])}'" in printed.err


def test_the_arguments_of_training_are_for_their_environment_only() -> None:
    asked = arguments_of_training("trained:bisect", "AgentR1/Bisect-v0")
    assert asked == {"system_prompt": "", "size": 512, "bad_commits": 3}
    assert arguments_of_training("trained:bisect", ["AgentR1/Bisect-v0"]) == asked
    for model, env_id in (
        ("trained:bisect", "AgentR1/GSM8K-v0"),
        ("trained:bisect", ["AgentR1/Bisect-v0", "AgentR1/GSM8K-v0"]),
        ("smollm2", "AgentR1/Bisect-v0"),
        (None, "AgentR1/Bisect-v0"),
        ("trained:none", "AgentR1/Bisect-v0"),
    ):
        assert arguments_of_training(model, env_id) == {}


def test_an_unknown_name_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="trained:gsm8k does not come with the package; allowed: .*bisect"):
        model_source("trained:gsm8k")
