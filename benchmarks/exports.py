"""Are exported networks the policies? Every network that marlflow trains, with its first and its trained parameters.

Each case of `benchmarks.export_cases` is a short run, whose policies are exported to ONNX. The file runs in a process
that can import onnxruntime and numpy alone, on 1,000 rows that the policy plays in its environment, one by one and in
batches of seven. The columns:

- `absolute`: the largest difference of any output from the policy as it acts; `up to`: the largest output.
- `relative`: the largest difference as a share of the largest number of its output in its row, or of 1 if larger.
- `probability`: the largest difference of an action's probability. `actions`: greedy actions that differ.
- `policy 64`, `file 64`: how far the policy, and the file, are from the same network computed in float64.

python -m benchmarks.exports [--folder runs/exports] [--python venv/bin/python] [case ...]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import io
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.export_cases import CASES, Case
from benchmarks.outside_marlflow import outside
from marlflow.base.arrays import Array
from marlflow.checks.validation import ready
from marlflow.cli.main import main as marlflow
from marlflow.driver.entrants import Entrant
from marlflow.policy.tensors import as_tensor
from marlflow.trained.export import (
    ROWS,
    CheckRows,
    OutputDifference,
    compared,
    difference,
    expected_outputs,
    played_rows,
    portable_of,
)
from marlflow.trained.exported_files import written
from marlflow.trained.portable import PortableActor
from marlflow.trained.team import Team, TrainedPolicy, load

QUIET = (
    "runtime=inline",
    "rollouts.num_workers=1",
    "evaluation.episodes=0",
    "evaluation.final_episodes=0",
    "checkpoint.every_env_steps=null",
    "log.console=none",
    "log.tensorboard=false",
)
HEAD = ("case", "policy", "parameters", "rows", "absolute", "up to", "relative", "probability", "actions")
MORE = ("policy 64", "file 64")


@dataclass(frozen=True)
class Measured:
    """One exported policy: its difference from the file, and the distance of both from float64."""

    case: str
    policy: str
    parameters: str
    found: OutputDifference
    policy_64: float
    file_64: float

    def cells(self) -> list[str]:
        """Return a row of the table."""
        found = self.found
        numbers = (found.largest, found.magnitude, found.relative, found.probability)
        shown = ["-" if number is None else f"{number:.1e}" for number in numbers]
        shown[1] = f"{found.magnitude:.3g}"
        head = [self.case, self.policy, self.parameters, str(found.rows), *shown, str(found.actions)]
        return [*head, f"{self.policy_64:.1e}", f"{self.file_64:.1e}"]


class _Float64(TorchFunctionMode):
    """Makes networks that convert their inputs to float32 convert them to float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.float:
            return args[0].double()
        if function is torch.Tensor.view and args[1] is torch.float32:
            # Readers of nested rows view bytes as numbers; here the leaf is a tensor of numbers already.
            return args[0]
        return function(*args, **(kwargs or {}))


def in_float64(portable: PortableActor, rows: CheckRows) -> dict[str, Array]:
    """Return the outputs for rows if the same parameters are computed with in float64."""
    double = copy.deepcopy(portable).double()
    inputs = portable.inputs_of(rows.obs, rows.memory, rows.mask).values()
    tensors = [as_tensor(array) for array in inputs]
    with torch.enable_grad(), _Float64():
        outputs = double(*(tensor.double() if tensor.dtype == torch.float32 else tensor for tensor in tensors))
    return {name: output.detach().numpy() for name, output in zip(portable.outputs, outputs, strict=True)}


def folder_name(case: str) -> str:
    """Return the folder of a case's run."""
    return case.replace(" ", "_").replace(",", "")


