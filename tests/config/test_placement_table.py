"""Python says of a run's processes what the command line says."""

import pytest

import marlflow as mf
from marlflow.cli.main import main


def test_python_says_who_gets_what_as_the_command_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["env=cartpole_team", "policy@policies.cart=dqn", "placement.learners.num_gpus=1"]
    assert main(["plan", *words, "--machines", "[{CPU: 16, GPU: 2, count: 2}]"]) == 0
    experiment = mf.Experiment(
        mf.Env("cartpole_team"),
        {"cart": mf.Policy(mf.DQN())},
        placement=mf.RunPlacement(learners=mf.LearnerPlacement(num_gpus=1)),
    )
    table = mf.placement(experiment, machines=[{"CPU": 16, "GPU": 2, "count": 2}])
    assert table.startswith("placement on 2 machines (machine 1: 16 CPU, 2 GPU; machine 2: 16 CPU, 2 GPU)")
    assert capsys.readouterr().out.endswith(f"\n\n{table}\n")


def test_a_run_without_ray_is_one_process() -> None:
    experiment = mf.Experiment(mf.Env("cartpole_team"), runtime=mf.RuntimeConfig("inline"))
    assert mf.placement(experiment) == "placement: one process, without Ray; learner cart on cpu"


def test_what_does_not_fit_is_refused() -> None:
    experiment = mf.Experiment(mf.Env("cartpole_team"), rollouts=mf.Rollouts(placement=mf.Resources(num_cpus=9)))
    with pytest.raises(mf.ConfigInvalid, match="rollout worker"):
        mf.placement(experiment, machines=[{"CPU": 2}])
