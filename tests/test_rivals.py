"""Stock vLLM's own drafters on the real model: the plain output, and counts that are vLLM's own."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from lookahead_bench.config import CONF
from lookahead_bench.drafters import resolve_drafters, speculative_config
from lookahead_bench.engine import check_engine
from lookahead_bench.engine.checks import has_suffix_tree
from lookahead_bench.engine.settings import engine_environment
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.records import EngineSpec, StrategySpec
from tests.test_plan import plan_of

ROOT = Path(__file__).resolve().parent.parent
NO_TREE = runpy.run_path(str(ROOT / "tools" / "suffix_tree.py"))["FAILED"]
NEW_TOKENS = 32
LONGEST = 48
"""A model length that ends the longest prompt's output before NEW_TOKENS."""
TEXTS = (
    "one two three four one two three four one two",
    "def add(a, b):\n    ",
    "A short list of numbers: one, two, three, four, one, two, three, four, one, two",
)


def method(name: str, **changes: object) -> StrategySpec:
    parameters = yaml.safe_load((CONF / "strategy" / f"{name}.yaml").read_text())
    return StrategySpec(parameters.pop("name"), parameters | changes)


def write_head(folder: Path, model: Path, **changes: object) -> str:
    """An EAGLE-3 head of random weights for a Llama; ``changes`` go to its configuration."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner, tokens = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "fc": (hidden, 3 * hidden), "lm_head": (tokens, hidden),
        "midlayer.self_attn.q_proj": (hidden, 2 * hidden), "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden), "midlayer.self_attn.o_proj": (hidden, hidden),
        "midlayer.mlp.gate_proj": (inner, hidden), "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    random = torch.Generator().manual_seed(0)
    weights = {f"{name}.weight": 0.02 * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    norms = ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm")
    weights |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1, **changes}))
    return str(folder)


@dataclass(frozen=True)
class Counts:
    """Of one prompt: what the session recorded per decoding step, and what vLLM counted in it."""

    token_ids: list[int]
    finish_reason: str
    in_flight: list[int]
    accepted: list[int]
    counted: list[list[int]]


@pytest.fixture(scope="module")
def decode(model_source, tokenizer, tmp_path_factory):
    """Decode TEXTS by a stock method, in a process of its own; each method once."""
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    folder, known = tmp_path_factory.mktemp("rivals"), {}

    def decoded(spec: StrategySpec) -> list[Counts]:
        if spec.name not in known:
            drafters = resolve_drafters([spec], model_source, spec.name)
            engine = EngineSpec(
                model_source.path, spec.name, enforce_eager=True, max_model_len=LONGEST, kv_cache_bytes=1 << 27,
                speculative=speculative_config(spec, drafters) or None, extra={"disable_log_stats": False},
            )  # fmt: skip
            check_engine(engine)
            question = json.dumps({"spec": asdict(engine), "prompts": prompts, "max_new_tokens": NEW_TOKENS})
            with (folder / f"{spec.name}.log").open("w") as log:
                answer = subprocess.run(
                    [sys.executable, "-m", "tests.stock_counts"], input=question, stdout=subprocess.PIPE, stderr=log,
                    text=True, cwd=ROOT, env=engine_environment(engine, {"VLLM_LOGGING_STREAM": "ext://sys.stderr"}),
                )  # fmt: skip
            assert answer.returncode == 0, (folder / f"{spec.name}.log").read_text()[-3000:]
            known[spec.name] = [Counts(**counts) for counts in json.loads(answer.stdout.splitlines()[-1])]
        return known[spec.name]

    return decoded


@pytest.fixture
def drafter(request, model_path, tmp_path) -> StrategySpec:
    """The method of that name, with something to draft with."""
    if request.param == "vllm_draft_model":
        return method(request.param, draft_model="smollm2-135m")
    if request.param == "vllm_eagle":
        return method(request.param, draft_model=write_head(tmp_path / "head", Path(model_path)))
    return method(request.param)


needs_tree = pytest.mark.skipif(
    NO_TREE.is_file() and not has_suffix_tree(),
    reason=f"the set-up could not build the suffix tree: {NO_TREE.read_text() if NO_TREE.is_file() else ''}",
)


@pytest.mark.model
@pytest.mark.parametrize(
    "drafter",
    ["vllm_ngram", pytest.param("vllm_suffix", marks=needs_tree), "vllm_draft_model", "vllm_eagle"],
    indirect=True,
)
def test_outputs_are_plain_decodings_and_counts_are_vllms_own(decode, drafter):
    plain, drafted = decode(StrategySpec("vllm")), decode(drafter)
    assert [counts.token_ids for counts in drafted] == [counts.token_ids for counts in plain]
    # The last prompt ends at the model's length, where the scheduler cuts drafts.
    assert [len(counts.token_ids) for counts in plain][:2] == [NEW_TOKENS] * 2 != [len(plain[2].token_ids)] * 2
    assert sum(sum(counts.in_flight) - len(counts.in_flight) for counts in drafted) > 0
    for counts in drafted:
        for step, (in_flight, emitted, counted) in enumerate(zip(counts.in_flight, counts.accepted, counts.counted, strict=True)):
            drafts, drafted_tokens, accepted_tokens = counted
            # vLLM counts no draft for a pass that verifies none; such a pass is a decoding step all the same.
            assert (drafts, drafted_tokens) == (int(in_flight > 1), in_flight - 1)
            if step < len(counts.accepted) - 1:
                assert accepted_tokens == emitted - 1
            else:
                # Beyond the limit of the output vLLM counts accepted tokens that are dropped; here they aren't emitted.
                assert emitted - 1 <= accepted_tokens <= drafted_tokens
        assert sum(counts.accepted) == len(counts.token_ids) - 1


@pytest.mark.model
@pytest.mark.parametrize("drafter", ["vllm_draft_model"], indirect=True)
def test_a_model_that_drafts_for_itself_is_always_right(decode, drafter):
    for counts in decode(drafter):
        assert all(emitted == in_flight for in_flight, emitted in list(zip(counts.in_flight, counts.accepted))[:-1])


@pytest.mark.unit
@pytest.mark.parametrize(
    "parameter, value",
    [("max_tree_depth", 0), ("max_cached_requests", -1), ("max_spec_factor", -0.5), ("min_token_prob", 1.5)],
)
def test_parameters_of_suffix_decoding_are_checked(parameter, value):
    key = f"methods.vllm_suffix.suffix_decoding_{parameter}"
    with pytest.raises(ConfigError, match=f"{key}={value}: must be "):
        plan_of("+sweep=strategies", "sweep.methods=[vllm_suffix]", f"{key}={value}")


@pytest.mark.unit
def test_suffix_decoding_without_its_tree_is_refused(monkeypatch):
    monkeypatch.setattr("lookahead_bench.engine.checks.find_spec", lambda name: None)
    with pytest.raises(InputError, match="vllm_suffix needs .*tools/suffix_tree.py"):
        check_engine(EngineSpec("m", "x", speculative=dict(method("vllm_suffix").parameters)))


@pytest.mark.unit
@pytest.mark.parametrize(
    "argv, message",
    [
        (["strategy=vllm_draft_model"], "strategy.draft_model=None: must be what drafts"),
        (["strategy=vllm_draft_model", "strategy.draft_model=/no/where"], "strategy.draft_model='/no/where': must be a folder"),
        (["strategy=vllm_draft_model", "strategy.draft_model=smollm2-135m", "strategy.num_speculative_tokens=0"],
         "strategy.num_speculative_tokens=0: must be an integer"),
        (["strategy=vllm_draft_model", "strategy.draft_model=a/b", "strategy.method=ngram"],
         "strategy.method='ngram': must be one of draft_model"),
        (["strategy=vllm_ngram", "strategy.method=suffix"], "strategy.method='suffix': must be one of ngram"),
        (["strategy=vllm_eagle", "strategy.draft_model=a/b", "strategy.method=eagle2"],
         "strategy.method='eagle2': must be one of eagle, eagle3"),
        (["baselines=[vllm_eagle]"], "methods.vllm_eagle.draft_model=None: must be what drafts"),
    ],
)  # fmt: skip
def test_a_drafter_that_cannot_be_is_refused_by_its_key(argv, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        plan_of(*argv)
    assert "\n" not in str(caught.value)


@pytest.mark.model
def test_a_head_for_another_model_is_refused(model_source, tmp_path):
    folder = write_head(tmp_path / "head", Path(model_source.path), hidden_size=512)
    with pytest.raises(InputError, match=f"strategy.draft_model='{folder}': must be a head for smollm2-135m, .* reads 512"):
        plan_of("strategy=vllm_eagle", f"strategy.draft_model={folder}", model=model_source)


@pytest.mark.model
def test_a_model_with_another_vocabulary_is_refused(model_source, tmp_path):
    model = Path(model_source.path)
    for file in model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    words = (model / "tokenizer.json").read_text().replace("<jupyter_start>", "<another>")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(words)
    argv = ["strategy=vllm_draft_model", f"strategy.draft_model={tmp_path}"]
    with pytest.raises(InputError, match="must be a model with the vocabulary of smollm2-135m: this one's has other tokens"):
        plan_of(*argv, model=model_source)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    with pytest.raises(InputError, match="that has 49152 tokens, this one 7"):
        plan_of(*argv, model=model_source)


@pytest.mark.model
def test_where_a_draft_model_lies_is_no_part_of_the_work(model_source, tmp_path):
    """The digest is, and the table says which model drafts."""
    copies = []
    for name in ("here", "there"):
        copies.append(write_head(tmp_path / name, Path(model_source.path)))
    plans = [plan_of("strategy=vllm_eagle", f"strategy.draft_model={copy}", "baselines=[]", model=model_source) for copy in copies]
    cells = [plan.cells[1] for plan in plans]
    assert [cell.label for cell in cells] == ["vllm_eagle here", "vllm_eagle there"]
    assert cells[0].cell_id == cells[1].cell_id and cells[0].engine.speculative["model"] == copies[0]
    write_head(tmp_path / "there", Path(model_source.path), rope_theta=1.0)
    changed = plan_of("strategy=vllm_eagle", f"strategy.draft_model={copies[1]}", "baselines=[]", model=model_source)
    assert changed.cells[1].cell_id != cells[1].cell_id
