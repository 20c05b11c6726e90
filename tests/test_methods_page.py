"""The methods' page: its parameters are those of the configuration, its pictures what the tool draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from lookahead_bench.strategy import strategies

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "methods.md").read_text()
PICTURES = sorted((ROOT / "docs" / "trees").glob("*.svg"))


@pytest.mark.unit
def test_every_method_has_a_section_with_its_parameters():
    described = set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) & set(re.findall(r"^name: (\w+)", PAGE, re.MULTILINE))
    assert set(strategies()) <= described


@pytest.mark.unit
def test_parameters_are_those_of_the_configuration():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        name = re.match(r"name: (\w+)", block)[1]
        assert block == (ROOT / "conf" / "strategy" / f"{name}.yaml").read_text()


@pytest.mark.unit
def test_every_picture_is_shown_and_there():
    shown = re.findall(r"\]\((trees/\w+\.svg)\)", PAGE)
    assert sorted(shown) == [f"trees/{path.name}" for path in PICTURES]


@pytest.mark.model
def test_pictures_are_what_the_tool_draws(tmp_path):
    runpy.run_path(str(ROOT / "tools" / "draw_trees.py"))["draw_all"](tmp_path)
    assert {path.name: path.read_text() for path in PICTURES} == {
        path.name: path.read_text() for path in tmp_path.glob("*.svg")
    }
