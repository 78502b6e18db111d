"""Train leagues on games whose solutions are known, and compare the results with a bar; three seeds each.

    python -m benchmarks.league_learning                                  the cases, and what each shows
    python -m benchmarks.league_learning kuhn_dqn --seeds 20,21,22
    python -m benchmarks.league_learning kuhn_dqn --seeds 20,21,22 --report-only

Settings were chosen on seeds 0 to 2. Runs are inline, in one thread, so that a result does not depend on the machine.
They are kept in runs/league_learning/<case>/<seed>: a run that was interrupted is resumed, one that is complete is not
repeated. With --report-only nothing is trained, and the state of each run so far is shown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.connect_four import round_robin, scores, standings
from benchmarks.equilibria import (
    Members,
    best_greedy_pair,
    checked,
    double_oracle,
    members_of,
    solutions,
    uniform_policy,
)
from benchmarks.seeds import add_seeds
from marlflow.driver.checkpointing import saved_at
from marlflow.league.exploitability import InformationStates
from marlflow.league.solvers import nash, uniform
from marlflow.observe.sinks import METRICS, read_metrics
from marlflow.policy.actor import EvaluationMode
from marlflow.runs.saved_league import saved_league

FOLDER = Path("runs/league_learning")
BIASED_NASH = np.array([0.0625, 0.625, 0.3125])
GAMES = 1_000
ROUND_ROBIN_GAMES = 40
ROUND_ROBIN_MEMBERS = 10


@dataclass(frozen=True)
class Case:
    """Runs of `words` (overrides), and `report`, which yields lines on one of them; `bar` is of `report`'s choice.

    Without `words` nothing is trained.
    """

    name: str
    shows: str
    report: Callable[[Case, int], Iterator[str]]
    words: Sequence[str] = ()
    bar: float | None = None
    scale: float = 1.0
    """Returns of the game for one unit of the bar."""
    judges_last: bool = False
    """Whether the bar is for the last iteration: where an untrained policy may be near an equilibrium."""

    def run_dir(self, seed: int) -> Path:
        """Return the folder of a run."""
        return FOLDER / self.name / str(seed)

    def env_steps(self) -> int:
        """Return the env steps of a complete run."""
        return checked(self.words).experiment.stop.env_steps or 0

    def members(self, seed: int) -> Members:
        """Return the members of a run."""
        return members_of(checked(self.words), self.run_dir(seed))


def _verdict(value: float, bar: float | None) -> str:
    if bar is None:
        return f"{value:.4f}"
    return f"{value:.4f} (bar <= {bar:g}: {'reached' if value <= bar else 'MISSED'})"


def _psro(case: Case, seed: int) -> Iterator[str]:
    """NashConv of the meta-strategies by iteration, compared with other mixtures of the same members."""
    members = case.members(seed)
    found = list(solutions(members))
    curve = [one.nash_conv / case.scale for one in found]
    yield f"NashConv by members: {' '.join(f'{value:.3f}' for value in curve)}"
    if case.judges_last:
        yield f"last {_verdict(curve[-1], case.bar)}"
    else:
        yield f"best so far {_verdict(min(curve), case.bar)}; last {curve[-1]:.4f}"
    value = members.states.returns(found[-1].policy)[0] / case.scale
    even = [one.nash_conv / case.scale for one in solutions(members, uniform)]
    untrained = members.states.nash_conv(uniform_policy(members.states)) / case.scale
    yield (
        f"value of the first player {value:.4f}; controls: the uniform policy {untrained:.4f}, a uniform mixture of "
        f"the same members {even[-1]:.4f}, at best {min(even):.4f}"
    )
    if len(members.snapshots) <= 20 and len(members.states.players) < 100:
        yield f"control: the best greedy pair of members {best_greedy_pair(members) / case.scale:.4f}"
    if case.name == "biased_rps":
        for player, policy in enumerate(found[-1].policy):
            away = float(np.abs(policy - BIASED_NASH).max())
            yield f"player_{player} plays {np.round(policy, 3).tolist()}, off by {_verdict(away, 0.05)}"


def _exact(case: Case, seed: int) -> Iterator[str]:
    """Double oracle with exact best responses, which needs no run."""
    del seed
    states = InformationStates("kuhn_poker")
    steps = list(islice(double_oracle(states, nash), 10))
    yield f"NashConv by members: {' '.join(f'{value:.3f}' for value, _ in steps)}"
    reached = next((number for number, (value, _) in enumerate(steps, 1) if value < 1e-9), None)
    yield f"0 with {reached} members a player; best {_verdict(min(value for value, _ in steps), case.bar)}"
    yield f"value of the first player {steps[-1][1]:.5f} (-1/18 is {-1 / 18:.5f})"
    even = [value for value, _ in islice(double_oracle(states, uniform), 50)]
    shown = ", ".join(f"{even[size - 1]:.3f} with {size} members" for size in (6, 10, 50))
    yield f"control: uniform meta-strategies {shown}"


def _self_play(case: Case, seed: int) -> Iterator[str]:
    """NashConv of a policy that plays itself, as it acts: at each snapshot, and at the end."""
    members = case.members(seed)
    states = members.states
    own = list(members.policies.values())
    curve = [states.nash_conv(policy) for policy in own]
    yield f"NashConv of snapshots and of the final policy: {' '.join(f'{value:.3f}' for value in curve)}"
    yield f"best so far {min(curve):.4f}; last {curve[-1]:.4f}"
    weights = np.full(len(own), 1 / len(own))
    mixed = states.nash_conv(states.mixture([own, own], [weights, weights]))
    yield f"a uniform mixture of all of them {mixed:.4f}"


def _nfsp(case: Case, seed: int) -> Iterator[str]:
    """NashConv of the average policy during the run, and at its end that of the best response, which is greedy."""
    run_dir = case.run_dir(seed)
    leagues = [report["league"] or {} for report in read_metrics(run_dir / METRICS)]
    curve = {
        league["nash_conv_env_steps"]: league["nash_conv"] for league in leagues if league["nash_conv"] is not None
    }
    yield f"NashConv by env steps: {', '.join(f'{steps:,} {value:.3f}' for steps, value in curve.items())}"
    yield f"last {_verdict(list(curve.values())[-1], case.bar)}"
    members = members_of(checked(case.words), run_dir, {"response": "greedy"})
    yield f"control: the best response alone, greedy {members.states.nash_conv(members.policies['response']):.4f}"


def _connect_four(case: Case, seed: int) -> Iterator[str]:
    """Win rates of the final policy against scripted players, over both seats; games have no random opening."""
    bars = {"random": 0.99, "one_ply": 0.90}
    modes: tuple[EvaluationMode, ...] = ("sampled", "greedy")
    for mode in modes:
        for (_, opponent), score in scores(case.run_dir(seed), ["main"], list(bars), GAMES, seed, mode).items():
            bar = bars[opponent]
            reached = "reached" if score.win_rate >= bar else "MISSED"
            yield f"{mode} against {opponent}: win rate {score} over {score.games:,} games (bar >= {bar:g}: {reached})"


def _round_robin(case: Case, seed: int) -> Iterator[str]:
    """Games between members of both runs of a seed, and scripted players."""
    del case
    dirs = {name: CASES[f"connect_four_{name}"].run_dir(seed) for name in ("pfsp", "self_play")}
    own = dirs["pfsp"]
    members = {name: [*saved_league(folder).members.snapshots, "main"] for name, folder in dirs.items()}
    names = ["random", "one_ply"]
    for run, folder in dirs.items():
        # Evenly over the run, the final policy included.
        picked = np.unique(np.linspace(0, len(members[run]) - 1, ROUND_ROBIN_MEMBERS).round().astype(int))
        names += [f"{folder}:{members[run][number]}" for number in picked]
    found = round_robin(own, names, ROUND_ROBIN_GAMES, seed)
    for place, (name, score) in enumerate(standings(names, found), 1):
        yield f"{place:2} {name} {score} over {score.games:,} games"
    for run, other in (("pfsp", "self_play"), ("self_play", "pfsp")):
        others = [name for name in names if name.startswith(f"{dirs[other]}:") and "@" in name]
        against = scores(own, [f"{dirs[run]}:main"], others, 5 * ROUND_ROBIN_GAMES, seed)
        (_, hardest), worst = min(against.items(), key=lambda item: item[1].win_rate)
        yield f"{run}:main at worst against snapshots of {other}: {worst} against {hardest}"
    (final,) = scores(own, ["main"], [f"{dirs['self_play']}:main"], GAMES, seed).values()
    yield f"pfsp:main against self_play:main: {final} over {final.games:,} games"


def _against_itself(game: str, env_steps: int) -> tuple[str, ...]:
    """Return the settings of plain self-play: PPO with entropy, whose snapshots are for the curve only."""
    return (
        "env=openspiel",
        f"env.game={game}",
        "env.num_envs=64",
        "league=self_play",
        "league.snapshots.at_start=true",
        f"league.snapshots.every_agent_steps={env_steps // 10}",
        "league.matches.every_env_steps=null",
        "evaluation.opponents=[random]",
        "policy@policies.main=ppo",
        "policies.main.algorithm.discount=1.0",
        "policies.main.algorithm.entropy_coefficient=0.05",
        "policies.main.algorithm.minibatch_agent_steps=512",
        f"stop.env_steps={env_steps}",
    )


_ALL = (
    Case(
        "matching_pennies",
        "PSRO with PPO",
        _psro,
        ("experiment=biased_rps_psro", "env.game=matrix_mp"),
        0.06,
        judges_last=True,
    ),
    Case("biased_rps", "PSRO with PPO", _psro, ("experiment=biased_rps_psro",), 0.04, scale=100.0, judges_last=True),
    Case("kuhn_exact", "double oracle with exact best responses", _exact, bar=1e-9),
    Case("kuhn_dqn", "PSRO with DQN", _psro, ("experiment=kuhn_psro",), 0.15),
    Case(
        "kuhn_self_play",
        "PPO with entropy against itself, on the env steps of kuhn_dqn",
        _self_play,
        _against_itself("kuhn_poker", 800_000),
    ),
    Case(
        "kuhn_nfsp",
        "NFSP",
        _nfsp,
        ("experiment=kuhn_nfsp", "league.nash_conv_every_env_steps=60000"),
        0.12,
        judges_last=True,
    ),
    Case(
        "leduc_nfsp",
        "NFSP",
        _nfsp,
        (
            "experiment=kuhn_nfsp",
            "env.game=leduc_poker",
            "policies.response.algorithm.replay_agent_steps=100000",
            "policies.response.algorithm.train_every_agent_steps=16",
            "policies.response.algorithm.epsilon.agent_steps=600000",
            "league.nash_conv_every_env_steps=120000",
            "stop.env_steps=1200000",
        ),
        2.0,
    ),
    Case("leduc", "PSRO with DQN", _psro, ("experiment=leduc_psro",), 1.0),
    Case(
        "leduc_self_play",
        "PPO with entropy against itself, on the env steps of leduc",
        _self_play,
        _against_itself("leduc_poker", 3_600_000),
    ),
    Case("connect_four_self_play", "against scripted players", _connect_four, ("experiment=connect_four_self_play",)),
    Case("connect_four_pfsp", "against scripted players", _connect_four, ("experiment=connect_four_pfsp",)),
    Case("connect_four_round_robin", "members of both runs of a seed, once these are complete", _round_robin),
)
CASES = {case.name: case for case in _ALL}


def train(case: Case, seed: int) -> None:
    """Train until the run is complete; raises CalledProcessError."""
    run_dir, whole = case.run_dir(seed), case.env_steps()
    if (saved := saved_at(run_dir)) is not None and saved >= whole:
        return
    marlflow = str(Path(sys.executable).with_name("marlflow"))
    if saved is not None:
        command = [marlflow, "resume", str(run_dir), f"stop.env_steps={whole}"]
    else:
        settings = [f"seed={seed}", "runtime=inline", "log.console=plain", f"log.every_env_steps={whole // 20}"]
        command = [marlflow, "train", *case.words, *settings, f"hydra.run.dir={run_dir}"]
    print(f"-- {' '.join(command)}", flush=True)
    subprocess.run(command, check=True)


def report(case: Case, seed: int, env_steps: int | None = None, *, trains: bool = True) -> None:
    """Train if necessary, and print; `env_steps` makes the run shorter."""
    if env_steps is not None and case.words:
        case = replace(case, words=(*case.words, f"stop.env_steps={env_steps}"))
    if trains and case.words:
        train(case, seed)
    reached = f", {saved_at(case.run_dir(seed)):,} env steps" if case.words else ""
    for line in case.report(case, seed):
        print(f"{case.name} seed {seed}{reached}: {line}", flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Train and report the named cases; without any, list them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help=f"any of {', '.join(CASES)}")
    add_seeds(parser, 3)
    parser.add_argument("--env-steps", type=int, help="instead of those of the experiment")
    parser.add_argument("--report-only", action="store_true", help="train nothing; show the runs as they are")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if unknown := [name for name in options.case if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; the cases are {', '.join(CASES)}")
    if not options.case:
        for case in CASES.values():
            print(f"{case.name:26} {case.shows}" + (f"; NashConv <= {case.bar:g}" if case.bar else ""))
    for name in options.case:
        seeds = options.seeds if name != "kuhn_exact" else options.seeds[:1]
        for seed in seeds:
            report(CASES[name], seed, options.env_steps, trains=not options.report_only)


if __name__ == "__main__":
    main(sys.argv[1:])
