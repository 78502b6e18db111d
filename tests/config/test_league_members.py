"""Members of other runs and exported files in a league: what is made of them, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.algorithms.from_run import Imported, SavedPolicy
from marlflow.checks.validation import ready
from marlflow.config.imported_policies import described_member, imported_policy, load_policy, policy_of
from marlflow.runs.saved_league import saved_run
from marlflow.runs.saved_policies import from_export, read_export, to_export
from marlflow.runs.saved_runs import EXPERIMENT
from tests.league.runs import LEAGUES, league_run
from tests.runtime.small_runs import small_run
from tests.sentences import refusals

RUN = league_run(LEAGUES["pfsp"], 300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of this game, an exported member of it, and a run of another game."""
    folder = tmp_path_factory.mktemp("runs")
    mf.train(RUN, folder / "rps")
    mf.train(small_run(env_steps=200), folder / "carts")
    (folder / "second.safetensors").write_bytes(to_export(policy_of(saved_run(folder / "rps"), "main@2")))
    (folder / "empty").mkdir()
    (folder / "text.safetensors").write_text("not tensors", encoding="utf-8")
    return folder


def with_members(
    members: Mapping[str, Mapping[str, Any]], trust: tuple[str, ...] = (), **changes: Any
) -> mf.Experiment:
    return replace(RUN, league=replace(LEAGUES["pfsp"], members=members, trust=trust), **changes)


def veteran(runs: Path, **given: str) -> mf.Experiment:
    return with_members({"veteran": {"from": str(runs / "rps"), "member": "main@2"} | given})


def problems(experiment: mf.Experiment) -> list[str]:
    return refusals(mf.InvalidInput, ready, experiment)


def test_an_import_has_the_parameters_of_its_source_and_never_learns(runs: Path) -> None:
    checked = ready(veteran(runs))
    spec = checked.spec.policies["veteran"]
    assert isinstance(spec.algorithm, Imported)
    source = load_policy(runs / "rps", "main@2")
    np.testing.assert_array_equal(spec.actor().flat(), source.flat)  # type: ignore[attr-defined]
    assert checked.spec.learning == ("main",)
    assert checked.players["veteran"] == ["player_0", "player_1"]
    line = described_member("veteran", spec.algorithm)
    assert line.startswith(f"member veteran: main@2 of {runs / 'rps'} (ppo, version ")
    assert source.sha256 in line


def test_a_file_is_the_same_member(runs: Path) -> None:
    given = {"from": str(runs / "second.safetensors")}
    for member in ({}, {"member": "main@2"}):
        spec = ready(with_members({"veteran": {**given, **member}})).spec.policies["veteran"]
        assert isinstance(spec.algorithm, Imported)
        assert spec.algorithm.saved.sha256 == load_policy(runs / "rps", "main@2").sha256


def test_the_only_policy_of_a_run_without_a_league_needs_no_name(tmp_path: Path) -> None:
    mf.train(replace(RUN, league=None, mapping=[mf.Rule("*", "main")]), tmp_path / "alone")
    imported = ready(with_members({"veteran": {"from": str(tmp_path / "alone")}})).spec.policies["veteran"].algorithm
    assert isinstance(imported, Imported)
    assert imported.saved.sha256 == load_policy(tmp_path / "alone", "main").sha256


def test_policies_of_the_run_and_random_by_another_name(runs: Path) -> None:
    policies = {**RUN.policies, "script": mf.Policy(mf.Random())}
    members = {"dice": {"policy": "random"}, "same": {"policy": "script"}}
    spec = ready(with_members(members, policies=policies)).spec
    assert [spec.policies[name].algorithm for name in members] == [mf.Random(), mf.Random()]


def test_players_may_narrow_the_agents_of_a_member(runs: Path) -> None:
    league = veteran(runs).league
    assert league is not None
    narrowed = replace(league, players={"veteran": mf.LeaguePlayer(["player_1"])})
    assert ready(replace(RUN, league=narrowed)).players["veteran"] == ["player_1"]


