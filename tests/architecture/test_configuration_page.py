"""docs/configuration.md is what conf/ and the classes behind it say."""

from pathlib import Path

import pytest

from docs.configuration import PAGE, text
from marlflow.config.comments import commented
from tests.architecture.sources import REPOSITORY, within

CONF = REPOSITORY / "conf"


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
