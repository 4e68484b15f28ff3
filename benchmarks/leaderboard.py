"""The leaderboard: SmolLM2 and free players on the first tasks of every test panel, a record and a page.

    python benchmarks/leaderboard.py                  # each cell without a record, one after the other
    python benchmarks/leaderboard.py Sums-v0.test     # one cell, anew
    python benchmarks/leaderboard.py --commands       # the same cells as commands of `agent-gym eval`
    python benchmarks/leaderboard.py --page           # docs/leaderboard_cells.html and the table of docs/leaderboard.md

A cell has up to 64 tasks: those of the panel with the smallest `derive_seed(index)`, the rule by which panels draw
their tasks. Fewer bound the seconds of CPU that its model takes (`MOST_CPU`). Cells that nobody played have no record.
All players of a cell have its limits. Where the model reads less than the environment's limit, the others keep that
limit, and `agent-gym leaderboard` sets them apart. The records are cards (docs/evaluate.md) in
benchmarks/history/leaderboard, beside the panel of the cell; the episodes stay in runs/leaderboard. CPU seconds are of
the playing: a start of the engine, which cells share, costs half a minute more. It needs `agent-gym prepare smollm2`,
for some cells bfcl, miniwob, tau2 or swe, and AGENT_GYM_DATA with gsm8k/ and webshop/; cells without their data are
named and left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import baselines

from agent_gym.certify.attacks import load_script
from agent_gym.certify.record import script_turns
from agent_gym.chat import ChatRenderer
from agent_gym.cli.engine import SCRIPTS, build, load_tokenizer, scripted
from agent_gym.cli.main import main as agent_gym
from agent_gym.errors import ConfigError, described
from agent_gym.evaluate import EpisodeFile, make_specs
from agent_gym.evaluate.cards import CARD_VERSION, describe_model, read_cards, run_specs
from agent_gym.evaluate.panels import Panel, look, read_panel
from agent_gym.models import model_source
from agent_gym.policies import Policy, ScriptedPolicy
from agent_gym.registry import ENVS
from agent_gym.rollout import Budget, Runner, derive_seed

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ROOT / "benchmarks" / "history" / "leaderboard"
PAGE = ROOT / "docs" / "leaderboard_cells.html"  # of `agent-gym leaderboard`; the site makes leaderboard.html of DOCS
DOCS = ROOT / "docs" / "leaderboard.md"
HEAD = "| panel | tasks/prompts | random | SmolLM2 | expert | CPU s |\n|---|---|---|---|---|---|\n"
TITLE = "SmolLM2-135M-Instruct and free players"
MODEL, READS = "smollm2", 8192  # tokens that the model reads
PLAYERS = ("random", "script", MODEL, "expert")
TASKS, MOST_CPU = 64, 200.0  # of a cell, and the seconds that its model may take


class Cell(NamedTuple):
    """Of a panel: how many tasks are played, under which limits of tokens, and arguments of the environment."""

    tasks: int = TASKS
    turn: int = 128
    context: int = 4096
    kwargs: Mapping[str, Any] = {}
    data: str = ""  # below AGENT_GYM_DATA
    model: bool = True  # whether it can read the observations


CELLS = {
    "ALFWorld-v0.test": Cell(8, turn=48),
    "Bandit-v0.test": Cell(turn=64),
    "Bargain-v0.test": Cell(32, turn=64),
    "Bisect-v0.test": Cell(),
    "Countdown-v0.test": Cell(16, turn=64),
    "FrozenLake-v0.test": Cell(8, turn=48),
    "FunctionCalls-v0.official-live-test": Cell(8, kwargs={"category": "live"}),
    "FunctionCalls-v0.official-multi_turn-test": Cell(2, context=READS, kwargs={"category": "multi_turn"}),
    "FunctionCalls-v0.official-single_turn-test": Cell(8, kwargs={"category": "single_turn"}),
    "GSM8K-NoTool-v0.test": Cell(32),
    "GSM8K-v0.official-test": Cell(16, data="gsm8k"),
    "GSM8K-v0.test": Cell(),
    "HotpotQA-Direct-v0.test": Cell(32, turn=48),
    "HotpotQA-NaiveRAG-v0.test": Cell(32, turn=48),
    "HotpotQA-ReAct-v0.test": Cell(16, turn=64),
    "HotpotQA-v0.test": Cell(16, turn=64),
    "MathPython-v0.test": Cell(16),
    "MiniWoB-v0.official-test": Cell(4, turn=48),
    "MultiHopQA-v0.test": Cell(16, turn=64),
    "PaperSearch-v1.test": Cell(8, turn=512),
    "ReTool-v0.test": Cell(8),
    "SWE-v0.official-test": Cell(2, turn=128, context=READS),
    "Sokoban-v0.test": Cell(8, turn=48),
    "Sums-v0.test": Cell(),
    "Support-v0.test": Cell(4, turn=256),
    "Tau2-v0.official-test": Cell(4, turn=64, context=READS, kwargs={"domain": "all"}),
    "Terminal-v0.test": Cell(4, turn=256),
    "VisualMaze-v0.test": Cell(model=False),
    "WebShop-v0.official-small-test": Cell(
        4, turn=256, context=READS, data="webshop/items_shuffle_1000.json", kwargs={"goals": "synthetic"}
    ),
    "WebShop-v0.test": Cell(8, turn=48),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(CELLS))
    options.add_argument("--commands", action="store_true", help="print the commands, and play nothing")
    options.add_argument("--page", action="store_true", help="write the page of what is recorded, and play nothing")
    options.add_argument("--players", nargs="+", choices=PLAYERS, default=PLAYERS, metavar="NAME")
    options.add_argument("--out", type=Path, default=Path("runs/leaderboard"), metavar="FOLDER")
    arguments = options.parse_args()
    if unknown := set(arguments.cells) - CELLS.keys():
        options.error(f"unknown cell {min(unknown)}; allowed: {', '.join(CELLS)}")
    if arguments.commands:
        print("\n".join(command(name) for name in arguments.cells or CELLS))
    elif arguments.page:
        write_page()
    else:
        play(arguments.cells, arguments.players, arguments.out)


def env_id_of(name: str) -> str:
    return f"AgentR1/{name.partition('.')[0]}"


def kwargs_of(cell: Cell) -> dict[str, Any]:
    """Return the arguments of the environment; `ConfigError` where the folder of the data is not named."""
    if cell.data and "AGENT_GYM_DATA" not in os.environ:
        raise ConfigError(f"set AGENT_GYM_DATA to the folder that holds {cell.data}")
    return {**cell.kwargs, **({"data": str(Path(os.environ["AGENT_GYM_DATA"], cell.data))} if cell.data else {})}


def panel_of(name: str) -> Panel:
    """Return the panel of a cell, from its file, which is written where it is missing or has other tasks."""
    env_id, cell, file = env_id_of(name), CELLS[name], HISTORY / f"{name}.panel.json"
    whole = read_panel(name.partition(".")[2], env_id)
    chosen = sorted(sorted((index for index, *_ in whole.tasks), key=derive_seed)[: cell.tasks])
    if file.is_file() and [*read_panel(str(file), env_id).tasks] == [one for one in whole.tasks if one[0] in chosen]:
        return read_panel(str(file), env_id)
    kwargs = kwargs_of(cell)
    file.unlink(missing_ok=True)
    rows = look(env_id, kwargs, whole.split, chosen)
    Panel.of(f"{name}, {len(chosen)} tasks", env_id, kwargs, whole.split, rows).write(file)
    return read_panel(str(file), env_id)


def command(name: str) -> str:
    """Return the cell as a command, without the script, which `agent-gym certify` plays."""
    cell, place = CELLS[name], HISTORY.relative_to(ROOT) / f"{name}.panel.json"
    words = ["agent-gym", "eval", env_id_of(name), "--panel", place, "--policy", "random", "expert"]
    words += ["model", "--model", MODEL] if cell.model else []
    kwargs = {**cell.kwargs, **({"data": f"$AGENT_GYM_DATA/{cell.data}"} if cell.data else {})}
    words += ["--env_kwargs", json.dumps(kwargs)] if kwargs else []
    words += ["--max_turn_tokens", cell.turn, "--max_tokens", cell.context]
    return shlex.join(map(str, [*words, "--output", f"runs/leaderboard/{name}.jsonl"]))


def play(names: Sequence[str], players: Sequence[str], out: Path) -> None:
    """Play cells: the named ones anew, or those without a record of a player. The engine starts once."""
    tokenizer, engine = load_tokenizer(MODEL), list[Policy]()
    try:
        for name in names or CELLS:
            for player in players:
                scripted_one = player != "script" or env_id_of(name) in baselines.SCRIPTS
                if not scripted_one or (not names and player in recorded(name)):
                    continue
                if player == MODEL and not engine and CELLS[name].model:
                    engine.append(build(MODEL, "auto", context=READS)[1])
                try:
                    play_cell(name, player, tokenizer, engine, out)
                except ConfigError as error:
                    print(f"{name}, {player}: left out: {error}", flush=True)
    finally:
        for policy in engine:
            policy.close()


def recorded(name: str) -> dict[str, dict[str, Any]]:
    """Return the cards of the players on the cell's tasks under its limits."""
    cell, found = CELLS[name], dict[str, dict[str, Any]]()
    for card in read_cards(record_of(name)) if record_of(name).is_file() else ():
        limits = {"max_turn_tokens": cell.turn, "max_tokens": cell.context, **own_limits(name, card["policy"])}
        if card["panel"]["tasks"] == cell.tasks and limits.items() <= card["decoding"]["limits"].items():
            found[card["policy"]] = card
    return found


