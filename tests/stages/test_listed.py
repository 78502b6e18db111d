"""Every operator is listed in docs/stages.md, importable from marlflow.stages, and a callable of at most two items."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import marlflow
from marlflow import stages
from marlflow.flow import Traits

PAGE = (Path(__file__).parents[2] / "docs" / "stages.md").read_text(encoding="utf-8")


def test_the_page_lists_each_operator_once() -> None:
    listed = re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.M)
    assert sorted(listed) == sorted(stages.__all__)


def test_the_page_lists_each_trait_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `([a-z]\w+)` \| (?:`([^`]+)`|as annotated) \|", PAGE, re.M))
    assert listed == {
        field.name: "" if field.name in ("accepts", "emits") else str(field.default) or '""'
        for field in dataclasses.fields(Traits)
    }


def test_every_public_class_of_the_package_is_exported_there_and_by_marlflow() -> None:
    modules = [importlib.import_module(f"marlflow.stages.{one.name}") for one in pkgutil.iter_modules(stages.__path__)]
    defined = {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert defined | {"Rotation"} == set(stages.__all__)
    assert set(stages.__all__) <= set(marlflow.__all__)


@pytest.mark.parametrize("name", stages.__all__)
def test_an_operator_names_neither_learner_nor_replay_nor_place(name: str) -> None:
    operator = getattr(stages, name)
    fields = {field.name for field in dataclasses.fields(operator)} if dataclasses.is_dataclass(operator) else set()
    assert not fields & {"learner", "replay"}
    assert not hasattr(operator, "place")
