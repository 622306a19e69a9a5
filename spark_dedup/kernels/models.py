"""Where an encoder's model lies, and which one it is."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from spark_dedup.config import EmbedConfig
from spark_dedup.errors import EnvironmentProblem

_PACKAGE = "package:"
_HUB_TIMEOUT = 10.0
"""Seconds to wait for the model hub before the local cache decides."""


def pinned(config: EmbedConfig) -> EmbedConfig:
    """Fix what could mean another model on another machine or another day.

    Args:
        config: Settings as the user wrote them.

    Returns:
        The same with a hub model's newest (or named) revision as a commit, and a folder as an absolute path.

    Raises:
        EnvironmentProblem: If a folder or package is missing, or a hub model is neither reachable nor cached.
    """
    if config.encoder != "sentence-transformers":
        return config
    folder = model_folder(config)
    if folder is None:
        name = config.model if "/" in config.model else f"sentence-transformers/{config.model}"
        return dataclasses.replace(config, model=name, revision=hub_commit(name, config.revision))
    return config if config.model.startswith(_PACKAGE) else dataclasses.replace(config, model=str(folder.resolve()))


def model_folder(config: EmbedConfig) -> Path | None:
    """Folder of the model; None for a name on the hub.

    Raises:
        EnvironmentProblem: If the folder or the package is not on this host.
    """
    name = config.model
    if name.startswith(_PACKAGE):
        name = name[len(_PACKAGE) :]
        try:
            package = importlib.import_module(name)
        except ImportError as e:
            raise EnvironmentProblem(
                f"embed.model names the package {name!r}, which cannot be imported on {socket.gethostname()}: {e}",
                hint=f"install {name} on the driver and on every executor",
            ) from e
        folder = Path(package.get_model_path()) if hasattr(package, "get_model_path") else Path(package.__path__[0]) / "model"
    else:
        folder = Path(name).expanduser()
        looks_like_name = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name)
        if looks_like_name and not folder.is_dir():
            return None
    if not folder.is_dir():
        raise EnvironmentProblem(
            f"embed.model {config.model!r}: there is no folder {folder} on {socket.gethostname()}",
            hint="put the model there on the driver and on every executor, or name one that they all reach",
        )
    return folder


def content_hash(folder: Path) -> str:
    """SHA-256 over names and bytes of a model's files; read-me and hidden files do not count."""
    whole = hashlib.sha256()
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    for name in names:
        if name.endswith(".md") or any(part.startswith(".") for part in name.split("/")):
            continue
        part = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while chunk := file.read(1 << 20):
                part.update(chunk)
        whole.update(f"{name}\0{part.hexdigest()}\n".encode())
    return whole.hexdigest()


def hub_commit(name: str, revision: str | None) -> str:
    """Commit that a revision (None: the newest) of a hub model means, from the hub, else from the local cache.

    Raises:
        EnvironmentProblem: If neither knows it.
    """
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    with extra("embed"):
        from huggingface_hub import HfApi, try_to_load_from_cache
    try:
        sha: str | None = HfApi().model_info(name, revision=revision, timeout=_HUB_TIMEOUT).sha
        if sha:
            return sha
        reason: object = "the hub names no commit"
    except Exception as e:  # offline, unknown name, no access: whatever the reason, the cache is the other place to look
        reason = f"{type(e).__name__}: {e}"
    for file in ("modules.json", "config.json"):
        cached = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(cached, str):
            return Path(cached).parent.name
    raise EnvironmentProblem(
        f"embed.model {name!r} is neither a folder nor in the model cache of {socket.gethostname()}, and the hub did not answer: {reason}",
        hint="download it into the cache beforehand, give a folder, or take encoder: use, which needs no download",
    )


def import_factory(name: str) -> Callable[[], Any]:
    """What `package.module:factory` names.

    Raises:
        EnvironmentProblem: If it cannot be imported on this host, or is nothing to call.
    """
    module, _, attribute = name.partition(":")
    try:
        found = attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as e:
        raise EnvironmentProblem(
            f"embed.encoder {name!r} cannot be imported on {socket.gethostname()}: {type(e).__name__}: {e}",
            hint="install its package on the driver and on every executor, or ship the module with --py-files",
        ) from e
    if not callable(found):
        raise EnvironmentProblem(f"embed.encoder {name!r} must name something to call, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def source_hash(factory: Callable[[], Any]) -> str | None:
    """SHA-256 of the file that defines it; None for what has no Python source."""
    try:
        file = inspect.getsourcefile(factory)
    except TypeError:  # built-in or compiled
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a missing package into the line that installs it."""
    try:
        yield
    except ImportError as e:  # also PackageNotFoundError
        raise EnvironmentProblem(
            f"the encoder needs a package that is not on {socket.gethostname()}: {e}",
            hint=f"pip install 'spark-dedup[{name}]' on the driver and on every executor",
        ) from e
