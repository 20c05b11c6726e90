"""``+sweep=ablation``: every choice of lookahead decoding alone, added to the authors' implementation and taken from the default."""

from __future__ import annotations

import pytest

from lookahead_bench.commandline import preflight, rewrite
from lookahead_bench.errors import InputError
from lookahead_bench.methods import planned_methods
from strategies.lookahead import VARIANTS

pytestmark = pytest.mark.unit
CHOICES = tuple(VARIANTS["improved"])


def planned(*argv: str) -> dict[str, dict[str, object]]:
    """Parameters by title; a choice that is left to the variant is as that has it."""
    (config,) = preflight(rewrite(["+sweep=ablation", *argv]))
    swept = {method.title: dict(method.spec.parameters) for method in planned_methods(config) if method.title}
    for parameters in swept.values():
        if variant := VARIANTS.get(parameters.pop("variant", None)):
            parameters |= {choice: variant[choice] for choice in CHOICES if parameters[choice] is None}
    return swept


def changes(one: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """What ``other`` has otherwise than ``one``."""
    assert one.keys() == other.keys()
    return {key: value for key, value in other.items() if one[key] != value}


def test_every_choice_is_added_to_the_official_variant_and_taken_from_the_default_alone():
    swept = planned()
    assert changes(swept["official_prompt"], swept["default"]) == dict.fromkeys(CHOICES, True)
    for choice in CHOICES:
        assert changes(swept["official_prompt"], swept[f"official_{choice}"]) == {choice: True}
        assert changes(swept["default"], swept[f"no_{choice}"]) == {choice: False}
    assert changes(swept["default"], swept["realigned"]) == {"realign": True}
    assert changes(swept["default"], swept["no_window"]) == {"lookahead_window": False}
    assert changes(swept["default"], swept["no_output"]) == {"pool_from_output": False}
    assert changes(swept["default"], swept["no_text"]) == {"pool_from_prompt": False}


def test_the_branches_are_the_official_variants_with_and_without_the_prompt():
    swept = planned()
    for title, sizes in {"verification": (1, 10), "lookahead": (10, 1), "official": (5, 5)}.items():
        alone, prompted = swept[title], swept[f"{title}_prompt"]
        assert (alone["window"], alone["branches"]) == sizes
        assert not any(alone[choice] for choice in CHOICES)
        assert changes(alone, prompted) == {"pool_from_prompt": True}


def test_sizes_are_set_once_for_all_that_have_none_of_their_own():
    swept = planned("strategy.window=7", "strategy.ngram=4", "strategy.branches=6")
    assert {parameters["ngram"] for title, parameters in swept.items() if title != "prompt_lookup"} == {4}
    assert (swept["no_window"]["window"], swept["official"]["branches"], swept["verification"]["window"]) == (7, 6, 1)


def test_a_row_can_be_left_out_and_another_method_is_refused():
    assert "realigned" not in planned("sweep.variants.realigned=null")
    with pytest.raises(InputError, match="suffix has no such parameter"):
        planned("strategy=suffix")
