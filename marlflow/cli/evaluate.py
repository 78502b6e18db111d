"""`marlflow evaluate`: games of a run's members against each other, members of other runs, and random ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.cli.arguments import Words
from marlflow.cli.options import JSON, TRUST, Arguments, Command, Option
from marlflow.cli.run_folder import run_folder

if TYPE_CHECKING:
    from marlflow.config.overrides import Prepared
    from marlflow.driver.evaluate import EvaluationResult


def run_evaluate(arguments: Arguments) -> int:
    """Play the games, print the results and write them into the run's folder; return 0. Raises InvalidInput."""
    shown = arguments.operands[0]
    run_dir = run_folder(shown, "evaluate").resolve()
    from marlflow.cli.resume import recomposed
    from marlflow.config.trust import is_own
    from marlflow.driver.evaluation_files import as_json, as_table, write_evaluation

    base = Path.cwd()
    with recomposed(run_dir, [], Words(), arguments["trust"] or is_own(run_dir)) as ready:
        evaluation = _evaluate(ready, run_dir, arguments, base)
    print(json.dumps(as_json(evaluation), indent=2) if arguments["json"] else as_table(evaluation))
    written = write_evaluation(evaluation, run_dir)
    note = f"wrote {', '.join(str(path.relative_to(run_dir)) for path in written)} into {shown}"
    print(note, file=sys.stderr if arguments["json"] else sys.stdout)
    return 0


def _evaluate(ready: Prepared, run_dir: Path, asked: Arguments, base: Path) -> EvaluationResult:
    from marlflow.config.schema import from_config
    from marlflow.driver.evaluate import evaluate

    experiment = from_config(ready.config, ready.problems)
    trust = None if asked["trust"] else ()
    return evaluate(
        experiment,
        run_dir,
        asked["members"],
        asked["against"],
        asked["episodes"],
        asked["seed"],
        asked["workers"],
        trust,
        base,
    )


_ABOUT = """
Uses the environment of the run, and everybody as in the newest whole checkpoint; the run may still be going on. Each
member plays each side (seat, or team) that it can equally often, and the opponent all other sides. They act without
exploration: sampled from what was learned, or greedily where that is how they act. Seeds are apart from those of
training, and the same command plays the same games.

It prints, for each member and opponent, the shares of games won, drawn and lost, and the mean return of the member's
side, with 95 % intervals over games, and writes into RUN:
  evaluations/<n>.json  results, and the seed, seating and returns of every game
  matrix.csv            the last results, by member, opponent and side

names, with commas between them:
  main, main@3            a member of the run's league, or a policy of a run without a league
  random                  acts uniformly at random
  mixture                 the meta-strategy of a run with league=psro: a member is drawn for each role and game
  RUN2:main               a member of another run, or its mixture
  main12.safetensors      a file of marlflow league --export
"""

COMMAND = Command(
    "evaluate",
    run_evaluate,
    (
        Option("members", "who is evaluated; by default all policies that learn", value="NAMES", several=True),
        Option("against", "their opponents", value="NAMES", default=("random",), several=True),
        Option(
            "episodes",
            "games of each member against each opponent; more if needed to play all sides equally often",
            "whole number",
            "N",
            400,
            aliases=("games",),
        ),
        Option("seed", "seed of the games", "whole number", "N", 0),
        Option("workers", "processes of Ray that play; 0 is this process", "whole number", "N", 0),
        JSON,
        TRUST,
    ),
    _ABOUT,
    (
        "runs/connect_four/2026-01-31_12-00-00",
        "runs/a members=main,main@3 against=random,veteran episodes=400",
        "runs/a members=main against=runs/b:main,runs/b:main@7,main12.safetensors",
    ),
)
