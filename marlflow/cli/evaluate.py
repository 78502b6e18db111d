"""`marlflow evaluate`: games of a run's members against each other, members of other runs, and random ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import AGAINST, GAMES, JSON, MEMBERS, SEED, WORKERS, Words, split
from marlflow.cli.resume import recomposed, suggestion
from marlflow.cli.trust import TRUST
from marlflow.config.overrides import Prepared
from marlflow.config.trust import is_own

if TYPE_CHECKING:
    from marlflow.driver.evaluate import EvaluationResult

_USAGE = "marlflow evaluate <run directory> [--members <names>] [--against <names>] [--games <n>]"


def run_evaluate(words: list[str]) -> int:
    """Play the games, print the results and write them into the run's folder; return 0. Raises InvalidInput."""
    values = [MEMBERS, AGAINST, GAMES, SEED, WORKERS]
    parsed = split(words, "evaluate", own=(JSON, TRUST), own_with_value=values, hydra=False)
    run_dir = _run_dir(parsed.overrides)
    shown, asked = parsed.overrides[0], _asked(parsed)
    with recomposed(run_dir, [], parsed, asked.trusts_all or is_own(run_dir)) as ready:
        evaluation = _evaluate(ready, run_dir, asked)
    from marlflow.driver.evaluation_files import as_json, as_table, write_evaluation

    print(json.dumps(as_json(evaluation), indent=2) if JSON in parsed.own_flags else as_table(evaluation))
    written = write_evaluation(evaluation, run_dir)
    note = f"wrote {', '.join(str(path.relative_to(run_dir)) for path in written)} into {shown}"
    print(note, file=sys.stderr if JSON in parsed.own_flags else sys.stdout)
    return 0


def _run_dir(words: list[str]) -> Path:
    if not words:
        raise ConfigInvalid([f"evaluate needs the directory of a run: {_USAGE}"])
    if len(words) > 1:
        raise ConfigInvalid(
            [f"evaluate takes the directory of one run and flags, not {words[1]!r}; others follow {AGAINST}: {_USAGE}"]
        )
    run_dir = Path(words[0]).resolve()
    if not run_dir.is_dir():
        raise ConfigInvalid([f"there is no directory {words[0]}; evaluate needs that of a run: {_USAGE}"])
    if not (run_dir / "checkpoints").is_dir():
        raise ConfigInvalid(
            [
                f"{words[0]} has no checkpoints, so there is nothing to evaluate{suggestion(run_dir)}; a run takes its "
                "first checkpoint after its first round"
            ]
        )
    return run_dir


def _evaluate(ready: Prepared, run_dir: Path, asked: _Asked) -> EvaluationResult:
    from marlflow.config.schema import from_config
    from marlflow.driver.evaluate import evaluate

    experiment = from_config(ready.config, ready.problems)
    trust = None if asked.trusts_all else ()
    return evaluate(
        experiment, run_dir, asked.members, asked.against, asked.games, asked.seed, asked.workers, trust, asked.base
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The flags of the command, and the folder that it was given in, where relative paths begin."""

    members: Sequence[str]
    against: Sequence[str]
    games: int
    seed: int
    workers: int
    trusts_all: bool
    base: Path


def _asked(parsed: Words) -> _Asked:
    given = parsed.own_values
    return _Asked(
        _names(MEMBERS, given[MEMBERS]) if MEMBERS in given else (),
        _names(AGAINST, given.get(AGAINST, "random")),
        _whole_number(GAMES, given.get(GAMES, "400")),
        _whole_number(SEED, given.get(SEED, "0")),
        _whole_number(WORKERS, given.get(WORKERS, "0")),
        TRUST in parsed.own_flags,
        Path.cwd(),
    )


def _names(flag: str, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise ConfigInvalid([f"{flag} needs names with commas between them, such as main,main@3, not {value!r}"])
    return names


def _whole_number(flag: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigInvalid([f"{flag} must be a whole number, not {value!r}"]) from None
