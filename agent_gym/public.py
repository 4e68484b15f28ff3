"""`public`: the one border for secrets, through which settings and errors go into run.json, cards, records and pages.

A value whose name ends in token, key, password or secret becomes `***`, in mappings, in command lines and in the texts
of JSON and of queries. The user and the password of an address are cut. The values of this process's environment
variables with such names become `***` wherever they are. Texts of episodes are not settings and stay as they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

MASK = "***"
_ENDS = "token|key|apikey|password|passwd|passphrase|pwd|secret|credential|credentials|auth|authorization|bearer"
_SECRET = re.compile(rf"(?:.*[_.:/ -])?(?:{_ENDS})")
_VOCABULARY = re.compile(r"(?:.*_)?(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|vision|eot|eom|fake|stop)_token")
"""Names of tokens of a tokenizer, which are not secrets."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USER = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s?#\"'<>]*@")
_QUERY = re.compile(rf"([?&;](?:[\w.-]*[_.-])?(?:{_ENDS}|sig|signature)=)[^&;#\s\"']+", re.IGNORECASE)
_QUOTED = re.compile(
    rf"""((["'])(?:[\w.-]*[_.-])?(?:{_ENDS})\2\s*:\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.IGNORECASE
)
_BEARER = re.compile(r"\b((?:Bearer|Basic) )[\w.~+/=-]{8,}", re.IGNORECASE)
_ASSIGNED = re.compile(r"(-{0,2}[\w.+:/-]*?)(\s*[=:]\s*)(\S.*)", re.DOTALL)
_LEAST = 8  # characters of an environment variable's value that is looked for: a shorter one is in many words
_MAX_DEPTH = 60


def is_secret(name: Any) -> bool:
    """Whether a value of this name is a secret: `hub_token`, `--api-key`, `HF_TOKEN`, `apiKey`, `password`."""
    words = _CAMEL.sub("_", str(name)).lower().strip("-+ ").replace("-", "_")
    return _SECRET.fullmatch(words) is not None and _VOCABULARY.fullmatch(words) is None


def public(value: Any) -> Any:
    """Return a copy of settings without their secrets: of mappings, lists and texts, however nested."""
    return _public(value, _known(), 0)


def public_text(text: str) -> str:
    """Return a text, such as the message of an error, without the secrets in it."""
    return _text(text, _known())


def _known() -> list[str]:
    """Return the secrets among the environment variables, the longest first."""
    found = {value for name, value in os.environ.items() if len(value) >= _LEAST and is_secret(name)}
    return sorted(found, key=len, reverse=True)


def _public(value: Any, known: Sequence[str], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, str):
        return _word(value, known, depth)
    if isinstance(value, Mapping):
        return {key: _of_name(key, item, known, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made = _words(value, known, depth)
        return made if isinstance(value, list) else tuple(made)
    return value


def _of_name(name: Any, value: Any, known: Sequence[str], depth: int) -> Any:
    # Numbers and truth values are counts and switches: `max_token`, `use_auth_token=True`.
    if is_secret(name) and value and not isinstance(value, bool | int | float):
        return MASK
    return _public(value, known, depth + 1)


def _words(values: Sequence[Any], known: Sequence[str], depth: int) -> list[Any]:
    """Return a list whose texts may be the words of a command line: the word after `--hub_token` is its value."""
    made: list[Any] = []
    hidden = False
    for value in values:
        is_flag = isinstance(value, str) and value.startswith("-") and len(value) > 1
        made.append(MASK if hidden and not is_flag else _public(value, known, depth + 1))
        hidden = is_flag and "=" not in value and is_secret(value)
    return made


def _word(text: str, known: Sequence[str], depth: int) -> str:
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            read = json.loads(text)
            made = _public(read, known, depth + 1)
            return text if made == read else json.dumps(made)
    assigned = _ASSIGNED.fullmatch(text)
    if assigned and not assigned[3].startswith("//"):
        name, sign, value = assigned.groups()
        return (
            name + sign + (MASK if is_secret(name) else _word(value, known, depth + 1) if depth < _MAX_DEPTH else MASK)
        )
    return _text(text, known)


def _text(text: str, known: Sequence[str]) -> str:
    for secret in known:
        text = text.replace(secret, MASK)
    text = _USER.sub(r"\1", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _QUOTED.sub(rf'\1"{MASK}"', text)
    return _BEARER.sub(rf"\1{MASK}", text)
