"""Train 2N equals train N, resume, train N: parameters, optimizers, replays, workers, counters, metrics; each bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pettingzoo.classic import connect_four_v3

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.checks.validation import ready
from marlflow.driver.checkpointing import identity
from marlflow.env.games import cartpole_team
from marlflow.policy.actor import Acted, Mode
from marlflow.runs.saved_runs import newest
from tests.driver.kept_runs import assert_equal, by_env, driver, kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, SMALL_R2D2, policies, small_run

# A round has 160 agent steps of a policy, so at this number of env steps a batch of 200 is half gathered, and poles are
# upright.
HALF, WHOLE = 720, 1_360


class RecurrentActor:
    """An actor with memory: it mixes its observation with earlier ones, so a lost memory changes its actions."""

    def __init__(self, inner: Any, shape: tuple[int, ...]) -> None:
        self.inner, self.memory_shape = inner, shape

    def act(self, obs: Array, mask: Array | None, memory: Any, mode: Mode, generator: mf.RowRandom) -> Acted:
        seen = (obs + 0.5 * memory).astype(obs.dtype)
        made = self.inner.act(seen, mask, None, mode, generator)
        return Acted(made.action, made.behavior_logp, seen.astype(np.float32))

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.inner.set_schedule(values)

    def flat(self) -> Array:
        flat: Array = self.inner.flat()
        return flat

    def load_flat(self, flat: Array) -> None:
        self.inner.load_flat(flat)


@dataclass(frozen=True)
class RememberingDQN(mf.DQN):
    """DQN whose actor has memory."""

    name: ClassVar[str] = "remembering_dqn"

    def actor(self, spaces: Spaces, model: mf.TorsoConfig, seed: int) -> Any:
        return RecurrentActor(super().actor(spaces, model, seed), spaces.obs_shape)


def remembering(kind: type[Any], like: Any) -> Any:
    return kind(**{name: getattr(like, name) for name in (field.name for field in fields(like))})


class Alternating(mf.Matchmaker):
    """A matchmaker that counts its matchups, so that it has a state."""

    def __init__(self) -> None:
        self.dealt = 0

    def __call__(self, episode: mf.EpisodeId, agents: Any, generator: np.random.Generator) -> dict[str, str]:
        self.dealt += 1
        names = ["hunters", "prey"] if self.dealt % 3 else ["prey", "prey"]
        return {agent: names[place % 2] for place, agent in enumerate(agents)}

    def state(self) -> Any:
        return {"dealt": self.dealt}

    def load_state(self, tree: Any) -> None:
        self.dealt = tree["dealt"]


SMALL_RECURRENT_PPO = mf.RecurrentPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64, sequence_agent_steps=8)
EVALUATED = mf.Evaluation(every_env_steps=300, episodes=3)
OWN = replace(mf.Policy().placement, replay="own")
PRIORITIZED = mf.Policy(replace(SMALL_DQN, prioritized=True, replay_agent_steps=700), SMALL, placement=OWN)
BOARD = policies(red=SMALL_PPO, yellow=SMALL_DQN)
OVERLAP = mf.Rollouts(num_workers=2, fragment_env_steps=40, pace="overlap")
RUNS: dict[str, mf.Experiment] = {
    "prioritized, evaluated": small_run(
        policies={"hunters": mf.Policy(SMALL_PPO, SMALL), "prey": PRIORITIZED}, evaluation=EVALUATED
    ),
    "in turns": small_run(
        env=mf.Env(connect_four_v3.env, num_envs=6), policies=BOARD, mapping=mf.RandomSeats(["red", "yellow"])
    ),
    "remembering, dealt by one with a state": small_run(
        policies={
            "hunters": mf.Policy(SMALL_RECURRENT_PPO, mf.GRU(16, (16,))),
            **policies(prey=remembering(RememberingDQN, SMALL_DQN)),
        },
        mapping=Alternating(),
    ),
    "sequences, overlapping": small_run(
        policies={"hunters": mf.Policy(replace(SMALL_PPO, max_staleness=1), SMALL), "prey": SMALL_R2D2},
        rollouts=OVERLAP,
    ),
}


def until(experiment: mf.Experiment, env_steps: int, **changes: Any) -> mf.Experiment:
    checkpoint = mf.CheckpointConfig(every_env_steps=None)
    return replace(experiment, **{"stop": mf.Stop(env_steps=env_steps), "checkpoint": checkpoint, **changes})


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_goes_on_does_what_it_would_have_done(name: str, tmp_path: Path) -> None:
    resumes_exactly(until(RUNS[name], WHOLE), tmp_path, HALF).assert_mid_way()


def test_reports_that_are_dropped_are_counted_and_the_last_stays_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def experiment(env_steps: int) -> mf.Experiment:
        log, evaluation = mf.Log(80, "plain", tensorboard=False), mf.Evaluation(10_000, episodes=2)
        return small_run(env_steps=env_steps, log=log, evaluation=evaluation, checkpoint=mf.CheckpointConfig(10_000))

    mf.train(experiment(160), tmp_path)
    last = reports(tmp_path)[-1]
    assert last["policies"]["hunters"]["eval_env_steps"] == 160, "the evaluation of the end comes after the checkpoint"
    capsys.readouterr()
    mf.resume(experiment(320), tmp_path)
    said = (
        "1 report is dropped from metrics.jsonl, made after the checkpoint at 160 env steps: the run continues from "
        "there as if it had never stopped; run.log has it"
    )
    assert said in capsys.readouterr().out.splitlines()
    (logged,) = [line for line in (tmp_path / "run.log").read_text().splitlines() if said in line]
    assert json.loads(logged.partition(f"{said}: ")[2]) == last
    assert [report["env_steps"] for report in reports(tmp_path)] == [80, 160, 240, 320, 320]


def test_it_may_go_on_with_another_number_of_workers(tmp_path: Path) -> None:
    """Episodes do not depend on the division among workers; only the order of rows within a round does."""
    mf.train(until(small_run(), HALF), tmp_path)
    more = small_run(rollouts=mf.Rollouts(num_workers=4, fragment_env_steps=20))
    result = mf.resume(until(more, WHOLE), tmp_path)
    assert result.metrics["env_steps"] >= WHOLE
    assert result.metrics["faults"]["episodes_abandoned"] == 0
    untrained = {
        name: replace(policy, algorithm=replace(policy.algorithm, learning_rate=0.0))
        for name, policy in small_run().policies.items()
    }
    one, other = tmp_path / "one", tmp_path / "other"
    frozen = small_run(policies=untrained)
    mf.train(until(frozen, HALF), one)
    mf.train(until(frozen, HALF), other)
    mf.resume(until(frozen, WHOLE), one)
    mf.resume(until(replace(frozen, rollouts=mf.Rollouts(num_workers=4, fragment_env_steps=20)), WHOLE), other)
    assert_equal(by_env(kept(one)["workers"]), by_env(kept(other)["workers"]))


def test_a_checkpoint_is_taken_when_it_is_due_and_the_newest_stay(tmp_path: Path) -> None:
    settings = mf.CheckpointConfig(every_env_steps=200, keep=2)
    mf.train(until(small_run(), 1_000, checkpoint=settings), tmp_path)
    names = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert names == [800, 1_040]


def test_the_first_is_taken_after_the_first_round_and_those_after_it_when_they_are_due(tmp_path: Path) -> None:
    settings = mf.CheckpointConfig(every_env_steps=400, keep=9)
    mf.train(until(small_run(), 800, checkpoint=settings), tmp_path)
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [80, 400, 800]


def test_the_best_stays_too(tmp_path: Path) -> None:
    settings = mf.CheckpointConfig(every_env_steps=200, keep=1, best="policies.hunters.return_mean")
    mf.train(until(small_run(), 1_600, checkpoint=settings), tmp_path)
    returns = {}
    for path in (tmp_path / "checkpoints").iterdir():
        from marlflow.runs.checkpoints import CheckpointStore as Store

        state = driver(Store(tmp_path / "checkpoints", 1).at(int(path.name)))
        returns[int(path.name)] = float(np.mean(state["tally"]["policies"]["hunters"]["played"]["returns"]))
    assert len(returns) in (1, 2)
    assert max(returns) == 1_600


def test_only_new_rows_are_written(tmp_path: Path) -> None:
    settings = mf.CheckpointConfig(every_env_steps=160, keep=10)
    mf.train(until(small_run(), 800, checkpoint=settings), tmp_path)
    files: dict[str, set[int]] = {}
    for path in (tmp_path / "checkpoints").glob("*/*"):
        if path.name.startswith("rows.prey."):
            files.setdefault(path.name, set()).add(path.stat().st_ino)
    assert len(files) == 6, "of the first round, and of every second"
    assert all(len(inodes) == 1 for inodes in files.values())


def test_a_replay_that_is_not_kept_begins_empty(tmp_path: Path) -> None:
    settings = mf.CheckpointConfig(every_env_steps=None, replay="none")
    mf.train(until(small_run(), HALF, checkpoint=settings), tmp_path)
    before = kept(tmp_path)
    assert not any("rows" in name for name in before)
    result = mf.resume(until(small_run(), WHOLE, checkpoint=settings), tmp_path)
    rows = [
        before["driver"]["flow"]["paces"]["prey"]["rows"],
        kept(tmp_path)["driver"]["flow"]["paces"]["prey"]["rows"],
    ]
    starts, per = SMALL_DQN.learning_starts_agent_steps, SMALL_DQN.train_every_agent_steps
    counted = rows[0] - starts + (rows[1] - rows[0] - starts)
    assert result.metrics["learners"]["prey"]["updates"] == counted // per


def test_another_run_is_refused_with_every_difference(tmp_path: Path) -> None:
    mf.train(until(small_run(), HALF), tmp_path)
    other = small_run(
        env=mf.Env(cartpole_team.parallel_env, {"max_cycles": 50}, num_envs=8),
        policies={"hunters": mf.Policy(SMALL_PPO, mf.MLP((32,))), "others": mf.Policy(SMALL_DQN, SMALL)},
        mapping=(mf.Rule("cart_0", "hunters"), mf.Rule("cart_1", "hunters"), mf.Rule("*", "others")),
        seed=3,
    )
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(mf.CheckpointUnusable) as refused:
        mf.resume(until(other, WHOLE), tmp_path)
    assert len(refused.value.problems) == 7
    for text in (
        "seed was 0 when it was kept, and is 3 now",
        "env.num_envs was 4 when it was kept, and is 8 now",
        'policies.hunters.model was "MLP(hidden_sizes=(16,)',
        "it has policies.prey, which this run has not",
        "it has no policies.others, which this run has",
        "it has learners.prey, which this run has not",
        "it has no learners.others, which this run has",
    ):
        assert text in str(refused.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def _on_a_map(path: str) -> cartpole_team.CartPoleTeam:
    return cartpole_team.CartPoleTeam(len(Path(path).read_text(encoding="utf-8")))


def test_a_file_of_the_environment_that_was_moved_can_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (old := tmp_path / "old.map").write_text("####", encoding="utf-8")

    def on(path: str) -> mf.Experiment:
        return small_run(env=mf.Env(_on_a_map, {"path": path}, num_envs=4))

    mf.train(until(on("old.map"), HALF), tmp_path / "run")
    old.rename(new := tmp_path / "new.map")
    with pytest.raises(mf.CheckpointUnusable) as refused:
        mf.resume(until(on("new.map"), WHOLE), tmp_path / "run")
    assert str(refused.value).endswith(
        f"env.path was 'old.map' when it was kept, and is 'new.map' now; if it was moved, move it back or link it "
        f"(ln -s {new} old.map), and leave env.path as it was"
    )
    old.symlink_to(new)
    with pytest.raises(mf.CheckpointUnusable, match=r"env.path was 'old.map' when it was kept, and is 'new.map' now$"):
        mf.resume(until(on("new.map"), WHOLE), tmp_path / "run")
    assert mf.resume(until(on("old.map"), WHOLE), tmp_path / "run").stopped_by == f"stop.env_steps={WHOLE}"


def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mf.train(until(small_run(), 800, checkpoint=mf.CheckpointConfig(every_env_steps=400)), tmp_path)
    newer, older = newest(tmp_path), min(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    damaged = next(path for path in newer.path.iterdir() if path.name.startswith("learner.prey"))
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with caplog.at_level("INFO", "marlflow"):
        mf.resume(until(small_run(), 960, checkpoint=mf.CheckpointConfig(every_env_steps=None)), tmp_path)
    assert f"{newer.path.name} is not whole" in caplog.text
    assert f"resuming from {tmp_path / 'checkpoints' / str(older)}" in caplog.text
    assert [report["env_steps"] for report in reports(tmp_path)] == [400, 800, 960]


def test_replays_that_were_kept_may_be_kept_no_longer_and_again(tmp_path: Path) -> None:
    """With any of these settings, a checkpoint can be resumed."""
    for number, replay in enumerate(("rows", "none", "none", "rows", "rows")):
        settings, env_steps = mf.CheckpointConfig(every_env_steps=160, replay=replay), 480 + 320 * number
        run = mf.train if number == 0 else mf.resume
        result = run(until(small_run(), env_steps, checkpoint=settings), tmp_path)
        assert result.metrics["env_steps"] == env_steps
        assert any("rows" in name for name in kept(tmp_path)) == (replay == "rows")


@pytest.mark.parametrize("per", [5, 20])
def test_a_ratio_that_is_changed_counts_from_the_checkpoint_on(per: int, tmp_path: Path) -> None:
    before = mf.train(until(small_run(), HALF), tmp_path).metrics["learners"]["prey"]
    rows = kept(tmp_path)["driver"]["flow"]["paces"]["prey"]["rows"]
    changed = policies(hunters=SMALL_PPO, prey=replace(SMALL_DQN, train_every_agent_steps=per))
    after = mf.resume(until(small_run(policies=changed), WHOLE), tmp_path).metrics["learners"]["prey"]
    rows_since = kept(tmp_path)["driver"]["flow"]["paces"]["prey"]["rows"] - rows
    assert 0 <= after["updates"] - before["updates"] - rows_since // per <= 1


def test_a_policy_whose_own_stop_is_raised_learns_on(tmp_path: Path) -> None:
    def stopping(hunters: int | None, prey: int) -> mf.Experiment:
        return small_run(
            policies={
                "hunters": mf.Policy(SMALL_PPO, SMALL, stop=mf.PolicyStop(agent_steps=hunters)),
                "prey": mf.Policy(SMALL_DQN, SMALL, stop=mf.PolicyStop(agent_steps=prey)),
            }
        )

    first = mf.train(until(stopping(400, 600), WHOLE), tmp_path)
    assert first.stopped_by == "every policy's own stop"
    again = mf.resume(until(stopping(400, 600), WHOLE), tmp_path)
    assert again.metrics["env_steps"] == first.metrics["env_steps"]
    more = mf.resume(until(stopping(400, 1_200), WHOLE), tmp_path)
    updates = [result.metrics["learners"] for result in (first, more)]
    assert updates[1]["hunters"]["updates"] == updates[0]["hunters"]["updates"]
    assert updates[1]["prey"]["updates"] > updates[0]["prey"]["updates"] + 40
    both = mf.resume(until(stopping(None, 1_200), WHOLE + 400), tmp_path)
    assert both.stopped_by == f"stop.env_steps={WHOLE + 400}"
    assert both.metrics["learners"]["hunters"]["updates"] > updates[1]["hunters"]["updates"]


def test_a_directory_has_one_run(tmp_path: Path) -> None:
    mf.train(until(small_run(), 160), tmp_path)
    with pytest.raises(mf.ConfigInvalid, match=r"there is a run in .* already"):
        mf.train(until(small_run(), 160), tmp_path)


def test_a_resume_that_is_refused_while_parts_are_filled_leaves_the_reports(tmp_path: Path) -> None:
    mf.train(until(small_run(), HALF), tmp_path)
    before = [(tmp_path / name).read_bytes() for name in ("metrics.jsonl", "state.json")]
    other = small_run(policies=policies(hunters=SMALL_PPO, prey=replace(SMALL_DQN, n_step=5)))
    with pytest.raises(mf.CheckpointUnusable, match=f"{tmp_path}/checkpoints/{HALF}: .*n_step"):
        mf.resume(until(other, WHOLE), tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("metrics.jsonl", "state.json")] == before


class Torso:
    """A user's torso that is no dataclass."""

    def build(self, *arguments: Any) -> Any:
        return SMALL.build(*arguments)


