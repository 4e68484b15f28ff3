"""`--help` of the training commands without the seconds that importing their settings takes.

The settings are read from source files (class_source.py), and the parser that turns them into flags is transformers'
own, whose file is run by itself: it imports nothing of its package. The text is the same as that of the real parser,
except that a default which depends on what is installed is shown as "this or that". If anything cannot be read, for
example because another version writes its settings in a form of its own, the real parser answers.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from agent_gym.cli.class_source import read_dataclass, source_file
from agent_gym.cli.flags import TrainingFlags


def answer_help(flags: TrainingFlags, argv: Sequence[str]) -> None:
    """Print the help and leave, if it is asked for and can be had cheaply.

    Raises:
        SystemExit: with the exit code 0, after the help.
    """
    if not {"-h", "--help"}.intersection(argv):
        return
    try:
        parser = help_parser(flags)
        text = parser.format_help()
    except Exception:  # whatever is strange about a source, the real parser knows the settings
        return
    print(text, end="")
    parser.exit()


def help_parser(flags: TrainingFlags) -> ArgumentParser:
    """Make a parser that knows the flags of a command and can show them; it reads no command line.

    Raises:
        Exception: of any kind, if a source is not written as expected.
    """
    classes = [read_dataclass(module, name) for module, _, name in flags.named()]
    parser = _parser_class()(classes, **flags.dress())
    flags.complete(parser)
    return parser


def _parser_class() -> Any:
    spec = spec_from_file_location("_hf_argparser", source_file("transformers.hf_argparser"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.HfArgumentParser
