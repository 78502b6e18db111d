"""`marlflow evaluate`: episodes of runs' policies together, or games against each other, other runs, or random."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.cli.options import JSON, TRUST, UNITS, Arguments, Command, Option
from marlflow.cli.progress import shown_progress
from marlflow.cli.run_folder import CHECKPOINT, STRICT, checked_run, which_checkpoint
from marlflow.runs.saved_runs import PREFIX

if TYPE_CHECKING:
    from marlflow.driver.evaluate import EvaluationResult
    from marlflow.runs.saved_runs import Which


def run_evaluate(arguments: Arguments) -> int:
    """Evaluate each run, print the results and write them into its folder; return 0. Raises InvalidInput."""
    which = which_checkpoint(arguments["checkpoint"])
    names = [*arguments["members"], *arguments["against"]]
    runs = {shown: checked_run(shown, "evaluate", which, names).resolve() for shown in arguments.operands}
    from marlflow.driver.evaluation_files import as_json, as_tables, write_evaluation

    with shown_progress():
        found = {shown: _evaluate(run_dir, which, arguments) for shown, run_dir in runs.items()}
    if arguments["json"]:
        data = {shown: as_json(one) for shown, one in found.items()}
        print(json.dumps(data if len(data) > 1 else next(iter(data.values())), indent=2))
    else:
        print(as_tables(found, arguments["units"]))
    for shown, one in found.items():
        written = write_evaluation(one, runs[shown])
        # Runs of the gallery are evaluated in a copy.
        folder = runs[shown] if shown.startswith(PREFIX) else shown
        note = f"wrote {', '.join(str(path.relative_to(runs[shown])) for path in written)} into {folder}"
        print(note, file=sys.stderr if arguments["json"] else sys.stdout)
    return 0


def _evaluate(run_dir: Path, which: Which, asked: Arguments) -> EvaluationResult:
    from marlflow.config.other_environment import env_of_words
    from marlflow.driver.evaluate import evaluate

    return evaluate(
        run_dir,
        members=asked["members"],
        against=asked["against"] or None,
        episodes=asked["episodes"],
        seed=asked["seed"],
        mode=asked["mode"],
        checkpoint=which,
        workers=asked["workers"],
        trust=None if asked["trust"] else (),
        strict=asked["strict"],
        env=env_of_words(asked.overrides),
    )


_ABOUT = """
Plays in the environment of each run, with the policies of its newest whole checkpoint; the run may still be in
progress. Without opponents, the policies play together, as they were trained; policies of a league, which have no
fixed agents, play against random. It prints, for each policy, the return per agent and episode, or with units=sum the
sum over its agents, which most papers report: mean with its 95 % interval, interquartile mean, and median; and the
mean number of env steps of an episode.

With against=NAMES, each member plays all sides (seats, or teams) that it can play, equally often, and the opponent
plays all other sides. It prints the mean return of the member's side and, in games in which one side's gain is
another's loss, the shares of games won, drawn and lost. Members act as their algorithm learns to, sampled from a
distribution or greedy by values, unless their league says otherwise (league.snapshots.acts).

env.NAME=VALUE plays in an environment with another setting, in which the policies have to fit: env.batched=false
steps it one by one. env=NAME plays in another environment that comes with marlflow, or in one of your own,
my_module.make_env, which env.NAME=VALUE may set, and which takes over the run's wrappers: env=simple_spread for
what was trained with env=jaxmarl.

Seeds differ from the seeds of training, and the same command plays the same games. Written into RUN:
  evaluations/<n>.json  results, and the seed, seating and returns of every episode
  matrix.csv            with against: the last results, by member, opponent and side

names, with commas between them:
  main, main@3            a member of the run's league, or a policy of a run without a league
  one_ply                 a policy of the run that does not learn, one of evaluation.opponents for example
  random                  acts uniformly at random
  team                    the policies of the run, each for the agents that it played in training
  mixture                 the meta-strategy of a run with league=psro: a member is drawn for each role and game
  RUN2, RUN2:main         the policies of another run as a team, or one member of it, or its mixture
  gallery:NAME            the same of a run that comes with marlflow
  main12.safetensors      a file of marlflow league --export
"""

COMMAND = Command(
    "evaluate",
    run_evaluate,
    (
        Option(
            "episodes",
            "episodes that the policies play together, 100; or games of each member against each opponent, 400, and "
            "more if needed to play all sides equally often",
            "whole number",
            "N",
            low=1,
            aliases=("games",),
        ),
        Option("against", "opponents", value="NAMES", several=True),
        Option(
            "members", "members that play against them; by default all policies that learn", value="NAMES", several=True
        ),
        Option(
            "mode",
            "how all policies act; by default as in the run's own evaluation, or in games as described above",
            value="MODE",
            choices=("as_learned", "greedy", "sampled"),
        ),
        UNITS,
        CHECKPOINT,
        STRICT,
        Option("seed", "seed of the episodes", "whole number", "N", 0, low=0),
        Option("workers", "processes of Ray that play; 0 is this process", "whole number", "N", 0, low=0),
        JSON,
        TRUST,
    ),
    _ABOUT,
    (
        "runs/simple_tag/2026-01-31_12-00-00 episodes=200",
        "runs/a runs/b mode=greedy checkpoint=best",
        "runs/lbf/2026-01-31_12-00-00 env.batched=false units=sum",
        "runs/connect_four/2026-01-31_12-00-00 against=random",
        "runs/a members=main,main@3 against=random,veteran,runs/b:main,main12.safetensors games=400",
    ),
    most=None,
    overrides=("env=", "env."),
)
