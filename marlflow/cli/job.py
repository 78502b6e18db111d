"""What the commands have in common: from words to a checked experiment."""

from __future__ import annotations

from pathlib import Path

from marlflow.cli.arguments import Words
from marlflow.experiment.compose import composing
from marlflow.experiment.overrides import Prepared, prepare


def prepared(words: Words) -> Prepared:
    """The overrides as Hydra wants them, and the first job's configuration; raises ConfigInvalid."""
    searchpath = [f"file://{Path(folder).resolve()}" for folder in words.config_dirs]
    with composing():
        return prepare(words.overrides, searchpath, words.multirun)
