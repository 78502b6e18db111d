"""Every example runs as a reader would run it, and what it prints is true."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pettingzoo.test import parallel_api_test

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBER = r"([-+]?\d+(?:\.\d+)?)"
TIMEOUT_S = 240  # several times what the slowest takes on a busy machine: it ends a hang, it measures nothing


def said_by(example: str, *words: str, folder: Path) -> str:
    """What the example prints, run in a process of its own from `folder`, where its results then are."""
    ran = subprocess.run(
        [sys.executable, EXAMPLES / example, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def said_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """What an example prints, run in this process as if from a shell: to import PyTorch again takes as long."""

    def run(example: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / example)])
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        return capfd.readouterr().out

    return run


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers in the one line that matches `pattern`."""
    (found,) = re.findall(pattern, text)
    return [float(number) for number in ([found] if isinstance(found, str) else found)]


ENVIRONMENTS = {
    "01_ppo_and_dqn": "Deliveries",
    "02_a_policy_of_your_own": "RockPaperScissors",
    "03_a_plan_of_your_own": "Safes",
    "06_a_team": "Harbor",
    "07_rules_and_two_time_scales": "Floor Street",
    "10_curiosity_in_a_maze": "Maze",
}


@pytest.mark.parametrize("example", ENVIRONMENTS)
def test_their_environments_keep_pettingzoos_rules(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ENVIRONMENTS[example].split():
        parallel_api_test(getattr(importlib.import_module(example), name)())


@pytest.mark.parametrize("words", [(), ("--ray",)], ids=["inline", "ray"])
def test_ppo_and_dqn_learn_to_meet(words: tuple[str, ...], tmp_path: Path) -> None:
    said = said_by("01_ppo_and_dqn.py", *words, folder=tmp_path)
    for policy, algorithm in (("courier", "ppo"), ("customer", "dqn")):
        before, after = numbers(rf"{policy} \({algorithm}\): mean return {NUMBER} at first, {NUMBER} in the end", said)
        assert before < 5
        assert after > 12


def test_student_finds_the_habit_of_the_scripted_champion(said_here: Callable[[str], str]) -> None:
    said = said_here("02_a_policy_of_your_own.py")
    before, after = numbers(rf"student: {NUMBER} of 20 rounds at first, {NUMBER} in the end", said)
    assert before < 5
    assert after > 12


def test_curious_plan_opens_safes_that_plain_ppo_does_not(said_here: Callable[[str], str]) -> None:
    said = said_here("03_a_plan_of_your_own.py")
    curious, plain = (numbers(rf"{policy}: opened {NUMBER}% of its safes", said)[0] for policy in ("curious", "plain"))
    assert curious > 80
    assert plain < 10
    assert re.search(r"curious: curious_ppo\n.*\n.*→ Curiosity\(weight=0.1\) → Advantages", said), "the plan is printed"
    assert re.search(rf"curious after {NUMBER} updates: entropy {NUMBER}", said), "the stage on the driver prints"


def test_three_algorithms_learn_at_once_and_a_clone_from_what_one_of_them_did(said_here: Callable[[str], str]) -> None:
    said = said_here("04_three_algorithms_and_a_clone.py")
    returns = {name: numbers(rf"\n{name}: a return of {NUMBER}", said)[0] for name in ("ppo", "dqn", "sac", "clone")}
    assert min(returns.values()) > 60
    assert returns["clone"] > 0.8 * returns["ppo"]


def test_a_league_with_a_matchmaker_of_ones_own_ranks_its_members(said_here: Callable[[str], str]) -> None:
    said = said_here("05_a_league.py")
    places = re.findall(rf"^(\d+) +(main(?:@\d)?|random) +(?:ppo|random) +{NUMBER}±", said, re.M)
    members = [name for _, name, _ in places]
    assert [int(place) for place, _, _ in places] == list(range(1, len(places) + 1))
    assert {"main", "main@1", "main@2", "main@5", "random"} <= set(members)
    assert {"main@4", "main@5"} & set(members[:3]), "the last snapshots are among the best"
    assert min(members.index(name) for name in ("random", "main@1")) > len(members) // 2
    assert numbers(rf"main: a return of {NUMBER} against random", said)[0] > 0.3


def test_a_team_finds_a_language_that_a_policy_with_another_algorithm_learns_to_read(
    said_here: Callable[[str], str],
) -> None:
    said = said_here("06_a_team.py")
    for learner, algorithm in (("harbor", "vdn"), ("truck", "ppo")):
        before, after = numbers(rf"{learner} \({algorithm}\): {NUMBER} of 10 ships at first, {NUMBER} in the end", said)
        assert before < 7
        assert after > 9
    assert "harbor: vdn for lookout and crane" in said, "the plan is printed"
    assert re.search(rf"harbor +return +{NUMBER}.*\n.*  lookout +return", said), "the team has a line of its own"


def test_a_courier_obeys_rules_and_a_dispatcher(said_here: Callable[[str], str]) -> None:
    said = said_here("07_rules_and_two_time_scales.py")
    done, fell = numbers(rf"courier \(ppo\): fetched and delivered in {NUMBER}% of its days, fell {NUMBER} times", said)
    assert done > 90
    assert fell == 0
    assert numbers(rf"dispatcher \(dqn\) above courier \(ppo\): {NUMBER}% of parcels at the right end", said)[0] > 90


def test_a_speaker_leaves_its_clone_as_far_as_it_pays(said_here: Callable[[str], str]) -> None:
    said = said_here("08_tokens_near_a_reference.py")
    pattern = rf"beta {NUMBER}: understood {NUMBER}% of the time \(best: {NUMBER}%\), {NUMBER} nats from the clone"
    found = [[float(number) for number in numbers] for numbers in re.findall(pattern, said)]
    assert [(beta, best) for beta, _, best, _ in found] == [(100, 67), (1, 84), (0.05, 100)]
    # Of the last 100 episodes, with a standard deviation of 5 %.
    assert all(abs(right - best) < 20 for _, right, best, _ in found)
    near, between, far = (kl for *_, kl in found)
    assert near < 0.12
    assert near < far > between


def test_heaters_keep_a_limit_that_has_a_price(tmp_path: Path) -> None:
    said = said_by("09_a_limit_on_costs.py", folder=tmp_path)
    assert numbers(rf"without a limit: warmth {NUMBER} per night", said)[0] > 5.8
    warmth, cost, price = numbers(
        rf"warmth {NUMBER} per night, which costs {NUMBER}; a cost of 1 is worth {NUMBER}", said
    )
    # A cost brings as much warmth, which is 3 without any.
    assert abs(warmth - cost - 3) < 0.02
    assert 0.5 < cost < 1.0
    # The temperature of .1 favors a share of one half, which makes a quarter dearer than 1: 1 + .1 log 3.
    assert abs(price - 1.11) < 0.1


def test_curiosity_finds_what_plain_ppo_never_sees(tmp_path: Path) -> None:
    said = said_by("10_curiosity_in_a_maze.py", "3", folder=tmp_path)
    plain, curious = re.findall(NUMBER + "%", said)
    assert int(plain) == 0
    assert int(curious) >= 90


def test_ppo_in_one_page_learns_beside_the_shipped_ppo(tmp_path: Path) -> None:
    said = said_by("11_ppo_in_one_page.py", folder=tmp_path)
    for policy in ("own", "shipped"):
        (evaluated,) = numbers(rf"{policy} return [^;]*eval sampled {NUMBER} \+-", said.splitlines()[-1])
        assert evaluated > 100


def test_every_example_is_run_here() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    forgotten = [path.name for path in EXAMPLES.glob("[0-9]*.py") if f'"{path.name}"' not in tests]
    assert not forgotten, f"examples that no test runs: {forgotten}"
