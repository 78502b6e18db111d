"""`marlflow check-env`: what it says of good and of broken environments, and how it is called."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Marlflow

BROKEN = "tests.cli.broken_environments"
FEW = ("--episodes", "5")


def line(text: str, label: str) -> str:
    """What stands beside a label."""
    (found,) = [line for line in text.splitlines() if line.startswith(f"{label}  ")]
    return found.removeprefix(label).strip()


def test_a_good_environment_is_ready_and_the_next_command_is_named(marlflow: Marlflow) -> None:
    said = marlflow("check-env", "cartpole_team", "env.num_agents=2", "seed=4", *FEW)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("marlflow.env.games.cartpole_team.parallel_env  Parallel, 2 x cart, seed 4\n")
    assert line(said.out, "parallel_api_test") == "passed"
    assert line(said.out, "parallel_seed_test") == "passed"
    assert line(said.out, "rewards") == "conserved, not zero-sum"
    assert line(said.out, "reproducible") == "yes"
    assert line(said.out, "agents") == "cart_0, cart_1"
    assert line(said.out, "observations") == "Box(4,) float32"
    assert line(said.out, "ends") == "10 terminated, 0 truncated"
    assert line(said.out, "can play").startswith("ppo, a2c, ")
    assert line(said.out, "cannot play").startswith("mappo, happo: has a critic that sees state (critic_sees), and")
    assert "td3, ddpg: cannot act in Discrete(2); it needs Box actions\n" in said.out
    assert said.out.endswith("ready for marlflow\nnext: marlflow train env=cartpole_team env.num_agents=2 seed=4\n")


@pytest.mark.parametrize("words", [["env=tictactoe"], ["pettingzoo.classic.tictactoe_v3.env"]])
def test_an_environment_is_named_as_in_other_commands_or_by_its_import_path(
    marlflow: Marlflow, words: list[str]
) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    said = marlflow("check-env", *words, *FEW)
    assert (said.code, said.err) == (0, "")
    assert line(said.out, "rewards") == "conserved, zero-sum"
    assert line(said.out, "action masks").startswith("in the observation, ")


def test_no_line_ends_in_spaces(marlflow: Marlflow) -> None:
    said = marlflow("check-env", "cartpole_team", "--episodes=5")
    assert [line for line in said.out.splitlines() if line != line.rstrip()] == []


def test_of_what_an_environment_prints_the_first_lines_are_shown_apart_from_what_was_found(marlflow: Marlflow) -> None:
    said = marlflow("check-env", f"{BROKEN}.Talks", *FEW)
    assert "on my way" not in said.out
    *shown, last = said.err.splitlines()
    assert shown == ["on my way"] * 20
    assert re.fullmatch(r"[\d,]+ more lines of output left out; --all-output shows all", last)
    left_out = int(last.split()[0].replace(",", ""))
    everything = marlflow("check-env", f"{BROKEN}.Talks", *FEW, "--json", "--all-output")
    assert set(everything.err.splitlines()) == {"on my way"}
    assert len(everything.err.splitlines()) > 20
    assert left_out > 20
    assert json.loads(everything.out)["ready"]


def test_quitting_a_debugger_is_no_finding(marlflow: Marlflow) -> None:
    said = marlflow("check-env", f"{BROKEN}.Debugged", *FEW)
    assert (said.code, said.out) == (130, "")
    assert said.err.splitlines()[-1] == "interrupted: the debugger was quit"


def test_an_argument_of_the_environment_belongs_to_env(marlflow: Marlflow) -> None:
    said = marlflow("check-env", "cartpole_team", "num_poles=5")
    assert said.code == 2
    assert said.err.startswith("error: there is no num_poles; a run takes env, ")
    assert said.err.endswith("; an argument of the environment is env.num_poles=5\n")


def test_everything_as_json(marlflow: Marlflow) -> None:
    said = marlflow("check-env", "cartpole_team", "--episodes=5", "--json")
    found = json.loads(said.out)
    assert (said.code, found["ready"], found["problems"]) == (0, True, [])
    assert found["episodes"]["played"] == 5
    assert found["groups"][0]["agents"] == ["cart_0", "cart_1", "cart_2", "cart_3"]


# Of each environment: where in an episode it went wrong, and what PettingZoo's own API test made of it.
FAILING = {
    "WheelComesOff": (
        "env step 6: step() raised RuntimeError: the wheel came off",
        "failed: RuntimeError: the wheel came off",
    ),
    "GoesBlind": ("env step 4, agent 'cart_1': the observation has a NaN", "passed"),
    "Haunted": ("env step 1, agent 'ghost': agent 'ghost' is not one of possible_agents", "failed: possible_agents"),
    "NoMap": ("env step 0: reset() raised FileNotFoundError: no map 'arena'", None),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_environment_is_told_where_and_what_to_do(marlflow: Marlflow, name: str) -> None:
    said = marlflow("check-env", f"{BROKEN}.{name}", *FEW)
    where, api_test = FAILING[name]
    verdict = " ".join(said.out.partition("not ready for marlflow: ")[2].split())
    assert (said.code, said.err) == (1, "")
    assert "env 0, episode seed " in verdict
    assert where in verdict
    assert "-> " in verdict
    assert "ready for marlflow\nnext" not in said.out
    if api_test is not None:
        assert line(said.out, "parallel_api_test").startswith(api_test)


def test_what_an_environment_raised_is_shown_by_its_own_lines(marlflow: Marlflow) -> None:
    said = marlflow("check-env", f"{BROKEN}.WheelComesOff", *FEW)
    shown = said.out.partition("Traceback")[2].partition("not ready")[0]
    assert 'raise RuntimeError("the wheel came off")' in shown
    assert "broken_environments.py" in shown
    assert "ledger.py" not in shown
    assert "parallel.py" not in shown
    assert said.out.count("the wheel came off") == 4  # the API test, the traceback's last two lines, the verdict
    assert "1 thing is wrong" in said.out


@pytest.mark.parametrize(
    ("name", "test", "failure"),
    [
        ("SeedOnly", "parallel_api_test", "failed: TypeError: SeedOnly.reset() got an unexpected"),
        ("underpays", "api_test", "failed: reward returned by last is not the accumulated rewards"),
    ],
)
def test_what_only_pettingzoos_own_tests_find_is_wrong_too(
    marlflow: Marlflow, name: str, test: str, failure: str
) -> None:
    said = marlflow("check-env", f"{BROKEN}.{name}", *FEW)
    assert said.code == 1
    assert line(said.out, test).startswith(failure)
    assert line(said.out, "rewards") == "conserved, not zero-sum"
    assert f"1. PettingZoo's {test} fails" in said.out


CASES = {
    "nothing": ([], "check-env needs an environment: marlflow check-env connect_four"),
    "two": (["connect_four", "chess"], "check-env tries one environment at a time, not connect_four and chess"),
    "misspelt": (["conect_four"], "there is no env 'conect_four'; did you mean 'connect_four'?"),
    "argument": (["cartpole_team", "env.num_agentz=3"], "there is no env.num_agentz; did you mean 'env.num_agents'?"),
    "module": (["no_such_module.make"], "environment no_such_module.make cannot be imported"),
    "name": ([f"{BROKEN}.tree"], f"module {BROKEN} has no 'tree'; did you mean 'three'?"),
    "no environment": ([f"{BROKEN}.three"], "makes a int, not a PettingZoo AECEnv or ParallelEnv"),
    "cannot be made": (["cartpole_team", "env.num_agents=0"], "num_agents and max_cycles must be at least 1"),
    "no episodes": (["cartpole_team", "--episodes", "0"], "--episodes must be a whole number of at least 1, not '0'"),
    "many episodes": (["cartpole_team", "--episodes", "many"], "--episodes must be a whole number of at least 1"),
    "a number of many digits": (
        ["cartpole_team", "--episodes", "9" * 5_000],
        "--episodes must be a whole number of at most 9 digits, not '999",
    ),
    "no seconds": (["cartpole_team", "--seconds=0"], "--seconds must be a whole number of at least 1, not '0'"),
    "seconds without an end": (["cartpole_team", "--seconds=inf"], "--seconds must be a whole number of at least 1"),
    "number forgotten": (["cartpole_team", "--episodes"], "--episodes needs a value"),
    "flag": (
        ["cartpole_team", "--episode=3"],
        "marlflow check-env has no flag --episode=3; did you mean '--episodes'?",
    ),
}


@pytest.mark.parametrize(("words", "problem"), CASES.values(), ids=CASES)
def test_bad_input_is_one_clear_error(marlflow: Marlflow, words: list[str], problem: str) -> None:
    marlflow("check-env", *words).assert_refused(problem)


def test_the_next_command_has_the_folder_of_the_configuration(marlflow: Marlflow, tmp_path: Path) -> None:
    (tmp_path / "my conf" / "env").mkdir(parents=True)
    (tmp_path / "my conf" / "env" / "auction.yaml").write_text(
        "_target_: marlflow.env.games.cartpole_team.parallel_env\nnum_agents: 2\n", encoding="utf-8"
    )
    said = marlflow("check-env", "--config-dir", "my conf", "auction", *FEW)
    following = said.out.splitlines()[-1]
    assert following == "next: marlflow train --config-dir 'my conf' env=auction"
    command = shlex.split(following.partition("marlflow train ")[2])
    assert marlflow("plan", *command).code == 0


def test_an_environment_whose_episodes_are_longer_than_its_time_is_told_that_time_ran_out(marlflow: Marlflow) -> None:
    said = marlflow("check-env", f"{BROKEN}.Endless", "--seconds=1")
    text = " ".join(said.out.split())
    assert said.code == 1
    assert re.search(r"1\. time ran out after 1 s and [\d,]+ env steps, before the first random episode ended", text)
    assert "give more time (--seconds 600), or a lower limit of env steps; if they have no limit, truncate" in text
    assert marlflow("check-env", f"{BROKEN}.Endless", "env.ends_at=50", "--seconds=9", "--episodes=1").code == 0
