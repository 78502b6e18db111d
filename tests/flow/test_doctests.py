"""The examples in flow's docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import marlflow.flow


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(marlflow.flow.__path__)])
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"marlflow.flow.{name}")
    assert doctest.testmod(module).failed == 0