def test_what_a_run_is_does_not_depend_on_the_process() -> None:
    spec = ready(small_run()).spec.policies["hunters"]
    made = [
        ready(small_run(env=mf.Env(partial(cartpole_team.parallel_env, max_cycles=50), num_envs=4))) for _ in range(2)
    ]
    assert identity(made[0]) == identity(made[1])
    assert identity(made[0])["env"]["factory"] == "parallel_env"
    assert replace(spec, model=Torso()).model is not None
    assert " at 0x" not in str(identity(made[0]))


def test_the_longest_episode_to_be_played_again_is_as_the_settings_say(tmp_path: Path) -> None:
    """Both ways: what is remembered, and what is played again."""
    # Batched environments are saved as snapshots instead.
    env = mf.Env(cartpole_team.parallel_env, {"max_cycles": 500}, num_envs=4, batched=False)
    long = small_run(env=env, rollouts=mf.Rollouts(1, 40))
    for limit, name in ((5, "few"), (500, "all")):
        settings = mf.CheckpointConfig(every_env_steps=None, replay_max_env_steps=limit)
        mf.train(until(long, 200, checkpoint=settings), tmp_path / name)
        state = kept(tmp_path / name)["workers"]
        running = [env_index["running"]["env_steps"] for env_index in state["envs"] if env_index["running"]]
        result = mf.resume(until(long, 400, checkpoint=settings), tmp_path / name)
        assert result.metrics["faults"]["episodes_restarted"] == sum(steps > limit for steps in running)
        assert any(steps > 5 for steps in running)


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        (mf.Adam(), mf.TorchOptimizer(torch.optim.RMSprop), "square_avg"),
        (mf.TorchOptimizer(torch.optim.RMSprop), mf.Adam(), "moment_1"),
        (
            mf.TorchOptimizer(torch.optim.RMSprop),
            mf.TorchOptimizer(torch.optim.RMSprop, {"momentum": 0.9}),
            "momentum_",
        ),
        (mf.TorchOptimizer(torch.optim.Adam), mf.TorchOptimizer(torch.optim.SGD), ""),
    ],
    ids=["torch's", "marlflow's", "momentum", "without a state"],
)
def test_a_resume_with_an_optimizer_that_keeps_something_else_is_refused_and_loses_nothing(
    before: Any, after: Any, missing: str, tmp_path: Path
) -> None:
    def run(optimizer: Any, env_steps: int) -> mf.Experiment:
        return small_run(
            policies=policies(hunters=replace(SMALL_PPO, optimizer=optimizer), prey=SMALL_DQN), env_steps=env_steps
        )

    mf.train(run(before, 400), tmp_path)
    with pytest.raises(mf.CheckpointUnusable, match=rf"optimizer/all/{missing}(.|\n)*another algorithm, optimizer"):
        mf.resume(run(after, 800), tmp_path)
    assert mf.resume(run(before, 800), tmp_path).metrics["env_steps"] >= 800


def test_shorter_intervals_hold_from_the_resume_on(tmp_path: Path) -> None:
    def run(env_steps: int, every: int) -> mf.Experiment:
        return small_run(
            env_steps=env_steps,
            evaluation=mf.Evaluation(every_env_steps=every, episodes=2),
            log=mf.Log(every_env_steps=every, console="none", tensorboard=False),
        )

    mf.train(run(400, 50_000), tmp_path)
    mf.resume(run(1_200, 200), tmp_path)
    made = {report["env_steps"]: report["policies"]["prey"]["eval_env_steps"] for report in reports(tmp_path)}
    # In whole rounds, of 80.
    assert made == {env_steps: env_steps for env_steps in (640, 800, 1_040, 1_200)}
