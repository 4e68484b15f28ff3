"""Before a run: `prepare` makes data and a model ready, `plan` estimates memory, `doctor` tests this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import COLUMNS_HELP, CommandParser, announce, check_output, columns, nearest, positive
from agent_gym.doctor import STAGES, StageSettings, run_stage, write_report
from agent_gym.errors import ConfigError, require
from agent_gym.evaluate.report import align
from agent_gym.plan import MemoryEstimate, cache_per_token, find_shape
from agent_gym.plan import plan as estimate

GIB = 2**30
_HEAD = "LAYOUT GPUS CONFIG TRAINS WEIGHTS GRADS ADAM ACTS HEAD UPDATE ENGINE CACHE TOKENS EPISODES FITS"


def prepare(argv: Sequence[str]) -> int:
    """Make a data set ready for its environment, or a model."""
    from agent_gym.prepare import ENCODER, INDEXES, RECIPES, Options, forecast, python_lines, shell_lines, source_names
    from agent_gym.prepare import prepare as run
    from agent_gym.prepare.release_builder import report_lines

    recipes = "\n".join(f"  {name:<19}{recipe.summary}" for name, recipe in RECIPES.items())
    summary = f"{prepare.__doc__}\n\nrecipes:\n{recipes}"
    parser = CommandParser("prepare", summary)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.flag("recipe RECIPE", "what to prepare", choices=list(RECIPES))
    help_text = "files, folders or https addresses of files to take instead of the hub, in the form of the source"
    parser.flag("--from PATH", help_text, dest="source", nargs="+", default=())
    help_text = "folder to write to; else RECIPE in $AGENT_GYM_CACHE, $XDG_CACHE_HOME/agent-gym or ~/.cache/agent-gym"
    parser.flag("--output DIR", help_text)
    help_text = f"index of the corpus: {', '.join(INDEXES)}; default: bm25"
    parser.flag("--index INDEX", help_text, choices=INDEXES)
    help_text = f"model of an index that is not bm25, on the hub or in a folder; default: {ENCODER}"
    parser.flag("--encoder MODEL", help_text, default=ENCODER)
    parser.flag("--device", "where the encoder runs: cpu, cuda, cuda:1", default="cpu")
    parser.flag("--columns", COLUMNS_HELP, type=columns)
    help_text = "of swe: names of packages with commas, or a file with one in each line; default: the listed ones"
    parser.flag("--packages LIST", help_text, type=_packages, default=())
    help_text = "of swe: how many pairs of newest releases of a package that is not listed are tried"
    parser.flag("--pairs N", help_text, type=positive, default=3)
    help_text = "leave out rows that the environment cannot play, and count them; else they are an error"
    parser.flag("--skip_bad", help_text, action="store_true")
    parser.flag("--dry_run", "only print what would be fetched, in bytes, and written", action="store_true")
    arguments = parser.parse(argv)
    settings = {"columns": arguments.columns, "skip_bad": arguments.skip_bad}
    if (arguments.packages or arguments.pairs != 3) and not RECIPES[arguments.recipe].releases:
        raise ConfigError(f"prepare: {arguments.recipe} is made of no packages; leave out --packages and --pairs")
    settings |= {"packages": arguments.packages, "pairs": arguments.pairs}
    options = Options(arguments.index, arguments.encoder, arguments.device, **settings)
    where = {"source": arguments.source, "output": arguments.output, "options": options}
    if arguments.dry_run:
        folder, lines = forecast(arguments.recipe, **where)
        if not lines:
            print(f"{arguments.recipe} is there already: {folder}")
            return 0
        print(f"{arguments.recipe} -> {folder}")
        rows = [(line.action, line.what, "" if line.size is None else f"{line.size:,}", line.remark) for line in lines]
        print(align([("", "", "BYTES", ""), *rows], numbers=(2,)))
        print(f"to fetch: {sum(line.size or 0 for line in lines if line.action == 'fetch'):,} bytes")
        return 0
    prepared = run(arguments.recipe, **where, progress=True)
    table = [("", "ROWS", "BYTES", "")]
    for path, piece in prepared.pieces.items():
        size = sum(file["bytes"] for file in piece["files"].values())
        count = "" if piece["rows"] is None else f"{piece['rows']:,}"
        state = "written" if path in prepared.made else "already there, checksums agree"
        table.append((path, count, f"{size:,}", state))
    print(f"{prepared.recipe.name} from {source_names(prepared.source)} in {prepared.folder}")
    if prepared.recipe.releases:
        print("\n".join(report_lines(prepared.folder, prepared.pieces)))
        if not any(piece["rows"] for piece in prepared.pieces.values()):
            raise ConfigError("none of these releases makes a task; the reasons are above, and --pairs N tries more")
    print(f"{align(table, numbers=(1, 2))}\n\n{python_lines(prepared)}\n\n{shell_lines(prepared)}")
    return 0


def _packages(text: str) -> tuple[str, ...]:
    path = Path(text).expanduser()
    there = os.path.isfile(path)  # which a long list is not: pathlib would raise
    words = path.read_text(encoding="utf-8").splitlines() if there else text.split(",")
    names = tuple(name for word in words if (name := word.partition("#")[0].strip()))
    wrong = [name for name in names if not re.fullmatch(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", name)]
    if wrong or not names:
        what = f"got {wrong[0]!r}" if wrong else "got none"
        raise argparse.ArgumentTypeError(f"expected names of packages such as tomlkit,boltons, or a file; {what}")
    return names


def plan(argv: Sequence[str]) -> int:
    """Estimate the memory of a training run and name a layout that fits."""
    parser = CommandParser("plan", plan.__doc__)
    parser.flag("--model", "folder or hub id", required=True)
    parser.flag("--gpus NxGIB", "for example 4x80", type=_gpus, required=True)
    parser.flag("--max_episode_tokens", "tokens of the longest context", type=positive, default=4096)
    help_text = "tokens of a forward and backward pass; a longer episode is alone in its own"
    parser.flag("--micro_batch_tokens", help_text, type=positive, default=8192)
    parser.flag("--lora_r", "rank of the adapters, where there are any", type=positive, default=16)
    parser.flag("--json", "print JSON, in bytes", action="store_true")
    arguments = parser.parse(argv)
    shape = find_shape(arguments.model)
    count, gib = arguments.gpus
    estimates = estimate(
        shape,
        count,
        gib * GIB,
        episode_tokens=arguments.max_episode_tokens,
        micro_batch_tokens=arguments.micro_batch_tokens,
        lora_rank=arguments.lora_r,
    )
    best = next((one for one in estimates if one.obstacle is None), None)
    command = None if best is None else _command(best, arguments, gib)
    if arguments.json:
        rows = [{**dataclasses.asdict(one), "training": one.training, "obstacle": one.obstacle} for one in estimates]
        facts = {"shape": dataclasses.asdict(shape), "parameters": shape.parameters}
        print(json.dumps({**facts, "estimates": rows, "command": command}, indent=2))
        return 0
    print(
        f"{arguments.model}: {shape.parameters:,} parameters, "
        f"{cache_per_token(shape) / 1024:.0f} KiB of cache per token\n"
        f"{count} GPUs of {gib:g} GiB, of which {estimates[0].usable / GIB:.1f} are planned with; GiB per GPU:\n"
    )
    from agent_gym.doctor.driver import told  # which plays

    print(align([_HEAD.split(), *map(_row, estimates)], numbers=range(4, 14)), end=f"\n\n{told()}\n\n")
    if command is None:
        print("Nothing fits: take more or larger GPUs, shorter episodes or a smaller model.")
    else:
        print(f"The first that fits:\n\n{command}")
    return 0


def _gpus(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"0*([1-9]\d*)x(\d+\.?\d*)", text.lower())
    if not found or not 1 <= float(found[2]) < 10_000:
        raise argparse.ArgumentTypeError(f"expected a number of GPUs and their GiB, such as 4x80, got {text!r}")
    return int(found[1]), float(found[2])


def _row(one: MemoryEstimate) -> list[str]:
    sizes = (one.state.weights, one.state.gradients, one.state.optimizer, one.activations, one.head, one.training)
    return [
        one.layout,
        f"{one.trainers}+{one.servers}" if one.servers else str(one.trainers),
        one.config,
        f"lora {one.lora_rank}" if one.lora_rank else "all",
        *(f"{size / GIB:.1f}" for size in sizes),
        f"{one.engine / GIB:.1f}",
        f"{max(0.0, one.cache) / GIB:.1f}",
        f"{one.cache_tokens:,}",
        f"{one.episodes:,}",
        "yes" if one.obstacle is None else f"not {one.obstacle}",
    ]


def _command(one: MemoryEstimate, arguments: argparse.Namespace, gib: float) -> str:
    model, tokens = shlex.quote(arguments.model), arguments.max_episode_tokens
    flags = [f"--model_name_or_path {model}", f"--max_episode_tokens {tokens}"]
    flags += [f"--micro_batch_tokens {arguments.micro_batch_tokens}", "--gradient_checkpointing true", "--bf16 true"]
    if one.lora_rank:
        flags += [f"--use_peft true --lora_r {one.lora_rank} --lora_target_modules all-linear --dtype bfloat16"]
    lines, prefix = [], ""
    if one.servers:
        urls = []
        for server in range(one.engines):
            first = server * one.tensor_parallel
            cards = ",".join(map(str, range(first, first + one.tensor_parallel)))
            spread = f" -- --tensor-parallel-size {one.tensor_parallel}" if one.tensor_parallel > 1 else ""
            lines.append(
                f"CUDA_VISIBLE_DEVICES={cards} agent-gym serve model {model} --port {8010 + server} "
                f"--context {tokens}{spread} &"
            )
            urls.append(f"http://127.0.0.1:{8010 + server}")
        prefix = f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(one.servers, one.servers + one.trainers)))} "
        flags += [f"--layout server --vllm_server_base_url {','.join(urls)}"]
    else:
        # vLLM counts the share from the whole card.
        share = math.floor(100 * (one.engine + one.cache) / (gib * GIB)) / 100
        flags += [f"--use_vllm true --vllm_enable_sleep_mode true --vllm_gpu_memory_utilization {share}"]
    flags += [f"--accelerate_config {one.config} --num_processes {one.trainers}"]
    return "\n".join([*lines, " \\\n    ".join([f"{prefix}agent-gym grpo ENV_ID", *flags])])


def doctor(argv: Sequence[str]) -> int:
    """Try all that training needs of this machine, with random weights; exit status 1 if a stage failed.

    Without a GPU and without flags: print which presets this machine trains, and in how many minutes.
    """
    parser = CommandParser("doctor", doctor.__doc__)
    parser.flag("--gpus N", "how many GPUs to try; default: all that torch sees", type=positive)
    parser.flag("--cpu", "everything but the device: tiny shapes, two processes, no GPU", action="store_true")
    parser.flag("--only STAGES", f"some of {','.join(STAGES)}", type=_stages)
    parser.flag("--output_dir DIR", "where report.md, report.json and logs go", default="doctor")
    arguments = parser.parse(argv)
    if arguments.cpu and arguments.gpus:
        raise ConfigError(f"doctor: --cpu tries no GPU, and --gpus is {arguments.gpus}; leave one of them out")
    seen = 0 if arguments.cpu else require("torch", "train").cuda.device_count()
    gpus = arguments.gpus or seen
    if not argv and not seen:
        announce("measuring a core")
        from agent_gym.doctor.laptop import report

        print("\n".join(report()))
        return 0
    if not arguments.cpu and (gpus > seen or not gpus):
        asked = f"--gpus is {gpus}, and " if arguments.gpus else ""
        cure = "ask for fewer" if seen else "--cpu tries everything but the device"
        raise ConfigError(
            f"doctor: {asked}torch sees {seen} GPUs here: look at nvidia-smi and CUDA_VISIBLE_DEVICES; {cure}"
        )
    folder = Path(arguments.output_dir)
    check_output(folder / "report.md")
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpus else []
    setting = StageSettings((names if names != [""] else [str(i) for i in range(gpus)])[:gpus], str(folder.resolve()))
    results = []
    for stage in arguments.only or STAGES:
        announce(f"trying {stage}")
        results.append(result := run_stage(setting, stage))
        print(f"{stage:<8} {result.status:<8} {result.seconds:>6.1f} s  {result.line}", flush=True)
        write_report(setting, results)
    failed = [result.stage for result in results if result.status == "failed"]
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'nothing failed'}; see {folder / 'report.md'}")
    return int(bool(failed))


def _stages(text: str) -> list[str]:
    for stage in text.split(","):
        if stage not in STAGES:
            raise argparse.ArgumentTypeError(f"no stage {stage!r}; {nearest(stage, STAGES)}")
    return [stage for stage in STAGES if stage in text.split(",")]