def own_limits(name: str, player: str) -> Mapping[str, int]:
    """Return the limits of tokens that the environment brings for players other than the model."""
    if player == MODEL:
        return {}
    module, _, kind = next(one for one in ENVS if one.id == env_id_of(name)).entry_point.partition(":")
    found: Mapping[str, int] = getattr(import_module(module), kind).rollout_budget
    return found


def record_of(name: str) -> Path:
    return HISTORY / f"{name}.card.json"


def play_cell(name: str, player: str, tokenizer: Any, engine: Sequence[Policy], out: Path) -> None:
    """Let a player play a cell, and write its card."""
    env_id, cell, panel = env_id_of(name), CELLS[name], panel_of(name)
    if player == MODEL and not cell.model:
        return
    specs = make_specs(env_id, kwargs_of(cell), panel=panel)
    if player == MODEL:
        policy, model = engine[0], describe_model(str(model_source(MODEL)))
    elif player == "script":
        policy, model = script_policy(str(baselines.SCRIPTS[env_id]), tokenizer), None
    else:
        (_, policy), model = scripted(MODEL, env_id, kwargs_of(cell), SCRIPTS[player]), None
    budget = Budget(**{"max_turn_tokens": cell.turn, "max_tokens": cell.context, **own_limits(name, player)})
    decoding = {"temperature": 0.0, "seed": 0, "engine": "auto", "context": "append"}
    file = out / f"{name}.{player}.jsonl"
    for old in (file, file.with_suffix(".card.json")):
        old.unlink(missing_ok=True)
    with closing(Runner(policy, tokenizer, budget, progress=False)) as runner, closing(EpisodeFile(file)) as episodes:
        decoding |= {"limits": dataclasses.asdict(runner.budget)}
        facts = {"settings": {"cell": name}, "decoding": decoding, "model": model}
        found, _ = run_specs(runner, player, specs, episodes, panel, **facts)
    (card,) = read_cards(file.with_suffix(".card.json"))
    old = read_cards(record_of(name)) if record_of(name).is_file() else []
    tasks = card["panel"]["prompts_sha256"]
    cards = [card, *(one for one in old if one["policy"] != player and one["panel"]["prompts_sha256"] == tasks)]
    content = {"version": CARD_VERSION, "cards": sorted(cards, key=lambda one: PLAYERS.index(one["policy"]))}
    record_of(name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    spent = f"{found.prompts} prompts, {card['seconds']['cpu']:.1f} CPU s"
    print(f"{name}, {player}: {found}, {spent}", *found.failures, sep="\n  ", flush=True)


def table() -> str:
    """Return the table of docs/leaderboard.md: of each cell with a record the success in percent, and the cost."""
    rows = []
    for name in CELLS:
        if cards := recorded(name):
            counts = next(iter(cards.values()))["counts"]
            cells = [f"`{name}`", f"{counts['asked']}/{counts['prompts']}"]
            cells += [shown(cards.get(player), player == MODEL) for player in ("random", MODEL, "expert")]
            cells.append(f"{cards[MODEL]['seconds']['cpu']:.0f}" if MODEL in cards else "-")
            rows.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(rows)


def shown(card: Mapping[str, Any] | None, whole: bool) -> str:
    """Return the success of a card in percent, `whole` with its interval; a dash where there is no card."""
    if card is None:
        return "-"
    value, low, high = (100 * card["measures"]["episode/success"][key] for key in ("value", "low", "high"))
    return f"{value:.1f} ({low:.1f}–{high:.1f})" if whole else f"{value:.0f}"


def write_page() -> None:
    """Write the page of `agent-gym leaderboard` over the records, and the table of docs/leaderboard.md."""
    agent_gym(["leaderboard", str(HISTORY), "--title", TITLE, "--output", str(PAGE)])
    before, _, old = DOCS.read_text(encoding="utf-8").partition(HEAD)
    after = "".join(line for line in old.splitlines(keepends=True) if not line.startswith("|"))
    DOCS.write_text(before + table() + after, encoding="utf-8")


def script_policy(path: str, tokenizer: Any) -> ScriptedPolicy:
    """Return a policy that plays a script of tests/attacks; it says nothing more when the script has ended.

    Its `ConfigError` where the script raises names the script, and `play` takes the next cell.
    """
    attack, turns = load_script(path), dict[int, Iterator[str]]()

    def write(episode: Any) -> str:
        if not episode.steps:
            turns[id(episode)] = script_turns(episode.env.unwrapped, attack)
        try:
            return next(turns[id(episode)], "")
        except Exception as error:
            raise ConfigError(f"the script {path} raised {described(error)}") from error

    return ScriptedPolicy(write, ChatRenderer.of(tokenizer).encode_action)


if __name__ == "__main__":
    main()
