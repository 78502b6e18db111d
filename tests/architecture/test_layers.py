"""Imports point down: the contracts of pyproject.toml, and the two that say "nothing else"."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, REPOSITORY, imported, modules, within


def test_import_contracts_of_pyproject_hold(tmp_path: Path) -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ran = subprocess.run(
        [sys.executable, "-c", command, "--no-logo", "--cache-dir", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _is_part_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


# The dataflow core must be usable, and testable, without a tensor library; a loss must be readable without knowing
# what a batch, a policy or a plan is.
@pytest.mark.parametrize(
    ("folder", "allowed"),
    [("flow", ("marlflow.flow", "marlflow.base.errors")), ("losses", ("marlflow.losses", "torch"))],
)
def test_folder_imports_the_standard_library_and_nothing_else_but(folder: str, allowed: tuple[str, ...]) -> None:
    wrong = [
        f"{within(path)} imports {name}"
        for path in modules()
        if path.is_relative_to(PACKAGE / folder)
        for name in sorted(imported(path))
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not any(_is_part_of(name, package) for package in allowed)
    ]
    assert not wrong, f"{folder}/ may import the standard library and {', '.join(allowed)} alone:\n" + "\n".join(wrong)


def test_every_folder_of_modules_is_a_package() -> None:
    missing = sorted({within(path.parent) for path in modules() if not (path.parent / "__init__.py").exists()})
    assert not missing, f"the wheel holds packages only; give these an __init__.py: {missing}"


HEAVY = "pyspiel open_spiel supersuit mpe2 rlcard scipy matplotlib pandas pyarrow tensorboard rich"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "unneeded"),
    [
        ("marlflow.driver.train", f"{HEAVY} ray"),
        ("marlflow.runtime.ray.rollout_actor, marlflow.runtime.ray.host", f"{HEAVY} hydra omegaconf openskill"),
    ],
    ids=["driver", "actors"],
)
def test_a_process_imports_extras_and_what_takes_long_only_when_it_needs_them(modules: str, unneeded: str) -> None:
    command = f"import sys, {modules}; print(*[name for name in {unneeded.split()} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


PRIVATE_OF_RAY, PRIVATE_OF_HYDRA = "runtime/ray/private_api.py", "config/compose.py"
"""The modules that may import private names of Ray and of Hydra, and say which versions they were tried with."""


def test_private_names_of_other_packages_are_imported_in_two_modules() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), name.partition(".")[0])
        for path in modules()
        for name in imported(path)
        if name.partition(".")[0] not in {"marlflow", *sys.stdlib_module_names}
        and any(part.startswith("_") for part in name.split("."))
    }
    assert found == {(PRIVATE_OF_RAY, "ray"), (PRIVATE_OF_HYDRA, "hydra")}
