"""TRL's `GRPOTrainer`, imported without its engine.

TRL 1.16 imports vLLM with the trainer, for TRL's engine (trl/generation/vllm_generation.py), which the trainers here
replace. vLLM takes about half of the import's time (`python -X importtime -c "from trl import GRPOTrainer"`), and a run
may not need vLLM at all, or only in another process. TRL's trainers work as before: the engine is imported when the
first of them asks for it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_ENGINE = "trl.generation.vllm_generation"


def _engine(*args: Any, **kwargs: Any) -> Any:
    """Make TRL's engine, in place of its class."""
    return importlib.import_module(_ENGINE).VLLMGeneration(*args, **kwargs)


_stand_in: Any = ModuleType(_ENGINE)
_stand_in.VLLMGeneration = _engine
_alone = sys.modules.setdefault(_ENGINE, _stand_in) is _stand_in
try:
    from trl import GRPOTrainer as GRPOTrainer
finally:
    if _alone:
        del sys.modules[_ENGINE]
