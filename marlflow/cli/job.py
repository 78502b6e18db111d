"""From arguments to a composed configuration, for all commands."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from marlflow.check_env.output import first_lines
from marlflow.cli.arguments import Words
from marlflow.config.compose import composing
from marlflow.config.overrides import Prepared, prepare

ALL_OUTPUT = "--all-output"
"""The flag of commands that try an environment; without it, they show some of what it prints."""
_LINES = 20


def prepared(words: Words) -> Prepared:
    """Return the overrides in Hydra's form and the first job's configuration; raises ConfigInvalid."""
    searchpath = [f"file://{Path(folder).resolve()}" for folder in words.config_dirs]
    with composing():
        return prepare(words.overrides, searchpath, words.multirun)


def output_shown(words: Words) -> AbstractContextManager[None]:
    """Redirect what an environment prints to standard error, all of it or the first lines."""
    return first_lines(sys.maxsize if ALL_OUTPUT in words.own_flags else _LINES)
