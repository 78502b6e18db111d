"""The files of an evaluation in a run's folder: `evaluations/<n>.json` with every episode, and `matrix.csv`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import write_new
from marlflow.base.links import check_links
from marlflow.driver.evaluate import EvaluationResult
from marlflow.league.comparison import CONFIDENCE, Comparison, Results
from marlflow.league.policy_returns import PolicyReturns

FORMAT = "marlflow evaluation 1"
FOLDER, MATRIX = "evaluations", "matrix.csv"
_MATRIX_COLUMNS = ("member", "opponent", "side", "games", "games_lost")
_ESTIMATES = ("win", "draw", "loss", "return", "team_return")
_NUMBERS = ("iqm", "median", "length", "team_iqm", "team_median")


def write_evaluation(evaluation: EvaluationResult, run_dir: Path) -> list[Path]:
    """Write the files into a run's folder; return their paths. Raises ConfigInvalid if they cannot be written.

    The matrix is written if there were opponents.
    """
    text = json.dumps(as_json(evaluation, games=True), indent=1) + "\n"
    check_links(run_dir)
    try:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        written = [_write_numbered(folder, text)]
        if evaluation.comparisons:
            matrix = run_dir / MATRIX
            matrix.write_text(as_csv(evaluation), encoding="utf-8", newline="")
            written.append(matrix)
    except OSError as error:
        raise ConfigInvalid([f"{run_dir} cannot be written to: {error}"]) from error
    return written


def _write_numbered(folder: Path, text: str) -> Path:
    numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    number = max(numbers, default=0) + 1
    while True:
        path = folder / f"{number}.json"
        try:
            write_new(path, text.encode())
        except FileExistsError:
            # Another evaluation of the run has ended at the same time.
            number += 1
        else:
            return path


def as_json(evaluation: EvaluationResult, games: bool = False) -> dict[str, Any]:
    """Return the results as JSON data, with every episode if `games`; keys that end in `_s` are times."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "checkpoint": evaluation.checkpoint.name,
        "seed": evaluation.seed,
        "mode": evaluation.mode,
        "modes": dict(evaluation.modes),
        "env": dict(evaluation.env),
        "confidence": CONFIDENCE,
        "members": {label: dict(about) for label, about in evaluation.about.items()},
        "policies": [_returns(one) for one in evaluation.returns],
        "results": [_comparison(one) for one in evaluation.comparisons],
        "episodes_lost": evaluation.lost,
        "episodes_distinct": evaluation.distinct,
        "faults": [
            {"kind": fault.kind.value, "where": fault.where, "reason": fault.reason} for fault in evaluation.faults
        ],
        "duration_s": evaluation.duration_s,
        "ended_s": evaluation.ended_s,
    }
    if games:
        names = () if evaluation.sides is None else evaluation.sides.names
        data["games"] = [
            {**asdict(game), "side": None if game.side is None else names[game.side]} for game in evaluation.games
        ]
    return data


def _returns(one: PolicyReturns) -> dict[str, Any]:
    outcomes = {name: asdict(found) for name in ("win", "draw", "loss") if (found := getattr(one, name)) is not None}
    return {
        "policy": one.policy,
        "agents": list(one.agents),
        "episodes": one.episodes,
        "return": asdict(one.mean),
        "team_return": asdict(one.team.mean),
        **_numbers(one),
        "infos": {name: asdict(found) for name, found in one.infos.items()},
        **outcomes,
    }


def _numbers(one: PolicyReturns | Results) -> dict[str, float]:
    numbers = (one.iqm, one.median, one.length, one.team.iqm, one.team.median)
    return dict(zip(_NUMBERS, numbers, strict=True))


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "member": one.member,
        "opponent": one.opponent,
        "games_lost": one.lost,
        **({"games": 0} if one.results is None else _results(one.results)),
        "as": {side: _results(results) for side, results in one.by_side.items()},
    }


def _results(results: Results) -> dict[str, Any]:
    return {
        "games": results.games,
        "constant_sum": results.is_constant_sum,
        **{name: asdict(one) for name, one in results.estimates.items()},
        **_numbers(results),
    }


def as_csv(evaluation: EvaluationResult) -> str:
    """Return one line for each pair, and for each side of it, with the ends of intervals in columns of their own."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    ends = [f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")]
    writer.writerow([*_MATRIX_COLUMNS, *ends, *_NUMBERS])
    for one in evaluation.comparisons:
        for side, results in {"": one.results, **one.by_side}.items():
            if results is not None:
                lost = "" if side else one.lost
                numbers = [number for of in results.estimates.values() for number in (of.value, of.low, of.high)]
                row = ["" if number is None else number for number in numbers]
                writer.writerow(
                    [one.member, one.opponent, side, results.games, lost, *row, *_numbers(results).values()]
                )
    return written.getvalue()
