"""What the command line shows without running anything."""

import subprocess
import sys
from pathlib import Path

import pytest

from marlflow import __version__, conf
from tests.cli.conftest import Marlflow


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_shows_the_commands_and_a_first_step(marlflow: Marlflow, words: list[str]) -> None:
    said = marlflow(*words)
    assert (said.code, said.err) == (0, "")
    for text in ("train", "plan", "marlflow train env=simple_tag", "--shell-completion"):
        assert text in said.out


@pytest.mark.parametrize("command", ["train", "plan"])
def test_the_help_of_a_command_lists_every_option_of_every_group(marlflow: Marlflow, command: str) -> None:
    said = marlflow(command, "env=simple_tag", "--help")
    assert said.code == 0
    assert said.out.count(f"  marlflow {command} ") >= 3
    for path in Path(conf.__path__[0]).glob("*/*.yaml"):
        assert path.stem in said.out
        assert path.parent.name in said.out


def test_version(marlflow: Marlflow) -> None:
    assert marlflow("--version").out == f"marlflow {__version__}\n"


def test_help_imports_nothing_that_takes_long() -> None:
    heavy = ("torch", "ray", "hydra", "gymnasium", "pettingzoo", "numpy")
    code = f"""
import sys
from marlflow.cli.main import main
main(["--help"]); main(["train", "--help"]); main(["check-env", "--help"]); main(["plan", "--help"]); main(["trian"])
print([name for name in {heavy!r} if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_plan_says_who_plays_whom_and_draws_each_policys_flow(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow("plan", "env=simple_tag", "policy@policies.adversary=ppo", "policy@policies.agent=dqn")
    assert (said.code, said.err) == (0, "")
    first, second, empty, *drawn = said.out.splitlines()
    assert first == "policy adversary (ppo) plays adversary_0, adversary_1, adversary_2"
    assert second == "policy agent (dqn) plays agent_0"
    assert empty == ""
    for stage in ("Advantages", "Insert", "Draw", "Publish"):
        assert any(stage in line for line in drawn)
    assert not list(tmp_path.iterdir())


def test_a_plan_for_a_machine_with_gpus_is_drawn_on_one_without(marlflow: Marlflow) -> None:
    words = ("env=cartpole_team", "placement.learners.num_gpus=999", "runtime=ray")
    assert marlflow("plan", *words).code == 0
    refused = marlflow("train", *words)
    assert refused.code == 2
    assert "999 GPU" in refused.err


def test_a_plan_as_mermaid(marlflow: Marlflow) -> None:
    said = marlflow("plan", "experiment=cartpole_team_ppo_dqn", "--mermaid")
    assert said.out.startswith("flowchart")
    assert "ppo_team" in said.out


def test_the_command_line_of_the_design_composes(marlflow: Marlflow) -> None:
    rules = 'mapping=[{match: "adversary_*", policy: hunters}, {match: "agent_*", policy: prey}]'
    said = marlflow("plan", "env=simple_tag", rules, "policy@policies.hunters=ppo", "+policy@policies.prey=dqn")
    assert said.out.splitlines()[:2] == [
        "policy hunters (ppo) plays adversary_0, adversary_1, adversary_2",
        "policy prey (dqn) plays agent_0",
    ]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("marlflow ", "train resume plan check-env"),
        ("marlflow tr", "train"),
        ("marlflow check-env simple_t", "simple_tag"),
        ("marlflow check-env simple_tag env.num_g", "env.num_good="),
        ("marlflow train runtime=", "runtime=inline runtime=ray"),
        ("marlflow plan rollouts.num", "rollouts.num_workers="),
        ("marlflow train policy@policies.x=dqn policies.x.algorithm.n_", "policies.x.algorithm.n_step="),
        ("marlflow train policy@policies.x=dnq policies.x.algorithm.n_", ""),
    ],
)
def test_tab_completion(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch, line: str, offered: str) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    said = marlflow("-sc", "query=bash")
    assert (said.code, said.out) == (0, f"{offered}\n")


def test_tab_completion_is_installed_by_one_line(marlflow: Marlflow) -> None:
    said = marlflow("--shell-completion", "install=bash")
    assert "complete -o nospace -o default -F hydra_bash_completion marlflow" in said.out
