"""The files that the architecture tests read."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "marlflow"

# What running, building and checking leave behind; see .gitignore.
_LEFT_BEHIND = {"build", "dist", "_build", "__pycache__", ".git", ".hypothesis", ".venv"}
_AT_THE_TOP = {"runs", "multirun", "outputs"}


def modules() -> list[Path]:
    """Every module under marlflow/."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def repository_files() -> Iterator[Path]:
    """Every file that belongs to the repository. Git is not asked: an unpacked sdist is tested too."""
    for folder, folders, files in os.walk(REPOSITORY):
        left = _LEFT_BEHIND | (_AT_THE_TOP if Path(folder) == REPOSITORY else set())
        folders[:] = [name for name in folders if name not in left and not name.endswith(("_cache", ".egg-info"))]
        yield from (Path(folder, name) for name in files)


def within(path: Path) -> str:
    """The path as messages show it."""
    return path.relative_to(REPOSITORY).as_posix()


def parsed(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path: Path) -> set[str]:
    """The dotted names that a module imports, wherever in it; `from a import b` counts as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names
