"""Trained policies that come with marlflow, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.config.imported_policies import source_policy
from marlflow.runs import saved_runs
from marlflow.runs.saved_runs import run_folder
from tests.sentences import refusals

NAMES = saved_runs.shipped_runs()
SHIPPED = Path(saved_runs.__file__).parent / "gallery"
MOST_BYTES, MOST_OF_ALL = 2_000_000, 20_000_000


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_they_are_small_and_say_nothing_of_their_user() -> None:
    assert NAMES
    sizes = {name: sum(path.stat().st_size for path in (SHIPPED / name).rglob("*") if path.is_file()) for name in NAMES}
    assert max(sizes.values()) < MOST_BYTES
    assert sum(sizes.values()) < MOST_OF_ALL
    for name in NAMES:
        about = json.loads((SHIPPED / name / "run.json").read_text(encoding="utf-8"))
        assert (about["started_in"], about["signature"]) == ("", "")


def test_lbf_is_played_by_its_name_in_lbforaging_itself() -> None:
    pytest.importorskip("lbforaging")
    result = mf.evaluate("gallery:lbf_10x10_3p_3f_ppo", episodes=20, env={"batched": False})
    # Random play eats a tenth of the food.
    assert result.returns[0].team.mean.value > 0.6
    team = mf.load("gallery:lbf_10x10_3p_3f_ppo")
    assert team.agents == ("agent_0", "agent_1", "agent_2")


def test_connect_four_wins_against_random_play() -> None:
    pytest.importorskip("pgx")
    result = mf.evaluate("gallery:pgx_connect_four_self_play", episodes=20, against=["random"])
    (against,) = result.comparisons
    # It has 0.9 with random openings, and random play against itself 0.
    assert against.results is not None
    assert against.results.score.value > 0.5


def test_they_are_opponents_by_their_names() -> None:
    pytest.importorskip("lbforaging")
    name = "gallery:lbf_10x10_3p_3f_ppo"
    result = mf.evaluate(name, episodes=2, env={"batched": False}, members="agent", against=[name, f"{name}:agent"])
    assert [one.opponent for one in result.comparisons] == [name, f"{name}:agent"]
    assert all(one.results is not None for one in result.comparisons)
    for unknown in ("gallery:lbf", "gallery:lbf:agent"):
        (problem,) = refusals(mf.ConfigInvalid, mf.evaluate, name, env={"batched": False}, against=unknown)
        assert "there is no gallery:lbf" in problem


@pytest.mark.parametrize(("name", "policy"), [("mpe_tag_ppo", "agent"), ("mpe_adversary_ppo", "adversary")])
def test_policies_of_other_experiments_are_taken_from_them(name: str, policy: str) -> None:
    saved = source_policy(mf.Frozen(f"gallery:{name}", policy), "opponent")
    assert saved.source == f"{policy} of gallery:{name}"
    assert (
        saved.sha256
        == source_policy(mf.FromRun(str(run_folder(f"gallery:{name}", "a test", "load")), policy), "").sha256
    )
    (problem,) = refusals(mf.ConfigInvalid, source_policy, mf.Frozen("gallery:mpe_tag_pp", "agent"), "opponent")
    assert "did you mean" in problem


def test_a_copy_is_the_users_and_made_again_if_it_was_damaged(own_cache: Path) -> None:
    copy = run_folder("gallery:lbf_10x10_3p_3f_ppo", "a test", "load")
    assert copy.is_relative_to(own_cache)
    assert [path.name for path in copy.parent.iterdir()] == ["lbf_10x10_3p_3f_ppo"]
    assert not list(copy.rglob(".*"))
    (copy / "evaluations").mkdir()
    assert run_folder("gallery:lbf_10x10_3p_3f_ppo", "a test", "load") == copy
    assert (copy / "evaluations").is_dir()
    (damaged,) = copy.glob("checkpoints/*/learner.agent.safetensors")
    damaged.write_bytes(b"")
    run_folder("gallery:lbf_10x10_3p_3f_ppo", "a test", "load")
    assert damaged.stat().st_size > 0
    elsewhere = own_cache / "elsewhere.json"
    (copy / "run.json").rename(elsewhere)
    (copy / "run.json").symlink_to(elsewhere)
    run_folder("gallery:lbf_10x10_3p_3f_ppo", "a test", "load")
    assert not (copy / "run.json").is_symlink()


def test_a_folder_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    (problem,) = refusals(mf.ConfigInvalid, run_folder, "gallery:lbf_10x10_3p_3f_ppo", "a test", "load")
    assert problem.endswith("set XDG_CACHE_HOME to a folder that you can write to")


@pytest.mark.parametrize("name", ["lbf", "", "../gallery", "lbf_10x10_3p_3f_ppo/checkpoints"])
def test_other_names_are_refused(name: str, own_cache: Path) -> None:
    (problem,) = refusals(mf.ConfigInvalid, run_folder, f"gallery:{name}", "a test", "load")
    assert problem.startswith(f"there is no gallery:{name}")
    assert not list(own_cache.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_each_is_loaded_and_acts_in_its_own_environment(name: str) -> None:
    try:
        team = mf.load(f"gallery:{name}")
        env = team.make_env()
    except mf.ConfigInvalid as error:
        # Only this is no failure: an extra of marlflow that is not installed here.
        if "pip install 'marlflow[" not in str(error):
            raise
        pytest.skip(str(error))
    first = env.reset(seed=team.reset(seed=0))
    if first is None:  # AEC
        observation, _, _, _, info = env.last()
        first = {env.agent_selection: observation}, {env.agent_selection: info}
    observations, infos = first
    actions = {agent: team.act(agent, observations[agent], infos[agent]) for agent in observations}
    assert all(env.action_space(agent).contains(action) for agent, action in actions.items())
    assert actions
    env.close()


def test_the_page_of_results_names_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs/results.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page.split("## Trained policies")[1].split("\n## ")[0]] == []
