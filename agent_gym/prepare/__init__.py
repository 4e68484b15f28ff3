"""Data sets, and a model, made ready once: `agent-gym prepare gsm8k` fetches, checks, converts and indexes.

A recipe (recipes.py) names data sets of the hub, or files, and the form that they get. sources.py finds and reads them,
rows.py brings their rows into parquet, model.py fetches and converts a model, and pieces.py makes the other parts: a
corpus, an index, an unpacked archive. run.py makes the pieces that are missing and keeps a manifest with the checksum
of every file.
"""

from agent_gym.data import cache_folder
from agent_gym.prepare.pieces import ENCODER, INDEXES, Options
from agent_gym.prepare.recipes import RECIPES, Recipe
from agent_gym.prepare.run import Prepared, env_kwargs, forecast, prepare, python_lines, shell_lines
from agent_gym.prepare.sources import Forecast, source_names

__all__ = ["ENCODER", "INDEXES", "RECIPES", "Forecast", "Options", "Prepared", "Recipe", "cache_folder", "env_kwargs"]
__all__ += ["forecast", "prepare", "python_lines", "shell_lines", "source_names"]
