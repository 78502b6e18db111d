"""`marlflow export`: a policy's network as a file that runs without marlflow, or recorded rows as a Minari dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.options import TRUST, Arguments, Command, Option
from marlflow.cli.progress import shown_progress
from marlflow.cli.run_folder import CHECKPOINT, STRICT, checked_run, which_checkpoint

if TYPE_CHECKING:
    from marlflow.trained.export import OutputDifference


_OF_NETWORKS = ("format", "out", "checkpoint", "strict", "trust")


def run_export(arguments: Arguments) -> int:
    """Write the file and its description, and print how far it is from the policy; return 0. Raises InvalidInput."""
    if arguments["minari"] is not None:
        return _export_rows(arguments)
    which = which_checkpoint(arguments["checkpoint"])
    run_dir = checked_run(arguments.operands[0], "export", which, [arguments["policy"]] if arguments["policy"] else [])
    from marlflow.trained.export import export

    trust, strict = None if arguments["trust"] else (), arguments["strict"]
    with shown_progress():
        exported = export(
            run_dir, arguments["policy"], arguments["out"], arguments["format"], which, trust=trust, strict=strict
        )
    print(f"wrote {exported.file} and {exported.description}")
    for line in _difference_lines(exported.difference):
        print(line)
    return 0


def _export_rows(arguments: Arguments) -> int:
    if unused := [name for name in _OF_NETWORKS if name in arguments.given]:
        raise ConfigInvalid([f"minari writes recorded rows, not a network: leave {', '.join(unused)} out"])
    from marlflow.offline.minari import export_minari

    folder = Path(arguments.operands[0])
    folder = folder / "record" if (folder / "record").is_dir() else folder
    with shown_progress():
        written = export_minari(folder, arguments["minari"], arguments["policy"])
    counts = f"{written.episodes:,} episodes and {written.steps:,} steps of {written.policy}"
    print(f"wrote the Minari dataset {written.dataset_id}: {counts}")
    if written.unfinished:
        print(
            f"{written.unfinished:,} of these episodes are unfinished, where the records end: truncated in the dataset"
        )
    return 0


def _difference_lines(found: OutputDifference) -> Iterator[str]:
    """Yield how far the file is from the policy, and on which rows that was measured."""
    rows = f"{found.rows:,} rows that it plays" if found.of == "played" else f"{found.rows:,} arbitrary rows"
    numbers = f"{found.largest:.1e}, of outputs up to {found.magnitude:.3g}"
    if found.probability is not None:
        numbers += f"; of a probability {found.probability:.1e}"
    ties = f"; {found.actions} greedy actions differ, where two are nearly equal" if found.actions else ""
    yield f"largest difference from the policy over {rows}: {numbers}{ties}"
    if found.reason is not None:
        yield f"the rows are arbitrary, because the environment could not be played: {found.reason}"


_ABOUT = """
Writes the network of a policy, and a JSON file of the same name that describes its inputs and outputs. The network
takes observations, the action mask if there is one, and the memory of a recurrent policy; it returns logits, action
values, or mean and log standard deviation, and the greedy action. Sampling is up to the caller.

The file is then run on 1,000 rows that the policy plays in the environment of the run, one and seven at a time, and
compared with the policy as it acts. If the environment cannot be made here, the rows are arbitrary.

ONNX needs the extra onnx: pip install 'marlflow[onnx]'

With minari=ID, the rows that a run recorded are written as the Minari dataset of that id instead. RUN may be the
folder of records itself. Needs the extra minari.
"""

COMMAND = Command(
    "export",
    run_export,
    (
        Option(
            "policy",
            "a policy of the run, or a member of its league; by default the only one that learned",
            value="NAME",
        ),
        Option("format", "onnx, or pt2 for torch.export.load", default="onnx", choices=("onnx", "pt2")),
        Option("out", "the file; by default RUN/exports/<policy>.<format>", value="FILE"),
        Option(
            "minari", "write the rows recorded in RUN as this Minari dataset, such as cartpole/expert-v0", value="ID"
        ),
        CHECKPOINT,
        STRICT,
        TRUST,
    ),
    _ABOUT,
    (
        "runs/cartpole_team/2026-01-31_12-00-00",
        "runs/simple_tag/2026-01-31_12-00-00 policy=adversary out=adversary.onnx",
        "runs/connect_four/2026-01-31_12-00-00 policy=main@3 format=pt2 checkpoint=best",
        "runs/expert minari=cartpole/expert-v0",
    ),
)
