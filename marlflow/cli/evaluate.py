"""`marlflow evaluate`: games of a run's members against each other, members of other runs, and random ones."""

from __future__ import annotations

import json
import sys
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
    shown, base = parsed.overrides[0], Path.cwd()
    with recomposed(run_dir, [], parsed, TRUST in parsed.own_flags or is_own(run_dir)) as ready:
        evaluation = _evaluate(ready, run_dir, parsed, base)
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


def _evaluate(ready: Prepared, run_dir: Path, parsed: Words, base: Path) -> EvaluationResult:
    from marlflow.config.schema import from_config
    from marlflow.driver.evaluate import evaluate

    given = parsed.own_values
    numbers = {flag: _whole_number(flag, given.get(flag, default)) for flag, default in _DEFAULTS.items()}
    return evaluate(
        from_config(ready.config, ready.problems),
        run_dir,
        _names(MEMBERS, given[MEMBERS]) if MEMBERS in given else (),
        _names(AGAINST, given.get(AGAINST, "random")),
        numbers[GAMES],
        numbers[SEED],
        numbers[WORKERS],
        None if TRUST in parsed.own_flags else (),
        base,
    )


_DEFAULTS = {GAMES: "400", SEED: "0", WORKERS: "0"}


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
