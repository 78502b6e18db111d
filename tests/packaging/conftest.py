"""The wheel, built once for all tests of it."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY, repository_files
from tests.packaging.commands import run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel that was made from it.

    Built from a copy: setuptools takes into an sdist what an .egg-info of an earlier build lists, and would hide that a
    file is missing from the declarations.
    """
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in repository_files():
        target = source / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)], cwd=dist)
    return dist
