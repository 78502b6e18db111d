"""What the command line shows without running anything."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from marlflow import __version__, conf
from marlflow.cli.arguments import COMMANDS
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
        if path.parent.name == "suite":
            assert path.stem in marlflow("benchmark", "--help").out
            continue
        assert path.stem in said.out
        assert path.parent.name in said.out


def test_version(marlflow: Marlflow) -> None:
    assert marlflow("--version").out == f"marlflow {__version__}\n"


@pytest.mark.slow
def test_help_imports_nothing_that_takes_long() -> None:
    heavy = ("torch", "ray", "hydra", "gymnasium", "pettingzoo", "numpy")
    code = f"""
import sys
from marlflow.cli.arguments import COMMANDS
from marlflow.cli.main import main
main(["--help"]); main(["train", "--help"]); main(["check-env", "--help"]); main(["plan", "--help"]); main(["trian"])
print([name for name in {heavy!r} if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


# What takes a tenth of a second or more to import, and no plan needs.
NOT_FOR_PLANS = (
    *("ray", "marlflow.check_env", "tensorboard", "matplotlib", "pandas", "scipy", "pyarrow", "PIL", "pygame", "numba"),
    *("supersuit", "sympy", "torch._dynamo", "torch._inductor", "torch.utils.tensorboard"),
)


@pytest.mark.slow
def test_a_plan_imports_neither_ray_nor_what_checks_environments_and_collects_no_imports() -> None:
    code = f"""
import gc, sys
from marlflow.cli.main import main
sys.argv = ["marlflow", "plan", "env=cartpole_team", "--mermaid"]
main()
print([name for name in {NOT_FOR_PLANS!r} if name in sys.modules], gc.isenabled(), gc.get_freeze_count() > 100_000)
gc.disable()
sys.argv = ["marlflow", "trian"]
main()
print(gc.isenabled())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-2:] == ["[] True True", "True"]


def test_a_command_in_a_process_of_ones_own_leaves_its_garbage_collection_alone(marlflow: Marlflow) -> None:
    gc.disable()
    try:
        frozen = gc.get_freeze_count()
        assert marlflow("plan", "env=cartpole_team").code == 0
        assert not gc.isenabled()
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.enable()


@pytest.mark.slow
def test_tab_completion_of_an_override_imports_nothing_of_a_run() -> None:
    code = f"""
import sys
from marlflow.cli.main import main
main(["-sc", "query=bash"])
print([name for name in {("torch", "ray", "gymnasium", "pettingzoo")!r} if name in sys.modules])
"""
    line = "marlflow train experiment=cartpole_team_ppo_dqn stop.env_st"
    variables = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
    assert ran.stdout.splitlines() == ["stop.env_steps=", "[]"]


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


def test_a_plan_says_which_parts_a_learner_has(marlflow: Marlflow) -> None:
    said = marlflow("plan", "env=cartpole_team", "parts@default_policy.algorithm.parts.values=pop_art")
    assert (said.code, said.err) == (0, "")
    assert "learner cart has the part values (PopArt)" in said.out.splitlines()


def test_a_plan_says_who_is_trained_together(marlflow: Marlflow) -> None:
    words = ("learner@learners.pair=vdn", "learners.pair.policies=[speaker,listener]")
    said = marlflow("plan", "env=simple_speaker_listener", *words)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[:3] == [
        "policy speaker (vdn) plays speaker_0",
        "policy listener (vdn) plays listener_0",
        "learner pair (vdn) trains speaker and listener",
    ]
    assert "└── pair: vdn for speaker and listener" in said.out


def test_a_plan_of_a_league_says_who_is_in_it(marlflow: Marlflow) -> None:
    said = marlflow("plan", "env=rps", "league=pfsp", "policy@policies.main=ppo", "policy@policies.exploiter=dqn")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[:4] == [
        "policy main (ppo) plays player_0, player_1",
        "policy exploiter (dqn) plays player_0, player_1",
        "",
        "rollouts: in rounds, in lockstep with main",
    ]
    assert "└── league: pfsp over main (ppo), exploiter (dqn); sides player_0 | player_1" in said.out.splitlines()


ELSEWHERE = "; to plan for other machines, describe them: --machines '[{CPU: 16, GPU: 2, count: 4}]'"
GPUS = ("placement=gpu_per_policy", "placement.learners.num_gpus=999")


@pytest.mark.parametrize("words", [GPUS, (*GPUS, "runtime=ray", "rollouts.num_workers=3")])
def test_a_plan_is_refused_where_a_run_would_be_and_says_how_to_plan_for_other_machines(
    marlflow: Marlflow, tmp_path: Path, words: tuple[str, ...]
) -> None:
    planned, trained = marlflow("plan", *words), marlflow("train", *words)
    assert (planned.code, trained.code) == (2, 2)
    assert trained.err.startswith("error: the run asks for 999 GPU (999 for learner cart), but there are ")
    assert planned.err == f"{trained.err.rstrip()}{ELSEWHERE}\n"
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_not_there_is_said_inline_too(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ("runtime=inline", "placement=gpu_per_policy")
    planned, trained = marlflow("plan", *words), marlflow("train", *words)
    assert (planned.code, trained.code) == (2, 2)
    assert planned.err == trained.err
    assert planned.err.startswith("error: learner 'cart' is to compute on cuda, and torch sees no GPU")


def placed(out: str) -> list[str]:
    lines = out.splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("placement")) :]


def test_a_plan_says_who_gets_what_of_this_machine(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("checks.commands", "runtime.ray.runtime"):
        monkeypatch.setattr(f"marlflow.{module}.local_resources", lambda: {"CPU": 2.0, "GPU": 1.0})
    assert placed(marlflow("plan", "experiment=simple_tag_ppo_dqn", "placement=one_gpu").out) == [
        "placement on this machine (2 CPU, 1 GPU)",
        "  rollout workers 0, 1  0.5 CPU each",
        "  learner adversary     0.5 CPU, 0.5 of GPU 0; computes on cuda",
        "  learner agent         0.5 CPU, 0.5 of GPU 0; computes on cuda",
    ]
    assert placed(marlflow("plan", "runtime=inline").out) == [
        "placement: one process, without Ray; learner cart on cpu"
    ]


def test_a_plan_for_machines_that_are_described(marlflow: Marlflow) -> None:
    words = ("placement=[cluster,gpu_per_policy]", "rollouts.num_workers=12", "policy@policies.cart=dqn")
    own = ("policies.cart.placement.replay=own", "policies.cart.placement.node=10.0.0.7")
    machines = ("--machines", "[{CPU: 16, GPU: 2, node: 10.0.0.7}, {CPU: 8, fpga: 1, count: 2}]")
    assert placed(marlflow("plan", *words, *own, *machines).out) == [
        "placement on 3 machines (10.0.0.7: 16 CPU, 2 GPU; machine 2: 8 CPU, 0 GPU, 1 fpga; "
        "machine 3: 8 CPU, 0 GPU, 1 fpga), as Ray may choose it",
        "  rollout workers 0, 3, 6, 9   machine 2  1 CPU each",
        "  rollout workers 1, 4, 7, 10  machine 3  1 CPU each",
        "  rollout workers 2, 5, 8, 11  10.0.0.7   1 CPU each",
        "  learner cart                 10.0.0.7   1 CPU, GPU 0; computes on cuda",
        "  replay cart                  10.0.0.7   1 CPU",
    ]


def test_a_plan_as_mermaid(marlflow: Marlflow) -> None:
    said = marlflow("plan", "experiment=cartpole_team_ppo_dqn", "--mermaid")
    assert said.out.startswith("flowchart")
    assert "ppo_team" in said.out


def test_what_an_environment_prints_is_no_part_of_the_plan(marlflow: Marlflow) -> None:
    words = ("plan", "env=python", "env._target_=tests.cli.broken_environments.Talks", "runtime=inline", "--mermaid")
    said = marlflow(*words)
    assert said.out.startswith("flowchart")
    *shown, last = said.err.splitlines()
    assert shown == ["on my way"] * 20
    assert last == "10 more lines of output left out; --all-output shows all"
    assert marlflow(*words, "--all-output").err == "on my way\n" * 30


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
        ("marlflow ", " ".join(COMMANDS)),
        ("marlflow tr", "train"),
        ("marlflow check-env simple_t", "simple_tag"),
        ("marlflow check-env simple_tag env.num_g", "env.num_good="),
        ("marlflow train runtime=", "runtime=inline runtime=ray"),
        ("marlflow plan rollouts.num", "rollouts.num_workers="),
        ("marlflow train policy@policies.x=dqn policies.x.algorithm.n_", "policies.x.algorithm.n_step="),
        ("marlflow train policy@policies.x=dnq policies.x.algorithm.n_", ""),
        (
            "marlflow train learner@learners.x=ma",
            "learner@learners.x=maddpg learner@learners.x=masac learner@learners.x=matd3",
        ),
        ("marlflow train learner@learners.x=vdn learners.x.algorithm.n_", "learners.x.algorithm.n_step="),
        ("marlflow eva", "evaluate"),
        ("marlflow evaluate run --ep", "--episodes"),
        ("marlflow evaluate run ep", "episodes="),
        (
            "marlflow evaluate run --members main --",
            "--episodes --against --mode --units --checkpoint --strict --seed --workers --json --trust",
        ),
        ("marlflow lea", "league"),
        ("marlflow league run --e", "--export"),
        ("marlflow league run --export main f --", "--nash-conv --strict --trust"),
        ("marlflow res", "resume"),
        ("marlflow resume run stop.env", "stop.env_steps="),
        ("marlflow resume run seed=1 rollouts.num_w", "rollouts.num_workers="),
    ],
)
def test_tab_completion(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch, line: str, offered: str) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    said = marlflow("-sc", "query=bash")
    assert (said.code, said.out) == (0, f"{offered}\n")


@pytest.mark.parametrize("words", ["evaluate ru", "league ", "league ru", "league run --export main ", "resume ru"])
def test_files_are_left_to_the_shell(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("COMP_LINE", f"marlflow {words}")
    monkeypatch.setenv("COMP_POINT", str(len(f"marlflow {words}")))
    said = marlflow("--shell-completion", "query=bash")
    assert (said.code, said.out) == (0, "")


HELP = {
    "evaluate": ("members=", "against=", "episodes=N", "evaluations/<n>.json", "mixture", ".safetensors"),
    "league": ("marlflow league RUN", "export=MEMBER,FILE", "payoffs.parquet", "nash"),
    "resume": ("marlflow resume <run directory> [key=value ...]", "what may change:"),
    "check-env": ("connect_four", "my_module.make_env", "--episodes", "--json", "exit codes"),
    "play": ("video=FILE", "episodes=N", "as=AGENT", "--record", "against=NAME", "seats=", "clock=S", "view=VIEW"),
}


@pytest.mark.parametrize("command", HELP)
def test_the_help_of_a_command_has_what_it_takes_and_is_shown_for_a_run_too(marlflow: Marlflow, command: str) -> None:
    said = marlflow(command, "--help")
    assert (said.code, said.err) == (0, "")
    for text in HELP[command]:
        assert text in said.out
    assert f"  {command} " in marlflow("--help").out
    assert marlflow(command, "run", "-h").out == said.out
    assert max(map(len, said.out.splitlines())) <= 120


def test_tab_completion_is_installed_by_one_line(marlflow: Marlflow) -> None:
    said = marlflow("--shell-completion", "install=bash")
    assert "complete -o nospace -o default -F hydra_bash_completion marlflow" in said.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["env=simple_tag"],
            "groups adversary and agent have default_policy; for another, policy@policies.adversary=<name>",
        ),
        (
            ["policy@policies.agent=dqn"],
            "group adversary has default_policy; for another, policy@policies.adversary=<name>",
        ),
        (["policy@policies.agent=dqn", "policy@policies.adversary=ppo"], None),
        (["learner@learners.team=qmix", "learners.team.policies=[adversary,agent]", "wrappers=joint_state"], None),
        (["mapping=[{match: '*', policy: agent}]", "policy@policies.agent=ppo", "wrappers=padding"], None),
    ],
)
def test_groups_without_a_policy_of_their_own_are_named(words: list[str], line: str | None, marlflow: Marlflow) -> None:
    said = marlflow("plan", "env=simple_tag", *words)
    assert said.code == 0, said.err
    assert [one for one in said.out.splitlines() if one.startswith("group")] == ([line] if line else [])
