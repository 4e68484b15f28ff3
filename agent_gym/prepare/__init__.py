"""Data sets made ready once: `agent-gym prepare gsm8k` fetches, checks, converts and indexes.

A recipe (recipes.py) names data sets of the hub and what they become. What it becomes are pieces (pieces.py), each of
which is there completely or not at all: parquet files, a corpus, an index. A run makes those that are missing (run.py)
and writes a manifest with the checksums last (record.py).

Left out on purpose: mirrors, and downloads in parallel. One stream from the hub is rarely what one waits for here.
"""

from agent_gym.data import cache_folder
from agent_gym.prepare.recipe import Recipe
from agent_gym.prepare.recipes import RECIPES
from agent_gym.prepare.run import Options, Prepared, forecast, prepare
from agent_gym.prepare.usage import env_kwargs

__all__ = ["RECIPES", "Options", "Prepared", "Recipe", "cache_folder", "env_kwargs", "forecast", "prepare"]
