"""What `import marlflow` gives: everything an experiment is written with, and nothing until it is asked for."""

import subprocess
import sys

import pytest

import marlflow


@pytest.mark.parametrize("name", marlflow.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(marlflow, name).__name__ == name
    assert name in dir(marlflow)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PPOO'"):
        _ = marlflow.PPOO


def test_importing_marlflow_imports_nothing_heavy() -> None:
    program = "import sys, marlflow; print([n for n in ('torch', 'ray', 'hydra', 'numpy') if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
