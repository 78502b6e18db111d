"""Environments whose extras may be missing where the tests run."""

from importlib.util import find_spec

MODULES = {"lbf": "lbforaging", "rware": "rware"}


def is_installed(name: str) -> bool:
    """Whether the environment of conf/env can be made here."""
    return name not in MODULES or find_spec(MODULES[name]) is not None
