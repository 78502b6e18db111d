"""A checkpoint that was changed, with all hashes made to fit, is refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes
from marlflow.checks.validation import ready
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import CheckpointConfig, Record
from marlflow.driver.checkpointing import check_identity
from marlflow.driver.train import resume, train
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.saved_runs import newest
from tests.runtime.kept_folders import rewrite, write_tree
from tests.runtime.small_runs import small_run

SHAPES: list[Any] = [None, True, -1, 0.5, "", "none", [], [1], {}, {"a": 1}, float("inf")]
EXPERIMENT = small_run(
    env_steps=320, checkpoint=CheckpointConfig(every_env_steps=160), record=Record(), evaluation=small_run().evaluation
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints."""
    where = tmp_path_factory.mktemp("malformed") / "run"
    train(EXPERIMENT, where)
    return where


@pytest.fixture(scope="module")
def made() -> CheckedExperiment:
    return ready(EXPERIMENT)


def changed(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """`value` with one of the values in it of another shape, or missing, and which."""
    yield from ((f"{where} -> {shape!r}", shape) for shape in SHAPES if type(shape) is not type(value))
    for key in value if isinstance(value, dict) else ():
        yield f"{where}/{key} missing", {name: one for name, one in value.items() if name != key}
        yield from ((path, {**value, key: other}) for path, other in changed(value[key], f"{where}/{key}"))
    for at, one in enumerate(value if isinstance(value, list) else ()):
        yield from ((path, [*value[:at], other, *value[at + 1 :]]) for path, other in changed(one, f"{where}/{at}"))


def test_a_manifest_with_any_value_of_another_shape_is_passed_over_or_refused(
    run: Path, made: CheckedExperiment
) -> None:
    path = newest(run).path / "checkpoint.json"
    whole = path.read_bytes()
    content = {name: value for name, value in json.loads(whole).items() if name != "sha256"}
    refused = 0
    try:
        for where, other in changed(content):
            content = other if isinstance(other, dict) else {"format": other}
            canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
            path.write_text(json.dumps({**content, "sha256": hashlib.sha256(canonical.encode()).hexdigest()}))
            try:
                checkpoint = newest(run)
                check_identity(checkpoint, made)
            except CheckpointUnusable as error:
                assert str(path.parent) in str(error), where  # noqa: PT017  what others raise is the failure
                refused += 1
            else:
                # Only what is for people, or of no consequence for a resume, may be anything.
                free = ("/marlflow", "/metric", "/order", "/notes/reports", "/notes/run", "/notes/rec")
                same = where.startswith(free)
                # Which files a run needs is known where it takes them up.
                assert same or checkpoint.env_steps == 160 or (where.startswith("/files/") and "miss" in where), where
    finally:
        path.write_bytes(whole)
    assert refused > 100


def test_notes_of_another_shape_name_each_value_and_what_to_do(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    newest_path = newest(tmp_path / "run").path
    rewrite(newest_path, notes={"identity": [], "replay": 3, "reports": "2", "run": "../x"})
    with pytest.raises(CheckpointUnusable) as caught:
        notes_of(newest(tmp_path / "run"))
    assert [problem.partition("its notes have ")[2] for problem in caught.value.problems[:-1]] == [
        "'../x' for 'run' instead of a hexadecimal text",
        "[] for 'identity' instead of an object",
        "3 for 'replay' instead of 'rows' or 'none'",
        "'2' for 'reports' instead of a count",
        "no 'recorded'",
    ]
    assert caught.value.problems[-1].endswith("remove it, and the one before it is used")


def test_a_checkpoint_of_a_version_with_other_services_is_refused_before_anything_is_loaded(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = newest(tmp_path / "run").path
    before = {name: state for name, state in from_bytes(newest(run).read("driver")).items() if name != "clock"}
    write_tree(path, "driver", {**before, "times_s": [1.0, 0.5, 0.5]})
    with pytest.raises(CheckpointUnusable) as caught:
        resume(EXPERIMENT, tmp_path / "run")
    (problem,) = caught.value.problems
    assert problem == (
        f"{path}: what the driver knew is not of the shape that it has: /clock is missing; if another version "
        "of marlflow wrote it, only that version resumes from it"
    )


@pytest.mark.parametrize("shape", [None, "x", -1.5])
@pytest.mark.slow
def test_every_file_of_another_shape_is_refused_when_a_run_resumes(shape: Any, run: Path, tmp_path: Path) -> None:
    """The driver's values one by one; of the others that they are there at all, and of the kind that they were."""
    whole = newest(run)
    for name in whole.names:
        tree = from_bytes(whole.read(name))
        for key in tree if isinstance(tree, dict) and (name == "driver" or shape == "x") else ():
            if type(shape) is not type(tree[key]):
                folder = tmp_path / "run"
                shutil.copytree(run, folder)
                write_tree(newest(folder).path, name, {**tree, key: shape})
                try:
                    resume(EXPERIMENT, folder)
                except CheckpointUnusable as error:
                    assert str(folder / "checkpoints" / "320") in str(error), (name, key)  # noqa: PT017
                else:
                    assert tree[key] is None or name != "driver", (name, key, shape)
                shutil.rmtree(folder)
