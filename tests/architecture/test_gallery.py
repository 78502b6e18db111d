"""The gallery's pages are what their data say, and every shipped experiment has one or a reason."""

import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import marlflow as mf
from benchmarks.gallery import pages
from benchmarks.gallery.__main__ import as_text, known, texts
from benchmarks.gallery.cases import CASES, CONF, PAGES, WITHOUT_PAGE
from benchmarks.gallery.pictures import MOST_BYTES, data_hash, wide, write_film
from benchmarks.seeds import CHOICE, RETIRED
from marlflow.checks.validation import from_config
from marlflow.cli.main import main
from marlflow.config.compose import composing
from marlflow.config.overrides import prepare
from tests.architecture.sources import within

DATA = known()
MOST_BYTES_OF_ALL = 8_000_000


def test_every_shipped_experiment_has_a_page_or_a_reason() -> None:
    shipped = {path.stem for path in CONF.glob("*.yaml")}
    assert set(DATA) | set(WITHOUT_PAGE) == shipped
    assert not set(DATA) & set(WITHOUT_PAGE), "what has a page needs no reason: take it out of WITHOUT_PAGE"
    assert set(CASES) | set(WITHOUT_PAGE) == shipped


def test_there_is_no_page_without_data() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {"index", *DATA}
    assert {path.name for path in PAGES.iterdir() if path.is_dir()} == set(DATA)


@pytest.mark.parametrize("name", sorted(texts()))
def test_a_page_is_as_it_is_written(name: str) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == texts()[name], "run python -m benchmarks.gallery --pages"


@pytest.mark.parametrize("name", sorted(DATA))
def test_figures_were_drawn_from_the_data(name: str) -> None:
    data = DATA[name]
    expected = (
        {"curve.svg": data_hash(pages.policy_curves(data), pages.levels(data))} if pages.policy_curves(data) else {}
    )
    if pages.nash_conv_curves(data):
        expected["nash_conv.svg"] = data_hash(pages.nash_conv_curves(data), {})
    drawn = {path.name: ElementTree.parse(path).findtext("{*}desc") for path in (PAGES / name).glob("*.svg")}
    assert drawn == expected, "run python -m benchmarks.gallery --pages"


@pytest.mark.parametrize("name", sorted(DATA))
def test_the_data_are_whole_and_agree(name: str) -> None:
    data = DATA[name]
    assert len(set(data["seeds"])) == 3
    assert set(data["seeds"]) <= RETIRED - set(CHOICE), "add the seeds of a page to RETIRED in benchmarks/seeds.py"
    assert [run["seed"] for run in data["runs"]] == data["seeds"]
    assert data["overrides"] == list(CASES[name].overrides)
    results = data["together"] or data["against_random"]
    assert list(results) == list(map(str, data["seeds"]))
    for run in data["runs"]:
        assert run["cpu_s"] > 0
        assert run["env_steps"] > 0
    for curve in data["curves"]:
        for run, line in zip(data["runs"], curve["runs"], strict=True):
            assert line["env_steps"] == sorted(line["env_steps"])
            assert len(line["env_steps"]) == len(line["values"])
            assert line["env_steps"][-1] <= run["env_steps"]
    (path,) = [PAGES / f"{name}.json"]
    assert path.read_text(encoding="utf-8") == as_text(data)


def rows(page: Path) -> list[dict[str, str]]:
    """The rows of the page's tables of returns."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.M):
        head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        found += [dict(zip(head, line, strict=True)) for line in lines if "mean" in head]
    return found


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_mean_on_a_page_is_that_of_the_seeds_next_to_it(name: str) -> None:
    found = rows(PAGES / f"{name}.md")
    assert found
    for row in found:
        seeds = [float(row[f"seed {seed}"]) for seed in DATA[name]["seeds"]]
        shown = float(row["mean"].strip("*"))
        assert shown == pytest.approx(sum(seeds) / len(seeds), abs=0.1001 if max(map(abs, seeds)) >= 10 else 0.0101)


@pytest.mark.parametrize("name", sorted(DATA))
def test_the_film_moves_and_is_small(name: str) -> None:
    film: dict[str, Any] | None = DATA[name]["film"]
    path = PAGES / name / "film.webp"
    assert path.exists() == (film is not None and not film["text"])
    if path.exists() and film is not None:
        assert path.stat().st_size <= MOST_BYTES
        with Image.open(path) as picture:
            # Frames that are equal to the one before are merged with it.
            assert 1 < getattr(picture, "n_frames", 1) <= film["frames"]


def test_the_gallery_is_small() -> None:
    sizes = {within(path): path.stat().st_size for path in PAGES.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= MOST_BYTES_OF_ALL, sizes


def moving_frames(count: int) -> list[Any]:
    """Frames in which a bright square moves."""
    frames = [np.zeros((60, 80, 3), np.uint8) for _ in range(count)]
    for at, frame in enumerate(frames):
        frame[20:40, at % 60 : at % 60 + 20] = 255
    return frames


def test_a_film_of_many_frames_is_thinned_and_no_slower_than_the_episode(tmp_path: Path) -> None:
    kept = write_film(moving_frames(200), fps=50.0, path=tmp_path / "film.webp")
    assert kept == 67
    with Image.open(tmp_path / "film.webp") as film:
        assert getattr(film, "n_frames", 1) == kept
        film.load()
        assert film.info["duration"] * kept == pytest.approx(1000 * 200 / 50, rel=0.05)


def test_a_film_that_stays_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gallery.pictures.MOST_BYTES", 100)
    with pytest.raises(ValueError, match="keep fewer frames"):
        write_film(moving_frames(10), fps=10.0, path=tmp_path / "film.webp")
    assert not (tmp_path / "film.webp").exists()


def test_a_stack_of_panes_becomes_two_columns_without_loss() -> None:
    panes = [np.full((4, 6, 3), number) for number in range(4)]
    stacked = np.concatenate(panes)
    rows = [np.concatenate(panes[0::2], axis=1), np.concatenate(panes[1::2], axis=1)]
    assert np.array_equal(wide(stacked, agents=4), np.concatenate(rows))
    assert wide(stacked, agents=3) is stacked
    assert wide(panes[0], agents=4) is panes[0]


def commands(page: Path) -> list[str]:
    """The commands that train, in the page's code blocks."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith("marlflow train ")]


def record(folder: Path) -> None:
    """Record some env steps of a team of cart-poles, as an expert's would be."""
    short = ("stop.env_steps=200", "rollouts.fragment_env_steps=40", "evaluation.episodes=0", "record=dataset")
    with composing():
        prepared = prepare(["experiment=cartpole_team_ppo", "runtime=inline", "log.console=none", *short])
    mf.train(from_config(prepared.config, prepared.problems), folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DATA))
def test_the_commands_of_a_page_are_plans_that_can_run(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    *experts, line = commands(PAGES / f"{name}.md")
    for expert in experts:
        assert main(["plan", *shlex.split(expert)[2:]]) == 0
        record(tmp_path)
    capsys.readouterr()
    words = shlex.split(line.replace("=runs/expert/", f"={tmp_path}/"))[2:]
    assert f"experiment={name}" in words
    assert main(["plan", *words]) == 0
    planned = capsys.readouterr().out
    only_in_evaluation = DATA[name]["evaluation"]["opponents"]
    for policy, algorithm in DATA[name]["policies"].items():
        assert f"{policy} ({algorithm})" in planned or policy in only_in_evaluation
