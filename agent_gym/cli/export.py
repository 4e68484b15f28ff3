"""`agent-gym export`: models, trajectories and tasks, as files for others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import CommandParser, announce, positive, run_kind
from agent_gym.cli.view import check_new, read_files
from agent_gym.errors import ConfigError, require, write_whole
from agent_gym.evaluate.panels import SIZES, Panel, canonical, look, read_panel, write_panels
from agent_gym.evaluate.prompts import count_of


def export(argv: Sequence[str]) -> int:
    """Export a trained model, trajectories or tasks."""
    kinds = {"model": _export_model, "trajectories": _export_trajectories}
    kinds |= {"tasks": _export_tasks, "panels": _export_panels}
    return run_kind("export", export.__doc__, kinds, argv)


def _export_model(argv: Sequence[str]) -> int:
    """Write a trained model as a plain Hugging Face folder with a model card, for transformers, vLLM and the hub."""
    parser = CommandParser("export model", _export_model.__doc__)
    parser.flag("checkpoint RUN", "folder of a run (its last checkpoint counts) or a checkpoint")
    parser.flag("out OUT", "a new folder")
    parser.flag("--merge_adapter", "merge a LoRA adapter into its base model", action="store_true")
    parser.flag("--critic", "also copy the critic of agent-gym ppo, to OUT/critic", action="store_true")
    parser.flag(
        "--eval FILE.jsonl", "episodes of `agent-gym eval --output`, for the card's table", nargs="+", default=[]
    )
    parser.flag("--push_to_hub NAME", "also upload it, for example as user/model")
    arguments = parser.parse(argv)
    announce("importing torch and transformers")
    require("transformers", "train")
    import agent_gym.trainers.export_model as exporting
    from agent_gym.trainers.checkpoints import read_provenance
    from agent_gym.trainers.model_card import model_card, read_evaluations

    if arguments.push_to_hub:
        exporting.check_name(arguments.push_to_hub)
    checkpoint = exporting.find_checkpoint(arguments.checkpoint)
    evaluations = read_evaluations(arguments.eval)
    provenance = read_provenance(checkpoint.folder)
    merged = arguments.merge_adapter
    out = exporting.export_model(checkpoint, arguments.out, merge_adapter=merged, critic=arguments.critic)
    name = (arguments.push_to_hub or out.resolve().name).rpartition("/")[2]
    card = model_card(name, checkpoint.base, provenance, evaluations, merged=merged)
    write_whole(out / "README.md", card)
    print(out)
    if arguments.push_to_hub:
        print(exporting.push(out, arguments.push_to_hub))
    return 0


def _export_trajectories(argv: Sequence[str]) -> int:
    """Write trajectories as a data set: a folder with parquet and a card."""
    parser = CommandParser("export trajectories", _export_trajectories.__doc__)
    parser.flag("files FILE", "trajectory files (.jsonl), and last the new folder OUT", nargs="+")
    help_text = (
        "trajectories: an episode per row, with all that happened; sft: token ids with a mask of the policy's tokens, "
        "for trl.SFTTrainer; messages: the conversations as text"
    )
    parser.flag("--format", help_text, choices=("trajectories", "sft", "messages"), default="trajectories")
    parser.flag("--min_reward R", "only episodes with at least this reward", type=float)
    parser.flag("--successful", "only episodes that solved their task", action="store_true")
    parser.flag("--push_to_hub NAME", "also upload it, for example as user/data")
    arguments = parser.parse(argv)
    require("datasets", "train")
    from agent_gym.trainers.export_trajectories import export_trajectories

    *files, out = map(Path, arguments.files)
    if not files:
        raise ConfigError(f"export trajectories: {out} is one path; give trajectory files and then the new folder")
    if arguments.push_to_hub:
        from agent_gym.trainers.export_model import check_name, push  # imports torch and transformers

        check_name(arguments.push_to_hub)
    rewarded, solved = arguments.min_reward, arguments.successful
    dataset = export_trajectories(read_files(files), out, form=arguments.format, min_reward=rewarded, successful=solved)
    print(f"{out}: {len(dataset)} rows")
    if arguments.push_to_hub:
        print(push(out, arguments.push_to_hub, kind="dataset"))
    return 0


def _export_tasks(argv: Sequence[str]) -> int:
    """Write tasks as a policy sees them first, with hashes of that and of the gold answers, and a panel of them."""
    parser = CommandParser("export tasks", _export_tasks.__doc__)
    parser.add_env()
    parser.flag("out OUT.jsonl", "a line per task; OUT.json gets the panel, for eval --panel, which is named OUT")
    parser.flag("--split", "split to take the tasks from", default="test")
    sizes = ", ".join(f"{n} of {split}" for split, n in SIZES.items())
    parser.flag(
        "--tasks N", f"number of tasks, spread over the split; default: {sizes}, if there are so many", type=positive
    )
    parser.add_env_kwargs()
    arguments = parser.parse(argv)
    env_id, kwargs, split, out = arguments.env_id, arguments.env_kwargs, arguments.split, Path(arguments.out)
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out} must end in .jsonl: it gets the tasks, and {out.with_suffix('.json')} the panel")
    place = out.with_suffix(".json")
    if place.is_file():  # the previous panel; an invalid file is found before the tasks are overwritten
        read_panel(str(place), env_id)
    check_new(out)
    rows = list(look(env_id, kwargs, split, arguments.tasks))
    write_whole(out, "".join(canonical(row) + "\n" for row in rows))
    panel = Panel.of(out.stem, env_id, kwargs, split, rows)
    panel.write(place)
    seen = f"{len(rows)} tasks, {count_of(panel.prompts)}"
    print(f"{seen}, openings {panel.prompts_sha256}, gold answers {panel.golds_sha256}")
    return 0


def _export_panels(argv: Sequence[str]) -> int:
    """Make the panels of all environments of agent_gym anew; panels that change get the next version."""
    parser = CommandParser("export panels", _export_panels.__doc__)
    parser.flag("out OUT", "a folder; in a clone: registry/panels")
    write_panels(Path(parser.parse(argv).out))
    return 0
