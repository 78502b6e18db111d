"""Export a policy's network to ONNX or to PyTorch's .pt2, and compare what is written with the policy itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from marlflow.algorithms.algorithm import describe_space
from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.base.file_names import file_name
from marlflow.base.near import meant
from marlflow.base.progress import progress
from marlflow.config.experiment import Experiment
from marlflow.policy.adapted import AdaptedActor
from marlflow.policy.unwrapped import network_of
from marlflow.runs.saved_runs import Which
from marlflow.trained.export_check import OutputDifference, check_rows, difference
from marlflow.trained.exported_files import written
from marlflow.trained.portable import PortableActor, described_leaf
from marlflow.trained.team import Team, TrainedPolicy, load

Format = Literal["onnx", "pt2"]
_FORMAT = "marlflow export 1"
# Sums of another order differ in the last digits; anything beyond is another network.
_MOST = 1e-3

_MEANINGS: Mapping[str, str] = {
    "logits": "log-probabilities of the actions, up to a constant; those of all components side by side",
    "q_values": "action values",
    "mean": "mean of the Gaussian, in the coordinates of `distribution`",
    "log_std": "log standard deviation of the Gaussian, in the same coordinates",
    "action": "the greedy action, as the environment takes it",
    "next_memory": "the memory for the agent's next decision",
    "outputs": "what `outputs` of the actor returns",
}


@dataclass(frozen=True)
class Exported:
    """The `file` that `export` wrote, its `description` in JSON, and the largest `difference` from the policy."""

    file: Path
    description: Path
    difference: OutputDifference


def export(
    run: Path | str,
    policy: str | None = None,
    file: Path | str | None = None,
    format: Format = "onnx",
    checkpoint: Which = None,
    experiment: Experiment | None = None,
    trust: Collection[str] | None = (),
    strict: bool = False,
) -> Exported:
    """Write the network of a policy to a file that runs without marlflow, and a JSON file that describes it.

    `policy` is a policy of the run or a member of its league; None is the only one that learned. The default `file` is
    `exports/<policy>.<format>` in the run's folder; the description is beside it. `format` "onnx" needs the extra
    `onnx`. The other arguments are as in `load`. Then the file is run on 1,000 rows that the policy plays in the run's
    environment, and compared; if it cannot be played, on arbitrary rows.

    Raises InvalidInput for a policy without a network, or whose parameters adapt while it acts, and MarlflowError if
    the network cannot be converted, or computes something else.
    """
    if format not in ("onnx", "pt2"):
        raise ConfigInvalid([f"there is no format {format!r}{meant(format, ['onnx', 'pt2'], 'there are')}"])
    progress("loading the policy")
    team = load(run, checkpoint, experiment, trust, strict)
    trained = team[policy or _only_policy(team)]
    portable = portable_of(trained)
    name = file_name(trained.name, f".{format}", plain=".@")
    target = team.run_dir / "exports" / name if file is None else Path(file)
    if target.suffix != f".{format}":
        raise ConfigInvalid([f"{target} must end with .{format}, or give another format"])
    session = written(portable, target, format)
    found = difference(trained, portable, session, check_rows(team, trained))
    if found.largest > _MOST * (1.0 + found.magnitude):
        raise MarlflowError(
            f"{target} computes something else than policy {trained.name!r}: outputs differ by "
            f"{found.largest:g}; the network does something that cannot be exported, such as calling numpy"
        )
    description = target.with_suffix(".json")
    described = _described(team, trained, portable, target, found)
    try:
        description.write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid([f"{description} cannot be written: {error.strerror}"]) from error
    return Exported(target, description, found)


def _only_policy(team: Team) -> str:
    if len(learning := team.learning) == 1:
        return learning[0]
    example = f", policy={learning[0]} for example" if learning else ""
    raise ConfigInvalid([f"{team.run_dir} has several policies; choose one{example}: {', '.join(team.policies)}"])


def portable_of(trained: TrainedPolicy) -> PortableActor:
    """Return the network of a policy as a module; raises ConfigInvalid if it has none, or no fixed one."""
    subject = f"policy {trained.name!r} ({trained.about.get('algorithm')})"
    if isinstance(trained.actor, AdaptedActor):
        raise ConfigInvalid([f"{subject} adapts its parameters while it acts, so no fixed network acts as it does"])
    if (network := network_of(trained.actor)) is None:
        raise ConfigInvalid([f"{subject} has no network to export; choose a policy that learned"])
    return PortableActor(network, trained.spaces)


def _described(
    team: Team, trained: TrainedPolicy, portable: PortableActor, file: Path, found: OutputDifference
) -> dict[str, Any]:
    """Return what the description file has, as plain data."""
    return {
        "format": _FORMAT,
        "marlflow": metadata.version("marlflow"),
        "file": file.name,
        "source": {"folder": str(team.run_dir), "checkpoint": team.checkpoint, **trained.about},
        "agents": list(trained.agents),
        "observation_space": str(trained.spaces.observation),
        "action_space": {"space": str(trained.spaces.action), "short": describe_space(trained.spaces.action)},
        "inputs": [
            {
                "name": port.name,
                "kind": port.kind,
                "dtype": str(port.dtype),
                "shape": ["batch", *port.shape],
                **({} if port.leaf is None else described_leaf(port.leaf)),
            }
            for port in portable.inputs
        ],
        "outputs": [
            {"name": name, "dtype": dtype, "shape": ["batch", *shape], "meaning": _MEANINGS[name]}
            for name, (dtype, shape) in portable.output_kinds().items()
        ],
        "distribution": portable.distribution,
        "memory": {"input": "memory", "output": "next_memory", "begins_with": 0.0} if portable.has_memory else None,
        "normalization": portable.normalization,
        "difference": found.as_json(),
    }
