"""The wheel trains on each Python that it declares, with the newest version of everything that it needs.

For each Python that is found on the PATH or among pyenv's, a fresh environment gets the wheel as a user's would: by pip
from the package index, without constraints. On Linux that is some 6 GB with CUDA's libraries, unless pip is told of an
index of CPU builds (docs/install.md), and takes minutes: so `make test` leaves it to `make test-interpreters`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY
from tests.packaging.commands import run

pytestmark = pytest.mark.interpreters

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = [found[1] for name in PROJECT["classifiers"] if (found := re.fullmatch(r".* :: Python :: (3\.\d+)", name))]
ROOM_BYTES = 12 * 2**30
INSTALLED_S, TRAINED_S = 1_800, 20


def interpreters(version: str) -> Iterator[str]:
    """Paths of Pythons of a version such as 3.12, the PATH's first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(f"python{version}"), *sorted(map(str, (pyenv / "versions").glob(f"{version}.*/bin/python")))]
    is_it = f"import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for path in filter(None, found):
        # One of pyenv's shims is there for versions that are not chosen, and runs nothing.
        if subprocess.run([path, "-c", is_it], capture_output=True, check=False).returncode == 0:
            yield path


@pytest.fixture(params=DECLARED)
def python(request: pytest.FixtureRequest, built: Path, tmp_path: Path) -> Iterator[Path]:
    """The Python of a new environment that has the wheel."""
    found = next(interpreters(request.param), None)
    if found is None:
        pytest.skip(f"there is no Python {request.param} on the PATH or among pyenv's")
    if (free := shutil.disk_usage(tmp_path).free) < ROOM_BYTES:
        pytest.skip(f"{tmp_path} has {free / 2**30:.0f} GiB free, and PyTorch with CUDA needs {ROOM_BYTES / 2**30:.0f}")
    environment = tmp_path / "environment"
    try:
        run([found, "-m", "venv", str(environment)], cwd=tmp_path)
        python = environment / "bin" / "python"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-cache-dir"]
        offers = [*pip, "--dry-run", "--no-deps", "torch"]
        offered = subprocess.run(offers, capture_output=True, text=True, timeout=INSTALLED_S, check=False)
        if offered.returncode:
            pytest.skip(f"no package index has torch for Python {request.param}: {offered.stderr.strip()[-300:]}")
        (wheel,) = built.glob("*.whl")
        run([*pip, str(wheel)], cwd=tmp_path, timeout_s=INSTALLED_S)
        yield python
    finally:
        # pytest keeps the folders of the last runs, and these are large.
        shutil.rmtree(environment, ignore_errors=True)


def test_the_wheel_trains_with_the_newest_of_everything(python: Path, tmp_path: Path) -> None:
    words = ["experiment=cartpole_team_ppo_dqn", f"stop.time_s={TRAINED_S}", "log.every_env_steps=2000"]
    run([str(python.with_name("marlflow")), "train", *words, "hydra.run.dir=run"], cwd=tmp_path)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert {name: learner["updates"] > 0 for name, learner in last["learners"].items()} == {
        "ppo_team": True,
        "dqn_team": True,
    }
    assert last["time_s"] >= TRAINED_S
    assert not any(last["faults"].values())
    evaluated = run([str(python), "-m", "marlflow", "evaluate", "run", "episodes=2", "--json"], cwd=tmp_path)
    assert [policy["policy"] for policy in json.loads(evaluated)["policies"]] == ["ppo_team", "dqn_team"]