def test_scheduled_values_of_a_live_member_are_those_of_its_agent_steps(runs: Path, tmp_path: Path) -> None:
    dqn = {"main": mf.Policy(mf.DQN(learning_starts_agent_steps=100), RUN.policies["main"].model)}
    mf.train(replace(RUN, policies=dqn), tmp_path / "dqn")
    live = imported_policy(load_policy(tmp_path / "dqn", "main"), ()).acts_by
    assert isinstance(live, Imported)
    steps = live.saved.description["agent_steps"]
    assert steps > 0
    spaces = ready(RUN).spec.policies["main"].spaces
    actor: Any = live.actor(spaces, RUN.policies["main"].model, 0)
    assert actor.epsilon == pytest.approx(live.algorithm.schedules(steps)["epsilon"])


# -- refusals -------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt member": (
        {"from": "{runs}/rps", "member": "mian@2"},
        "league.members.veteran: the league of {runs}/rps has no member 'mian@2'; did you mean 'main@2'?",
    ),
    "no member": ({"from": "{runs}/rps"}, "{runs}/rps has several members; name one: main, main@1"),
    "no folder": ({"from": "{runs}/nowhere", "member": "main"}, "there is no {runs}/nowhere; give the folder of a run"),
    "no run": ({"from": "{runs}/empty", "member": "main"}, "{runs}/empty is the folder of no run"),
    "no export": ({"from": "{runs}/text.safetensors"}, "{runs}/text.safetensors is no file of a member"),
    "another member": (
        {"from": "{runs}/second.safetensors", "member": "main@1"},
        "{runs}/second.safetensors has the member 'main@2' and no other, not 'main@1'",
    ),
    "other spaces": ({"from": "{runs}/carts", "member": "hunters"}, "hunters of {runs}/carts observes Box("),
    "learns": ({"policy": "main"}, "league.members.veteran.policy: 'main' learns, so it is a member itself"),
    "no policy": (
        {"policy": "randm"},
        "league.members.veteran.policy: there is no policy 'randm'; did you mean 'random'",
    ),
    "both": ({"from": "{runs}/rps", "policy": "random"}, "league.members.veteran must be {{from: <folder of a run>"),
    "neither": ({}, "league.members.veteran must be {{from: <folder of a run>"),
    "key": (
        {"form": "{runs}/rps"},
        "there is no league.members.veteran.form; did you mean 'league.members.veteran.from'?",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_member_that_cannot_be_had_is_one_clear_problem(case: str, runs: Path) -> None:
    given, message = REFUSED[case]
    filled = {key: value.format(runs=runs) for key, value in given.items()}
    (problem,) = problems(with_members({"veteran": filled}))
    assert message.format(runs=runs) in problem


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("main", "league.members.main: the name is taken by a policy of this run; give the member another one"),
        ("old@3", "league.members.old@3: a name has none of @ : /"),
        ("a:b", "league.members.a:b: a name has none of @ : /"),
    ],
)
def test_names_that_mean_something_else(name: str, message: str, runs: Path) -> None:
    (problem,) = problems(with_members({name: {"from": str(runs / "second.safetensors")}}))
    assert problem.startswith(message)


def test_all_members_are_checked_at_once(runs: Path) -> None:
    assert len(problems(with_members({"one": {"policy": "main"}, "two": {"from": "nowhere", "member": "x"}}))) == 2


# -- trust ----------------------------------------------------------------------------------------------------------


def described(saved: SavedPolicy, change: Callable[[dict[str, Any]], Any]) -> SavedPolicy:
    description = json.loads(json.dumps(saved.description))
    change(description)
    return SavedPolicy(saved.flat, description, "changed")


