"""The examples in the docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import marlflow.league

MODULES = [module.name for module in pkgutil.iter_modules(marlflow.league.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"marlflow.league.{name}")).failed == 0
