"""What `import marlflow` gives: everything an experiment is written with, and nothing until it is asked for."""

import ast
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import marlflow
from marlflow.config.construct import imported

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_OURS = {"Path"}
"""Words of other libraries that are names of marlflow's too."""


@pytest.mark.parametrize("name", marlflow.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(getattr(marlflow, name), "__name__", name) == name
    assert name in dir(marlflow)


@functools.cache
def _classes() -> set[str]:
    """The public classes of all modules."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "marlflow").rglob("*.py")]
    defined = {node.name for source in sources for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    return {name for name in defined if not name.startswith("_")} - NOT_OURS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_mentions_or_imports_is_public(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    imported = {
        name for names in re.findall(r"^from marlflow[\w.]* import ([^#\n]+)", text, re.M) for name in names.split(", ")
    }
    mentioned = {*re.findall(r"`([A-Z]\w+)\b", text), *re.findall(r"\bmf\.([A-Z]\w+)", text)} & _classes()
    missing = {name.strip() for name in imported if name[0].isupper()} | mentioned
    assert missing <= set(marlflow.__all__)


def test_what_public_docstrings_mention_is_public() -> None:
    mentioned = set()
    for name in marlflow.__all__:
        public = getattr(marlflow, name)
        members = [value for key, value in vars(public).items() if key[0] != "_"] if inspect.isclass(public) else []
        docs = [inspect.getdoc(one) or "" for one in (public, *members)]
        # Words of two capitals and more, such as TorsoConfig: others may be plain English.
        mentioned |= {word for doc in docs for word in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", doc)}
    assert mentioned & _classes() <= set(marlflow.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PPOO'"):
        _ = marlflow.PPOO


def test_importing_marlflow_imports_nothing_heavy() -> None:
    program = "import sys, marlflow; print([n for n in ('torch', 'ray', 'hydra', 'numpy') if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_an_earlier_name_says_what_it_has_become() -> None:
    with pytest.raises(ImportError, match=r"marlflow\.Step has become marlflow\.PiecewiseConstant"):
        _ = marlflow.Step
    problems: list[str] = []
    imported("marlflow.Cosine", "policies.prey.algorithm.learning_rate._target_", problems)
    (problem,) = problems
    assert problem.startswith(
        "policies.prey.algorithm.learning_rate._target_: marlflow.Cosine cannot be imported: "
        "marlflow.Cosine has become marlflow.CosineDecay"
    )
