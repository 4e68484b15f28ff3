"""Each command that meets a model says in one line in which form it writes calls of tools."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
from template_tools import model_folder, read_templates  # noqa: E402 - needs transformers
from transformers import AutoTokenizer  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"
PLAIN = """{% for one in messages %}<|im_start|>{{ one.role }}
{{ one.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template that knows no tools."""
TOLD = {
    "llama3_1": "calls of tools are in the form llama3, which the chat template writes; answers come as tool messages",
    "gptoss": "calls of tools are in the form harmony, which the chat template writes; answers come as tool messages",
    "qwen3_5_nothink": "calls of tools are in the form qwen3_coder, which the chat template writes; answers come as "
    "tool messages",
    "plain": "calls of tools are in Hermes form, with the tools in the system prompt, as the template has no known "
    "form of calls; answers come as user messages",
}
SHORT = ["--engine", "transformers", "--episodes", "1", "--max_turns", "1", "--max_turn_tokens", "4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    texts = {name.partition("#")[0]: text for name, text in read_templates().items()} | {"plain": PLAIN}
    place = tmp_path_factory.mktemp("models")
    return {name: str(model_folder(place / name, texts[name])) for name in TOLD}


def lines(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Run a command, with warnings as lines of stderr, and return the lines about the form of calls."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda text, *_, **__: print(f"warning: {text}", file=sys.stderr)  # type: ignore[assignment]
        assert main(argv) == 0
    out, err = capsys.readouterr()
    return [line for line in (out + err).splitlines() if "calls of tools are in" in line]


@pytest.mark.parametrize("name", TOLD)
def test_eval_and_rollout_say_it_once(
    name: str, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(capsys, "eval", GSM8K, "--model", folders[name], "--split", "test", *SHORT) == [
        f"agent-gym: {TOLD[name]}"
    ]
    output = str(tmp_path / "t.jsonl")
    assert lines(capsys, "rollout", GSM8K, "--model", folders[name], "--output", output, *SHORT) == [
        f"agent-gym: {TOLD[name]}"
    ]


@pytest.mark.parametrize("name", TOLD)
def test_info_says_it(name: str, folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "info", GSM8K, "--model", folders[name]) == [f"{folders[name]}: {TOLD[name]}"]
    assert lines(capsys, "info", GSM8K) == []


@pytest.mark.parametrize("name", ["gptoss", "plain"])
def test_certify_says_it(name: str, folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["certify", GSM8K, "--quick", "--checks", "copies", "--model", folders[name]]
    assert [" ".join(line.split()) for line in lines(capsys, *argv)] == [f"calls {TOLD[name]}"]


@pytest.mark.parametrize("command", ["grpo", "ppo", "sft"])
@pytest.mark.parametrize("name", ["llama3_1", "plain"])
def test_a_dry_run_says_it(
    command: str, name: str, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--output_dir", str(tmp_path / "run"), "--report_to", "none", "--dry_run"]
    found = lines(capsys, command, GSM8K, "--model_name_or_path", folders[name], *settings)
    assert [" ".join(line.split()) for line in found] == [f"# calls {TOLD[name]}"]


def test_a_dry_run_of_a_model_elsewhere_says_nothing_of_it(tmp_path: Path, folders: dict[str, str]) -> None:
    from agent_gym.cli.engine import spoken_by

    assert spoken_by("nobody/nothing") == ""
    (Path(folders["plain"]) / "chat_template.jinja").rename(tmp_path / "kept")
    try:
        assert spoken_by(folders["plain"]) == ""  # the run says what is wrong with it
    finally:
        (tmp_path / "kept").rename(Path(folders["plain"]) / "chat_template.jinja")


@pytest.mark.slow
def test_the_gateway_says_it_at_its_start(folders: dict[str, str], tmp_path: Path) -> None:
    words = ["gateway", "--model", folders["gptoss"], "--engine", "transformers", "--port", "0"]
    command = [sys.executable, "-m", "agent_gym", *words]
    with open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
    deadline, text = time.monotonic() + 240, ""
    while time.monotonic() < deadline and process.poll() is None and "serving at" not in text:
        time.sleep(0.2)
        text = (tmp_path / "err").read_text()
    process.terminate()
    process.wait(60)
    assert [line for line in text.splitlines() if "calls of tools" in line] == [f"agent-gym: {TOLD['gptoss']}"], text


# A context's default limit, and openings that do not fit it.

SUPPORT = "AgentR1/Support-v0"


def test_a_default_limit_grows_to_fit_an_opening(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "grown.jsonl"
    argv = ["eval", SUPPORT, "--model", folders["llama3_1"], "--split", "test", *SHORT, "--output", str(output)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(argv) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "the opening of" in line]
    assert "so that a context may have 8,192 instead of the default of 4,096; --max_tokens sets another" in line
    (episode,) = [json.loads(one) for one in output.read_text().splitlines()]
    assert not episode.get("failure")


@pytest.mark.filterwarnings("ignore:calls of tools")
def test_an_expert_finishes_in_the_limit_that_has_grown(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["eval", SUPPORT, "--policy", "expert", "--tokenizer", folders["llama3_1"], "--episodes", "8", "--json"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    made = json.loads(out)
    assert made["settings"]["max_tokens"] == 8192 and "may have 8,192" in err
    assert made["results"][0]["measures"]["episode/success"]["value"] == 1.0, made["results"][0]


def test_a_limit_that_is_set_or_fits_stays(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["eval", SUPPORT, "--model", folders["llama3_1"], "--split", "test", *SHORT]
    assert main([*argv, "--max_tokens", "4096"]) == 1
    err = capsys.readouterr().err
    assert "the opening of" not in err and "max_tokens is 4096: raise it above 50" in err and "(--max_tokens" in err
    assert main(["eval", SUPPORT, "--model", folders["gptoss"], "--split", "test", *SHORT]) == 0
    assert "the opening of" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("opening", "turn", "limit"),
    [(0, 512, 4096), (3584, 512, 4096), (3585, 512, 8192), (4109, 512, 8192), (6144, 512, 8192), (6145, 512, 12288),
     (3000, 100_000, 4096), (100_000, 512, 102_400)],
)  # fmt: skip
def test_the_limit_is_a_multiple_of_the_default_with_room_for_half_of_it(opening: int, turn: int, limit: int) -> None:
    from agent_gym.evaluate.room import grown

    found = grown(4096, opening, turn)
    assert found % 4096 == 0 and (found == 4096 or found >= opening + 2048)
    assert found == limit


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_lets_the_opening_fit_unless_its_limit_is_set(folders: dict[str, str], tmp_path: Path) -> None:
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer

    def limit(name: str, **more: Any) -> int:
        args = AgentGRPOConfig(
            str(tmp_path / name), per_device_train_batch_size=2, num_generations=2, use_cpu=True, bf16=False,
            use_vllm=False, report_to="none", **more,
        )  # fmt: skip
        trainer = AgentGRPOTrainer(folders[name], SUPPORT, args)
        assert trainer.rollout_tokens == 2 * args.max_episode_tokens  # the divisor of the loss `constant`
        assert trainer.runner.budget.max_tokens == args.max_episode_tokens
        return int(args.max_episode_tokens)

    assert [limit("llama3_1"), limit("llama3_1", max_episode_tokens=4000), limit("gptoss")] == [8192, 4000, 4096]
    assert limit("llama3_1", max_episode_tokens=4096) == 4096  # the number of the default, but set
    assert limit("llama3_1", vllm_max_model_length=6000) == 6000


def test_the_command_line_tells_a_set_limit_from_the_default() -> None:
    from trl import TrlParser

    from agent_gym.trainers import AgentGRPOConfig
    from agent_gym.trainers.settings import Default

    def limit(*flags: str) -> int:
        (args,) = TrlParser((AgentGRPOConfig,)).parse_args_and_config(["--output_dir", "out", "--use_cpu", *flags])
        return args.max_episode_tokens

    assert isinstance(limit(), Default) and limit() == 4096
    assert type(limit("--max_episode_tokens", "4096")) is int
    assert isinstance(copy.deepcopy(limit()), Default) and isinstance(pickle.loads(pickle.dumps(limit())), Default)


@pytest.mark.parametrize(("count", "places"), [(0, 0), (1, 1), (2, 2), (16, 16), (17, 16), (7473, 16)])
def test_openings_are_measured_all_over_the_tasks(count: int, places: int) -> None:
    from agent_gym.evaluate.room import spread

    chosen = spread(count)
    assert len(set(chosen)) == places and chosen == sorted(chosen)
    assert not count or (chosen[0] == 0 and chosen[-1] == count - 1)


def test_a_long_opening_of_a_later_task_counts(folders: dict[str, str]) -> None:
    from agent_gym import QuestionEnv
    from agent_gym.evaluate import make_specs
    from agent_gym.evaluate.room import with_room
    from agent_gym.rollout import Budget

    rows = [{"question": "1+1?", "answer": "2"}] * 40 + [{"question": "Add up: " + "1 + " * 9000, "answer": "9000"}]
    tokenizer = AutoTokenizer.from_pretrained(folders["gptoss"])
    env = functools.partial(QuestionEnv, rows)
    budget, line = with_room(Budget(), make_specs(env, episodes=41), tokenizer)
    assert budget.max_tokens > 4096 and "the longest of 16 openings" in line
    assert with_room(Budget(), make_specs(env, episodes=40), tokenizer) == (Budget(), "")
