"""The tracebacks and warnings that a command's process prints: without secrets, and without control characters."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from types import TracebackType

from agent_gym.public import hide, public_text
from agent_gym.untrusted import harmless


def mask_what_is_told(argv: Sequence[str]) -> None:
    """Mask secrets in all that this process prints of errors that nobody foresaw; `argv` is its command line."""
    hide(argv)
    sys.excepthook = _show
    threading.excepthook = lambda given: given.exc_type is SystemExit or _show(*given[:3])
    told = warnings.formatwarning
    warnings.formatwarning = lambda *given, **more: harmless(public_text(told(*given, **more)))


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    print(harmless(public_text(text)), file=sys.stderr, end="")
