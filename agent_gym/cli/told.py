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
    threading.excepthook = _show_of_thread
    told = warnings.formatwarning
    warnings.formatwarning = lambda *given, **more: harmless(public_text(told(*given, **more)))


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    print(harmless(public_text(text)), file=sys.stderr, end="")


def _show_of_thread(given: threading.ExceptHookArgs) -> None:
    if given.exc_type is not SystemExit and given.exc_value is not None:
        _show(given.exc_type, given.exc_value, given.exc_traceback)
