"""`agent-gym export`: a trained model as a plain Hugging Face folder, trajectories as a data set."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.notes import note
from agent_gym.cli.parser import Kind, Parser, run_kind
from agent_gym.cli.reading import reading
from agent_gym.errors import require


def main(argv: Sequence[str]) -> int:
    """Export what the first word says."""
    kinds: dict[str, Kind] = {
        "model": (_model_parser, _export_model),
        "trajectories": (_trajectories_parser, _export_trajectories),
    }
    return run_kind("export", "Export a trained model or trajectories.", kinds, argv)


def _model_parser() -> Parser:
    parser = Parser(
        "export model",
        "Write a trained model as a plain Hugging Face folder with a model card, for transformers, vLLM and the hub.",
        config=False,
    )
    parser.add_argument(
        "checkpoint", metavar="RUN", help="folder of a run (its last checkpoint counts) or a checkpoint"
    )
    parser.add_argument("out", metavar="OUT", help="a new folder")
    parser.add_argument("--merge_adapter", action="store_true", help="merge a LoRA adapter into its base model")
    parser.add_argument("--critic", action="store_true", help="also copy the critic of agent-gym ppo, to OUT/critic")
    help_text = "episodes of `agent-gym eval --output`, for the card's table"
    parser.add_argument("--eval", nargs="+", default=[], metavar="FILE.jsonl", help=help_text)
    parser.add_argument("--push_to_hub", metavar="NAME", help="also upload it, for example as user/model")
    return parser


def _export_model(arguments: Namespace) -> int:
    note("importing torch and transformers")
    require("transformers", "train")
    from agent_gym.trainers.checkpoints import read_provenance
    from agent_gym.trainers.export.card import model_card, read_evaluations
    from agent_gym.trainers.export.checkpoint import find_checkpoint
    from agent_gym.trainers.export.hub import check_name, push
    from agent_gym.trainers.export.model import export_model

    if arguments.push_to_hub:
        check_name(arguments.push_to_hub)
    checkpoint = find_checkpoint(arguments.checkpoint)
    evaluations = read_evaluations(arguments.eval)
    provenance = read_provenance(checkpoint.folder)
    merged = arguments.merge_adapter
    out = export_model(checkpoint, arguments.out, merge_adapter=merged, critic=arguments.critic)
    name = (arguments.push_to_hub or out.resolve().name).rpartition("/")[2]
    card = model_card(name, checkpoint, provenance, evaluations, merged=merged)
    (out / "README.md").write_text(card, encoding="utf-8")
    print(out)
    if arguments.push_to_hub:
        print(push(out, arguments.push_to_hub))
    return 0


def _trajectories_parser() -> Parser:
    parser = Parser(
        "export trajectories", "Write trajectories as a data set: a folder with parquet and a card.", config=False
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="trajectory files (.jsonl), and last the new folder OUT"
    )
    help_text = (
        "trajectories: an episode per row, with all that happened; sft: token ids with a mask of the policy's tokens, "
        "for trl.SFTTrainer; messages: the conversations as text"
    )
    parser.add_argument("--format", choices=("trajectories", "sft", "messages"), default="trajectories", help=help_text)
    parser.add_argument("--min_reward", type=float, metavar="R", help="only episodes with at least this reward")
    parser.add_argument("--successful", action="store_true", help="only episodes that solved their task")
    parser.add_argument("--push_to_hub", metavar="NAME", help="also upload it, for example as user/data")
    return parser


def _export_trajectories(arguments: Namespace) -> int:
    require("datasets", "train")
    from agent_gym.errors import ConfigError
    from agent_gym.trainers.export.hub import check_name, push
    from agent_gym.trainers.export.trajectories import export_trajectories

    *files, out = map(Path, arguments.files)
    if not files:
        raise ConfigError(f"export trajectories: {out} is one path; give trajectory files and then the new folder")
    if arguments.push_to_hub:
        check_name(arguments.push_to_hub)
    dataset = export_trajectories(
        reading(files),
        out,
        form=arguments.format,
        min_reward=arguments.min_reward,
        successful=arguments.successful,
    )
    print(f"{out}: {len(dataset)} rows")
    if arguments.push_to_hub:
        print(push(out, arguments.push_to_hub, kind="dataset"))
    return 0
