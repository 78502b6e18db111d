"""The README and docs/ lead a reader to what is there. `make docs` checks more of docs/, and nothing of the README."""

import re
from pathlib import Path

import pytest

import marlflow
from tests.architecture.sources import REPOSITORY, within

README = REPOSITORY / "README.md"
PAGES = [README, REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
README_LINES = 200


def prose(page: Path) -> str:
    """The text of a page without its code blocks, in which brackets and # mean something else."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The targets that GitHub and Sphinx give a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_read_to_its_end() -> None:
    lines = len(README.read_text(encoding="utf-8").splitlines())
    assert lines <= README_LINES, f"README.md has {lines} lines: move details to a page of docs/ and link it"


@pytest.mark.parametrize("page", PAGES, ids=within)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{within(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(linked), f"{within(page)} links to {target}; its headings are {anchors(linked)}"


def test_the_page_on_the_python_api_has_every_public_name() -> None:
    documented = re.findall(r"^\.\. auto\w+:: marlflow\.(\w+)$", (REPOSITORY / "docs" / "api.md").read_text(), re.M)
    assert sorted(documented) == sorted(marlflow.__all__), "put each name of marlflow into one section of docs/api.md"