def run(case: Case, folder: Path) -> Path:
    """Train, and return the folder of the run; raises RuntimeError with what was printed if it fails."""
    target = folder / folder_name(case.name)
    if (target / "metrics.jsonl").exists():
        return target
    words = [word.replace("{expert of bc}", str(folder / "expert_of_bc")) for word in case.words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = marlflow(["train", *words, *QUIET, f"hydra.run.dir={target}"])
    if code:
        raise RuntimeError(said.getvalue())
    return target


def measured(case: Case, folder: Path, python: str, seen: set[str]) -> Iterator[Measured]:
    """Train, export each policy with its trained parameters, a new network also with its first ones, and compare."""
    played_in = None if case.after is None else folder / folder_name(case.after)
    yield from measured_run(case.name, run(case, folder), python, seen, played_in)


def measured_run(
    case: str, folder: Path, python: str, seen: set[str], played_in: Path | None = None
) -> Iterator[Measured]:
    """Export each policy of a run that learned, and compare; `seen` has the networks whose first ones were compared.

    A run that learned from records has no environment; its policies play in that of the run `played_in`.
    """
    team = load(folder, trust=None)
    stage = team if played_in is None else load(played_in, trust=None)
    specs = ready(team.experiment).spec.policies
    for name in team.learning:
        trained = team[name]
        first = TrainedPolicy(Entrant(name, dict.fromkeys(trained.agents, specs[name])))
        portable = portable_of(first)
        # Algorithms with the same network begin with the same parameters.
        activations = [getattr(part, "activation", None) for part in portable.modules()]
        network = f"{portable} {activations} {[port.name for port in portable.inputs]} {portable.outputs}"
        if network not in seen:
            seen.add(network)
            yield _compared(case, stage, first, "first", python)
        yield _compared(case, stage, trained, f"{team.checkpoint:,} steps", python)


def _compared(case: str, stage: Team, policy: TrainedPolicy, parameters: str, python: str) -> Measured:
    portable, rows = portable_of(policy), played_rows(stage, policy, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.onnx"
        with written(portable, file, "onnx"):
            pass  # The file has its name when the block ends.
        with outside(file, python) as session:
            found = difference(policy, portable, session, rows)
            ran = session(portable.inputs_of(rows.obs, rows.memory, rows.mask))
    exact = in_float64(portable, rows)
    own = _distance(exact, expected_outputs(policy, portable, rows), rows)
    return Measured(case, policy.name, parameters, found, own, _distance(exact, ran, rows))


def _distance(exact: Mapping[str, Array], outputs: Mapping[str, Array], rows: CheckRows) -> float:
    return compared(exact, outputs, (), rows).largest


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with columns of one width."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def chosen(names: Sequence[str]) -> list[Case]:
    """Return the cases of the names, or all, each after the one that it needs."""
    picked = [case for case in CASES if not names or case.name in names]
    needed = {case.after for case in picked}
    return [case for case in CASES if case in picked or case.name in needed]


def main(words: Sequence[str] | None = None) -> int:
    """Measure the cases; returns 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a folder for the runs; those that are there are used again")
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="finished runs, which are compared instead")
    parser.add_argument("--python", default=sys.executable, help="of an environment with onnxruntime")
    parser.add_argument("case", nargs="*", help="some of the cases, by name")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    seen: set[str] = set()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)).resolve()
        parts = {run.name: measured_run(run.name, run, asked.python, seen) for run in asked.run} or {
            case.name: measured(case, folder, asked.python, seen) for case in chosen(asked.case)
        }
        found, failed = _all(parts)
    cells = [[*HEAD, *MORE], *(one.cells() for one in found)]
    print(f"\n{table(cells)}\n{summary(found)}; {failed} cases failed")
    if asked.folder is not None:
        with (asked.folder / "exports.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(cells)
    return int(bool(failed))


def _all(parts: Mapping[str, Iterator[Measured]]) -> tuple[list[Measured], int]:
    """Return what was measured, printing each as it comes, and the number of cases that failed."""
    found, failed = [], 0
    for name, measurements in parts.items():
        try:
            for one in measurements:
                found.append(one)
                print("  ".join(one.cells()), flush=True)
        except Exception:  # noqa: BLE001  one case must not end the others; the exit code says it
            failed += 1
            print(f"{name} FAILED\n{traceback.format_exc()}", flush=True)
    return found, failed


def summary(found: Sequence[Measured]) -> str:
    """Return the worst of all in one line."""
    if not found:
        return "no networks"
    differences = [one.found for one in found]
    probabilities = [one.probability for one in differences if one.probability is not None]
    largest, relative = (max(getattr(one, name) for one in differences) for name in ("largest", "relative"))
    over = sum(one.largest > 1e-6 for one in differences)
    return (
        f"{len(found)} networks: absolute at most {largest:.1e} ({over} above 1e-6), "
        f"relative at most {relative:.1e}, of a probability at most {max(probabilities, default=0.0):.1e}; "
        f"{sum(one.actions for one in differences)} greedy actions differ"
    )


if __name__ == "__main__":
    sys.exit(main())
