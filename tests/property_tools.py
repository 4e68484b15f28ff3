"""How many examples a property test tries: some by default, all of them in `./test.sh --slow`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

FULL = os.environ.get("AGENT_GYM_EXAMPLES") == "full"


def examples(number: int) -> Callable[[Any], Any]:
    """Let a property test try so many examples where all are asked for, else a tenth, and at least 20."""
    chosen = settings(max_examples=number if FULL else max(20, number // 10))
    return lambda test: pytest.mark.property(chosen(test))
