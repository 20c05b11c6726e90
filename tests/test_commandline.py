"""The command line: short forms, and mistakes that are said in one line with exit status 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lookahead_bench.commandline import preflight, rewrite
from lookahead_bench.config import CONF, options, register_methods
from lookahead_bench.errors import ConfigError, InputError
from lookahead_bench.strategy import INSTRUMENTS
from lookahead_bench.usage import USAGE

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["model=smollm2-135m"], ["model=smollm2-135m"]),
        (["model=org/name-1.5"], ["model=custom", "model.path=org/name-1.5"]),
        (["+sweep=ngram", "run.dry=true"], ["+sweep=ngram", "run.dry=true"]),
        (["sweep=ngram"], ["+sweep=ngram"]),
        (["sweep=null"], ["sweep=null"]),
        (["--cfg", "job"], ["--cfg", "job", "--resolve"]),
        (["--cfg", "job", "--resolve"], ["--cfg", "job", "--resolve"]),
        (["run.dry=true", "--multirun", "run.seed=1,2"], ["--multirun", "run.dry=true", "run.seed=1,2"]),
        (["-m", "model=a/b,c/d"], ["-m", "model=custom", "model.path=a/b,c/d"]),
    ],
)
def test_short_forms_are_written_out(argv, expected):
    assert rewrite(argv) == expected


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a=b", "a,b", "[x]", "ünïcode", "back\\slash", "x\\'y", "end\\"])
def test_a_folder_of_any_name_reaches_the_configuration(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (config,) = preflight(rewrite([f"model={folder}"]))
    assert config.model["path"] == str(folder)


@pytest.mark.parametrize("value", ["nonsense", "", "/no/such/folder", "a/b/c"])
def test_an_unknown_model_is_refused_with_what_is_known(value):
    with pytest.raises(ConfigError, match="^model=.*must be one of .*smollm2-135m.*hub id"):
        rewrite([f"model={value}"])


def test_names_and_paths_do_not_mix_in_a_multirun():
    with pytest.raises(ConfigError, match="^model="):
        rewrite(["--multirun", "model=smollm2-135m,org/name"])


@pytest.mark.parametrize(
    "argv, said",
    [
        (["strategy=foo"], "strategy='foo': must be one of "),
        (["dataset=foo"], "dataset='foo': must be one of "),
        (["dataset=[humaneval,foo]"], "dataset='foo': must be one of "),
        (["dataset=[]"], "dataset=[]: must be one or more of "),
        (["+sweep=foo"], "sweep='foo': must be one of ablation, "),
        (["sweep.ngram=[2]"], "sweep.ngram: no sweep is chosen"),
        (["+sweep=ngram", "sweep.ngarm=[2]"], "sweep.ngarm: there is no such key; did you mean sweep.ngram?"),
        (["engine.dtpe=float32"], "engine.dtpe: there is no such key; did you mean engine.dtype?"),
        (["+engine.foo=1"], "engine.foo: there is no such key"),
        (["+foo=1"], "foo: there is no such key"),
        (["engine.dtype=int8"], "engine.dtype='int8': must be one of float32, "),
        (["engine.executor=stock"], "engine.executor='stock': must be one of tree, fork"),
        (["engine.extra=3"], "engine.extra=3: must be null or a mapping"),
        (["engine.extra={dtype:bfloat16}"], "engine.extra.dtype: it has a key of its own; set engine.dtype instead"),
        (["engine.kv_cache_gib=-1"], "engine.kv_cache_gib=-1: must be null or a number from 0.01"),
        (["decode.max_new_tokens=0"], "decode.max_new_tokens=0: must be an integer from 1 "),
        (["decode.max_new_tokens=2048"], "decode.max_new_tokens=2048: must be less than engine.max_model_len=2048"),
        (["decode.temperature=.nan"], "decode.temperature='.nan': must be 0 (greedy) or a number from 0.01"),
        (["decode.temperature=nan"], "decode.temperature=nan: must be 0 (greedy) or a number from 0.01"),
        (["decode.temperature=0.001"], "decode.temperature=0.001: must be 0 (greedy) or a number from 0.01"),
        (["decode.temperature=false"], "decode.temperature=False: must be 0 (greedy) or a number from 0.01"),
        (["run.repeats=true"], "run.repeats=True: must be an integer from 1 "),
        (["run.concurrency=9"], "run.concurrency=9: must be at most engine.max_num_seqs=8"),
        (["run.dry=maybe"], "run.dry='maybe': must be true or false"),
        (["dataset.limit=0"], "dataset.limit=0: must be an integer from 1 "),
        (["tracking.wandb=on"], "tracking.wandb='on': must be one of auto, "),
        (["baselines=[foo]"], "baselines='foo': must be one of "),
        (["+sweep=ngram", "sweep.baselines=[foo]"], "sweep.baselines='foo': must be one of "),
        (["strategy.window=0"], "strategy.window=0: must be "),
        (["strategy.ngram=1"], "strategy.ngram=1: must be "),
        (["strategy.branches=0"], "strategy.branches=0: must be "),
        (["strategy.window=-3"], "strategy.window=-3: must be "),
        (["strategy.window=100000"], "strategy.window=100000: must be "),
        (["+sweep=ngram", "sweep.ngram=[2,1]"], "sweep.ngram=1: must be "),
        (["+sweep=ngram", "sweep.ngram=[]"], "sweep.ngram=[]: must be one value or a list"),
        (["+sweep=ngram", "sweep.window=null", "sweep.ngram=null", "sweep.branches=null"], "sweep: it must have at least one list of values"),
        (["+sweep=ngram", "strategy.ngram=3"], "strategy.ngram=3: ngram is swept over "),
        (["methods.lookahead.window=3"], "methods.lookahead.window=3: lookahead is the chosen strategy; set strategy.w"),
        (["+sweep=ngram", "strategy=autoregressive"], "sweep.window=5: must be left out: autoregressive has no such"),
        (["+sweep=ngram", "sweep.name=../x"], "sweep.name='../x': must be a name"),
        (["+sweep=strategies", "sweep.methods=[foo]"], "sweep.methods='foo': must be one of "),
        (["methods.vllm_ngram.prompt_lookup_min=0"], "methods.vllm_ngram.prompt_lookup_min=0: must be an integer"),
        (["methods.vllm_ngram.prompt_lookup_min=9"], "methods.vllm_ngram.prompt_lookup_min=9: must be at most "),
        (["dataset=humaneval,mt_bench"], "dataset=humaneval,mt_bench: several values need --multirun"),
        (["foo=[1"], "'foo=[1' can't be read as key=value"),
        (["word"], "'word' can't be read as key=value"),
        (["--multirun", "decode.max_new_tokens=8,0"], "decode.max_new_tokens=0: must be "),
        (["results_dir="], "results_dir='': must be the path of a folder"),
        (["results_dir=/etc/hostname/x"], "results_dir='/etc/hostname/x': must be the path of a folder that can be"),
        (["~strategy"], "strategy=[]: must be one of "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_key(argv, said):
    with pytest.raises(InputError) as caught:
        preflight(rewrite(argv))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_multirun_is_checked_job_by_job():
    configs = preflight(["--multirun", "decode.max_new_tokens=8,16", "dataset=humaneval,mt_bench"])
    found = {(config.decode.max_new_tokens, *config.dataset["sources"]) for config in configs}
    assert found == {(8, "humaneval"), (8, "mt_bench"), (16, "humaneval"), (16, "mt_bench")}


@pytest.mark.parametrize("argv", [["--help"], ["--hydra-help"], ["--cfg", "job"], ["--info"]])
def test_what_runs_nothing_is_not_checked(argv):
    assert preflight(argv) == []


@pytest.mark.parametrize(
    "argv, status, said",
    [
        (["strategy.window=0"], 2, "error: strategy.window=0: must be "),
        (["strategy=foo"], 2, "error: strategy='foo': must be one of "),
    ],
)
def test_the_command_says_it_on_stderr_and_exits_with_2(argv, status, said, tmp_path):
    done = command(argv, tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_there_at_once_without_hydra(flag, tmp_path):
    code = f"import sys; sys.argv = ['', '{flag}']; import lookahead_bench.__main__ as it; it.main(); print('hydra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONF.parent)
    assert (done.stdout, done.stderr) == (f"{USAGE}False\n", "")
    assert command([flag], tmp_path).stdout == USAGE
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option_and_no_instrument():
    words = set(re.findall(r"[\w.-]+", USAGE))
    for group in ("model", "dataset", "engine", "strategy", "sweep"):
        assert set(options(group)) - {*INSTRUMENTS, "custom"} <= words
    assert words.isdisjoint(INSTRUMENTS)


def test_every_key_of_the_help_is_one_and_has_the_default_that_it_says():
    register_methods()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        keys = OmegaConf.to_container(compose("config"), resolve=True)
    described = USAGE[USAGE.index("\nKeys") : USAGE.index("\nThe same command")]
    lines = re.findall(r"^  (\S+) +(.*)$", described, re.MULTILINE)
    assert len(lines) > 10
    for key, meaning in lines:
        value = keys
        for part in key.split("."):
            value = value[part]
        if said := re.search(r"\[([^\]]+)\]$", meaning):
            default = yaml.safe_load(said[1] if "," not in said[1] else said[0])
            assert value is None if default in ("all", "false where there is a compiler") else value == default, key


@pytest.mark.parametrize("line", [line for line in USAGE.splitlines() if re.match(r"  (--multirun )?\S+=\S+", line)])
def test_examples_of_the_help_are_accepted(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").touch()
    for example in re.split(r"  or  ", re.match(r"  (.*?)(?:   +\S.*)?$", line)[1]):
        arguments = example.replace("/path/to/model", str(tmp_path)).split()
        assert preflight(rewrite(arguments))


def test_cfg_shows_values(tmp_path):
    done = command(["+sweep=ngram", "sweep.ngram=[2,7]", "--cfg", "job", "--package", "sweep"], tmp_path)
    assert done.returncode == 0
    assert "strategy: lookahead" in done.stdout and "- 7" in done.stdout and "${" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported_before_a_run(tmp_path):
    code = (
        "import sys; from lookahead_bench.commandline import preflight; import lookahead_bench.application;"
        "preflight(['+sweep=grid']); print([m for m in ('torch', 'vllm', 'transformers', 'wandb', 'pandas')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONF.parent)
    assert done.stdout.strip() == "[]", done.stderr


def command(argv: list[str], folder: Path) -> subprocess.CompletedProcess:
    """The command as a user runs it, in a folder of its own."""
    line = [sys.executable, "-m", "lookahead_bench", *argv]
    environment = {**os.environ, "PYTHONPATH": str(CONF.parent)}
    return subprocess.run(line, capture_output=True, text=True, cwd=folder, env=environment)
