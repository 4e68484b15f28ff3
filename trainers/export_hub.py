"""A folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx  # what the hub's client speaks with, and whose errors it lets through
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from agent_gym.errors import ConfigError


def check_name(name: str) -> None:
    """Refuse a name that the hub would refuse, before there is anything to push.

    Raises:
        ConfigError: for a name that is not like `user/model`.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is no name for the hub: {error}") from error
    if "/" not in name:
        raise ConfigError(f"{name!r} names no owner; on the hub a name is like user/{name}")


def push(folder: str | Path, name: str, *, kind: str = "model") -> str:
    """Upload a folder as `user/name`, a "model" or a "dataset", made if there is none, and return its address.

    Raises:
        ConfigError: if this machine is offline, has no token, or may not write there. The folder stays.
    """
    api = HfApi()
    later = f"the folder is complete; push it later with: hf upload {name} {folder} --repo-type {kind}"
    try:
        made: Any = api.create_repo(name, repo_type=kind, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="Export from agent-gym")
    except OfflineModeIsEnabled as error:
        raise ConfigError(f"cannot push {name}: HF_HUB_OFFLINE is set; {later}") from error
    except LocalTokenNotFoundError as error:
        raise ConfigError(f"cannot push {name}: no token; log in with `hf auth login`; {later}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        cure = "; log in with `hf auth login`, or take a name of your own" if status in (401, 403, 404) else ""
        raise ConfigError(f"cannot push {name}: the hub answered {status}{cure}; {later}") from error
    except (httpx.HTTPError, OSError) as error:
        raise ConfigError(f"cannot push {name}: no hub within reach ({type(error).__name__}); {later}") from error
    return str(made)
