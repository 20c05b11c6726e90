"""A method of the user's own file: named by module:Class on the command line, tried on stored outputs, part of a cell's identity."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lookahead_bench.commandline import preflight, rewrite
from lookahead_bench.errors import ConfigError
from lookahead_bench.methods import planned_methods
from lookahead_bench.simulate import replay
from lookahead_bench.sources import module_files
from lookahead_bench.strategy import make_strategy

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
FILE = """
from own_helper import NAME
from lookahead_bench.tree import TokenTree
from strategies.ngram_pool import NGramPool

class Own:
    wants_top_k = 0
    def __init__(self, length=4, *, pace: int = 1):
        if length > 64:
            raise ValueError("too long:\\nmore than 64")
        self.max_drafts = length
    def begin(self, prompt_ids): pass
    def draft(self, budget): pass
    def observe(self, step): pass

class Short:
    def begin(self, prompt_ids): pass

class Demanding(Own):
    def __init__(self, length): super().__init__(length)

class Endless(Own):
    max_drafts = property(lambda self: None, lambda self, value: None)

function = print
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the user's files, as the command's own is."""
    (tmp_path / "own_method.py").write_text(FILE)
    (tmp_path / "own_helper.py").write_text("NAME = 'own'\n")
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_method", "own_helper", "own_broken"):
        sys.modules.pop(name, None)


def planned(*argv: str) -> list[list[tuple[str, dict]]]:
    """Per job the methods that aren't the stock engine's."""
    configs = preflight(rewrite(argv))
    return [[(each.spec.name, dict(each.spec.parameters)) for each in planned_methods(config) if not each.is_stock] for config in configs]


PLAIN = ("autoregressive", {})
OWN = "own_method:Own"


@pytest.mark.parametrize(
    ("argv", "jobs"),
    [
        ([f"strategy={OWN}"], [[PLAIN, (OWN, {})]]),
        ([f"strategy={OWN}", "strategy.length=8"], [[PLAIN, (OWN, {"length": 8})]]),
        (["+strategy.length=8", f"strategy={OWN}"], [[PLAIN, (OWN, {"length": 8})]]),
        ([f"strategy={OWN}", "strategy.length=8", "strategy.pace=2"], [[PLAIN, (OWN, {"length": 8, "pace": 2})]]),
        (["--multirun", f"strategy={OWN}", "strategy.length=2,4"], [[PLAIN, (OWN, {"length": 2})], [PLAIN, (OWN, {"length": 4})]]),
        (["+sweep=strategies", f"sweep.methods=[jacobi,{OWN}]"], [[PLAIN, ("jacobi", {"window": 5, "seed": 0}), (OWN, {})]]),
        ([f"strategy={OWN}", "strategy.length=8", "+sweep=strategies", f"sweep.methods=[{OWN}]"], [[PLAIN, (OWN, {"length": 8})]]),
        (
            [f"strategy={OWN}", "+sweep=ngram", "sweep.window=null", "sweep.ngram=null", "sweep.branches=null", "+sweep.length=[2,4]"],
            [[PLAIN, (OWN, {"length": 2}), (OWN, {"length": 4})]],
        ),
    ],
)
def test_a_class_is_named_on_the_command_line_with_its_parameters(argv, jobs):
    assert planned(*argv) == jobs


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["strategy=own_methid:Own"], "strategy='own_methid:Own': must be importable as module:Class (ModuleNotFoundError"),
        (["strategy=own_method:Other"], "strategy='own_method:Other': must be importable as module:Class (AttributeError"),
        (["strategy=own_broken:Own"], "strategy='own_broken:Own': must be importable as module:Class (ZeroDivisionError: division"),
        (["strategy=own_method:function"], "strategy='own_method:function': must be a class"),
        (["strategy=own_method:Short"], "strategy='own_method:Short': must be a Strategy (lookahead_bench/strategy.py); it has no max_drafts, "),
        (["strategy=own_method:Demanding"], "strategy='own_method:Demanding': must be a class that can be made with (): TypeError"),
        (["strategy=own_method:Endless"], "own_method:Endless.max_drafts=None: must be an integer"),
        (["strategy=own-method:Own"], "strategy='own-method:Own': must be module:Class, such as "),
        (["strategy=:Own"], "strategy=':Own': must be module:Class, such as "),
        ([f"strategy={OWN}", "strategy.lenght=8"], "strategy.lenght=8: must be left out: own_method:Own has no such parameter"),
        ([f"strategy={OWN}", "strategy.length=65"], f"strategy='{OWN}': must be a class that can be made with (length=65): ValueError: too long: more than 64"),
        (["--multirun", f"strategy=lookahead,{OWN}"], f"strategy='lookahead,{OWN}': must be either names"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_before_a_model_is_loaded(argv, said):
    with pytest.raises(ConfigError) as caught:
        planned(*argv)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_name_that_begins_as_the_stock_engines_do_is_not_theirs(folder):
    (folder / "vllm_own.py").write_text(FILE)
    try:
        assert planned("strategy=vllm_own:Own") == [[PLAIN, ("vllm_own:Own", {})]]
    finally:
        sys.modules.pop("vllm_own", None)


def test_its_results_depend_on_its_file_and_what_that_imports(folder):
    make_strategy(OWN)
    files = module_files("own_method")
    assert {folder / "own_method.py", folder / "own_helper.py", ROOT / "lookahead_bench" / "tree.py", ROOT / "strategies" / "ngram_pool.py"} <= files
    assert not any("site-packages" in file.parts for file in files)


def test_replay_counts_the_passes_to_a_stored_output():
    period = [1, 2, 3, 4, 5]
    prompt, output = period * 2, period * 4
    # The prefill gives one token, and each pass 4 drafted ones and the next.
    assert replay(make_strategy("prompt_lookup", length=4), prompt, output) == 4
    assert replay(make_strategy("autoregressive"), prompt, output) == 19
    assert replay(make_strategy("prompt_lookup"), prompt, [7] + output) > 4
    with pytest.raises(ValueError, match="rankings"):
        replay(make_strategy("token_recycling"), prompt, output)
