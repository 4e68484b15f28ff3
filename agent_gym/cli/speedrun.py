"""`agent-gym speedrun`: a tiny model from nothing to a better policy, in one command."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gym.cli.engine import ENGINES
from agent_gym.cli.notes import note
from agent_gym.cli.parser import Parser
from agent_gym.errors import ConfigError, require
from agent_gym.policies.vllm import set_environment


def main(argv: Sequence[str]) -> int:
    """Run it."""
    summary = "Model, warm start, GRPO, evaluation: prints a table, writes curve.png and trajectories.html."
    parser = Parser("speedrun", summary)
    parser.add_argument(
        "--preset",
        choices=("cpu", "gpu", "alfworld", "hotpotqa", "maze", "retool", "webshop"),
        default="cpu",
        help="cpu: GSM8K with a tiny model made on the spot, minutes on two cores; gpu: Qwen2.5-1.5B-Instruct on real "
        "GSM8K; alfworld: as cpu, learning to look for things; hotpotqa: as cpu, learning to search; maze: as cpu, "
        "with a model that reads images; retool: as cpu, learning to run programs; webshop: as cpu, learning to shop",
    )
    parser.add_argument("--env", metavar="ID", help="an environment of your own instead of a preset's, with an expert")
    parser.add_env_kwargs()
    parser.add_argument("--seed", type=int, default=0, help="seed of everything")
    parser.add_argument("--output_dir", default="runs/speedrun", metavar="DIR", help="where models and results go")
    parser.add_argument(
        "--engine", choices=ENGINES, default="auto", help="what samples; auto takes vLLM where it is installed"
    )
    arguments = parser.parse(argv)
    note("importing torch and TRL")
    set_environment()
    require("trl", "train")
    from agent_gym.examples.preset import own_preset
    from agent_gym.examples.speedrun import run_speedrun

    if arguments.env_kwargs and not arguments.env:
        raise ConfigError("speedrun: --env_kwargs belongs to --env; a preset has arguments of its own")
    preset = own_preset(arguments.env, arguments.env_kwargs) if arguments.env else arguments.preset
    run_speedrun(preset, arguments.seed, arguments.output_dir, engine=arguments.engine)
    return 0
