"""The speedrun: `agent-gym speedrun`, from a model made on the spot to a measured result.

To be read in this order: presets.toml and presets.py (the settings of runs, every number in one place), tiny.py (a
model for two CPU cores), run.py (imitation of the expert in imitation.py, GRPO, evaluation, controls in
controls.py, report in tables.py, a picture over seeds in figure.py), dashboard.py (the display meanwhile).
quickstart.py has parts of it as single calls, for notebooks. Nothing in the library imports this room; the command line
does.
"""

from importlib.resources import files


def text_of(name: str) -> str:
    """Read a file of this room."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