@pytest.mark.parametrize(
    ("target", "trust", "message"),
    [
        ("evil.Model", (), r"elsewhere: model._target_='evil.Model'; .* set league.trust=\[evil.Model\]"),
        ("os.system", (), "_target_='os.system'; look at it"),
        ("marlflow.train", (), "_target_='marlflow.train'; look at it"),
        ("marlflow.cli.main.main", (), "_target_='marlflow.cli.main.main'; look at it"),
        ("marlflow.PPO", (), "_target_='marlflow.PPO'; look at it"),
        ("tests.league.runs.league_run", ("evil.Model",), "tests.league.runs.league_run'; look at it"),
        ("marlflow.CNN", ("evil.Model",), "marlflow.CNN|CNN"),
    ],
)
def test_classes_are_marlflows_or_trusted(
    target: str, trust: tuple[str, ...], message: str, runs: Path, tmp_path: Path
) -> None:
    def change(description: dict[str, Any]) -> None:
        description["config"]["model"] = {"_target_": target, "hidden_sizes": [16]}

    changed = described(read_export(runs / "second.safetensors"), change)
    (tmp_path / "changed.safetensors").write_bytes(to_export(changed))
    member = {"veteran": {"from": str(tmp_path / "changed.safetensors")}}
    found = problems(with_members(member, trust))
    with pytest.raises(mf.ConfigInvalid, match=message):
        raise mf.ConfigInvalid(found)


def test_a_trusted_class_is_imported_and_any_other_is_not(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from marlflow import MLP\nclass Model(MLP):\n    pass\n"
    (tmp_path / "evil_module.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    saved = described(
        read_export(runs / "second.safetensors"),
        lambda description: description["config"]["model"].update(_target_="evil_module.Model"),
    )
    with pytest.raises(mf.ConfigInvalid, match=r"set league.trust=\[evil_module.Model\]"):
        imported_policy(saved, ())
    assert "evil_module" not in sys.modules
    assert type(imported_policy(saved, ["evil_module.Model"]).model).__module__ == "evil_module"
    del sys.modules["evil_module"]


def test_a_network_of_another_size_is_refused_without_building_it(runs: Path, tmp_path: Path) -> None:
    for sizes in ([17], [100_000, 100_000]):

        def change(description: dict[str, Any], sizes: list[int] = sizes) -> None:
            description["config"]["model"]["hidden_sizes"] = sizes

        changed = described(read_export(runs / "second.safetensors"), change)
        (tmp_path / "changed.safetensors").write_bytes(to_export(changed))
        (problem,) = problems(with_members({"veteran": {"from": str(tmp_path / "changed.safetensors")}}))
        assert "parameters, which are not those of the network that it describes" in problem


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda description: description.pop(name)


@pytest.mark.parametrize(
    "change",
    [
        *map(without, ("member", "version", "observation_space", "scheduled")),
        lambda description: description.update(scheduled={"epsilon": "high"}),
        lambda description: description.update(stages=["x"]),
        lambda description: description.update(config=3),
    ],
)
def test_a_malformed_description_is_no_member(change: Any, runs: Path) -> None:
    data = to_export(described(read_export(runs / "second.safetensors"), change))
    with pytest.raises(mf.ConfigInvalid, match=r"x is no file of a member \(its description has"):
        from_export(data, "x")


def test_parameters_that_are_not_finite_are_refused(runs: Path) -> None:
    saved = read_export(runs / "second.safetensors")
    data = to_export(SavedPolicy(saved.flat * np.float32(np.nan), saved.description, ""))
    with pytest.raises(mf.ConfigInvalid, match="its parameters are not finite"):
        from_export(data, "x")


def test_a_run_that_recorded_nothing_says_so(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "rps", tmp_path / "run")
    (tmp_path / "run" / EXPERIMENT).unlink()
    (problem,) = problems(with_members({"veteran": {"from": str(tmp_path / "run"), "member": "main"}}))
    assert "its run recorded no configuration" in problem


def test_no_members_is_the_default() -> None:
    assert (mf.League().members, mf.League().trust) == ({}, ())
