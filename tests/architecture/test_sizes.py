"""Files and functions stay small enough to be read in one go."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import modules, parsed, within

FILE_LINES = 500
FUNCTION_LINES = 60


def test_files_stay_short() -> None:
    lines = {within(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    long = {path: count for path, count in lines.items() if count >= FILE_LINES}
    assert not long, (
        f"these files have {FILE_LINES} lines or more: {long}. A file holds one topic that a reader takes in at one "
        "sitting; split it by topic, not by size, and give each part its own first line that says what it is for"
    )


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{within(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def test_functions_stay_short() -> None:
    long = {name: lines for path in modules() for name, lines in _functions(path) if lines >= FUNCTION_LINES}
    assert not long, (
        f"these functions have {FUNCTION_LINES} lines or more: {long}. Beyond one screen nobody sees at once what is "
        "set where; name the steps and make each a function"
    )
