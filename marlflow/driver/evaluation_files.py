"""What an evaluation leaves: `evaluations/<n>.json` with every game, and `matrix.csv`; and its table as text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.driver.evaluate import EvaluationResult
from marlflow.league.comparison import CONFIDENCE, Comparison, Estimate, Results

FORMAT = "marlflow evaluation 1"
FOLDER, MATRIX = "evaluations", "matrix.csv"
_MATRIX_COLUMNS = ("member", "opponent", "side", "games", "games_lost")
_ESTIMATES = ("win", "draw", "loss", "return")


def write_evaluation(evaluation: EvaluationResult, run_dir: Path) -> list[Path]:
    """Write both files into a run's folder; return their paths. Raises ConfigInvalid if they cannot be written."""
    text = json.dumps(as_json(evaluation, games=True), indent=1) + "\n"
    try:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        path = _write_numbered(folder, text)
        matrix = run_dir / MATRIX
        matrix.write_text(as_csv(evaluation), encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigInvalid([f"{run_dir} cannot be written to: {error}"]) from error
    return [path, matrix]


def _write_numbered(folder: Path, text: str) -> Path:
    numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    number = max(numbers, default=0) + 1
    while True:
        path = folder / f"{number}.json"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            # Another evaluation of the run has ended at the same time.
            number += 1
        else:
            return path


def as_json(evaluation: EvaluationResult, games: bool = False) -> dict[str, Any]:
    """Return the results as JSON data, with every game if `games`; keys that end in `_s` are times."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "checkpoint": evaluation.checkpoint.name,
        "seed": evaluation.seed,
        "confidence": CONFIDENCE,
        "members": {label: dict(about) for label, about in evaluation.about.items()},
        "results": [_comparison(one) for one in evaluation.comparisons],
        "faults": [
            {"kind": fault.kind.value, "where": fault.where, "reason": fault.reason} for fault in evaluation.faults
        ],
        "duration_s": evaluation.duration_s,
    }
    if games:
        names = evaluation.sides.names
        data["games"] = [{**asdict(game), "side": names[game.side]} for game in evaluation.games]
    return data


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "member": one.member,
        "opponent": one.opponent,
        "games_lost": one.lost,
        **({"games": 0} if one.results is None else _results(one.results)),
        "as": {side: _results(results) for side, results in one.by_side.items()},
    }


def _results(results: Results) -> dict[str, Any]:
    return {"games": results.games, **{name: asdict(one) for name, one in _estimates(results).items()}}


def _estimates(results: Results) -> Mapping[str, Estimate]:
    return dict(zip(_ESTIMATES, (results.win, results.draw, results.loss, results.score), strict=True))


def as_csv(evaluation: EvaluationResult) -> str:
    """Return one line for each pair, and for each side of it, with the ends of intervals in columns of their own."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*_MATRIX_COLUMNS, *(f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high"))])
    for one in evaluation.comparisons:
        for side, results in {"": one.results, **one.by_side}.items():
            if results is not None:
                lost = "" if side else one.lost
                numbers = [number for of in _estimates(results).values() for number in (of.value, of.low, of.high)]
                row = ["" if number is None else number for number in numbers]
                writer.writerow([one.member, one.opponent, side, results.games, lost, *row])
    return written.getvalue()


def as_table(evaluation: EvaluationResult) -> str:
    """Return the results as text, one line for each pair."""
    names = evaluation.sides.names
    several = len({side for one in evaluation.comparisons for side in one.by_side}) > 1
    sides = [f"win as {name}" for name in names] if several else []
    titles = ["member", "opponent", "games", "win", "draw", "loss", "return", *sides]
    rows = [titles]
    for one in evaluation.comparisons:
        if one.results is None:
            rows.append([one.member, one.opponent, "0", *["-"] * (4 + len(sides))])
            continue
        estimates = [_with_interval(estimate) for estimate in _estimates(one.results).values()]
        by_side = [f"{one.by_side[name].win.value:.2f}" if name in one.by_side else "-" for name in names]
        rows.append([one.member, one.opponent, f"{one.results.games:,}", *estimates, *(by_side if several else [])])
    return "\n".join([*_aligned(rows), *_notes(evaluation)])


def _with_interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _notes(evaluation: EvaluationResult) -> Iterator[str]:
    for one in evaluation.comparisons:
        if one.lost:
            yield f"{one.lost:,} games of {one.member} against {one.opponent} broke and are not counted"
