"""What is installed is what pyproject.toml asks for, and an installed copy is complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")


def requirements(file: str) -> list[Requirement]:
    lines = (ROOT / file).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_pins_each_package_once_and_all_that_is_asked_for(python):
    environment = {"python_version": python, "python_full_version": f"{python}.1"}
    pins = [
        pin for pin in requirements("requirements-cpu.lock") if pin.marker is None or pin.marker.evaluate(environment)
    ]
    names = [pin.name for pin in pins]
    assert sorted(names) == sorted(set(names))
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    versions = {pin.name: str(pin.specifier)[2:] for pin in pins}
    extras = project()["optional-dependencies"]
    for text in project()["dependencies"] + extras["cpu"] + extras["dev"]:
        asked = Requirement(text)
        assert asked.specifier.contains(versions[asked.name]), text


def test_what_breaks_transformers_is_not_in_the_lock():
    names = {pin.name for pin in requirements("requirements-cpu.lock")}
    assert names.isdisjoint({"torchvision", "torchaudio", "torchcodec"})


def test_the_carriers_are_in_the_lock():
    pins = {str(pin) for pin in requirements("requirements-cpu.lock")}
    assert {str(pin) for pin in requirements("requirements-carriers.txt")} <= pins


def test_the_environment_is_the_lock_s():
    from importlib.metadata import version

    for pin in requirements("requirements-cpu.lock"):
        if pin.marker is None or pin.marker.evaluate():
            assert pin.specifier.contains(version(pin.name), prereleases=True), pin


def test_every_model_s_configuration_has_the_same_keys():
    keys = {file.name: set(yaml.safe_load(file.read_text())) for file in (ROOT / "conf" / "model").glob("*.yaml")}
    assert len(keys) >= 4
    assert set(map(frozenset, keys.values())) == {
        frozenset({"name", "kind", "path", "package", "file", "sha256", "chat"})
    }


def test_a_wheel_holds_the_configuration_and_all_modules(tmp_path):
    source = tmp_path / "source"
    for folder in ("conf", "lookahead_bench", "strategies"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    files = [file for file in source.rglob("*") if file.suffix in (".py", ".yaml")]
    expected = {str(file.relative_to(source)) for file in files}
    shutil.copy(ROOT / "pyproject.toml", source)
    (source / "README.md").write_text("for pyproject.toml")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", tmp_path, source], check=True, stdin=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("*.whl")
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
