"""The files of conf/ and docs/configuration.md are what the classes say."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from docs.configuration import PAGE, text
from docs.configuration_files import comment_of, in_yaml, keys, written_files
from marlflow.config.comments import commented
from tests.architecture.sources import REPOSITORY, within

CONF = REPOSITORY / "conf"


def test_the_files_are_as_they_are_written() -> None:
    stale = [within(path) for path, new in written_files() if path.read_text(encoding="utf-8") != new]
    assert not stale, "run python docs/configuration.py"


@pytest.mark.parametrize(
    "value", [3e-4, 1e-5, 1.5e-3, 0.005, -10.0, 25 / 6, math.inf, -math.inf, 0, 2**28, True, None, "auto", ["a", "b"]]
)
def test_a_value_is_read_as_it_was(value: object) -> None:
    (read,) = OmegaConf.to_container(OmegaConf.create(f"x: {in_yaml(value)}")).values()  # type: ignore[union-attr]
    assert (type(read), read) == (type(value), value)


@dataclass
class _Base:
    kept: int | None = None  #: kept
    #: said
    #: in two lines; None: never
    said: int | None = None
    own: int = 1  #: another's


@dataclass(kw_only=True)
class _Derived(_Base):
    own: int = 2  #: its own
    kept: int | None = 3


def test_a_comment_is_of_the_nearest_class_that_has_one() -> None:
    assert [comment_of(_Derived, name) for name in ("kept", "said", "own")] == [
        "kept",
        "said in two lines; None: never",
        "its own",
    ]
    said, kept, own = keys(_Derived).splitlines()
    assert [kept.split(), own.split()] == [["kept:", "3", "#", "kept"], ["own:", "2", "#", "its", "own"]]
    assert said.endswith("; null: never")


def test_the_page_is_as_it_is_written() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run python docs/configuration.py"


@pytest.mark.parametrize("path", sorted(CONF.glob("*/*.yaml")), ids=within)
def test_the_page_has_every_file_and_every_key(path: Path) -> None:
    if path.parent.name in ("job_logging", "hydra"):
        return
    page, group = PAGE.read_text(encoding="utf-8"), path.parent.name
    assert f"`{path.stem}`" in page or f"### {group}: {path.stem}\n" in page
    if group in ("experiment", "policy", "suite"):  # these choose and change what others have
        return
    for entry in commented(path.read_text(encoding="utf-8")).entries:
        if entry.path[-1] != "_target_" and entry.path[0] != "defaults" and entry.value:
            assert f"{'.'.join(entry.path)}` |" in page, entry
