"""The parameters of a run's policies, of frozen versions, and of members of its league, as files that can be moved.

Nothing is unpickled or imported: checkpoints and exported files are arrays and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from marlflow.algorithms.from_run import SavedPolicy
from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.base.serialization import MALFORMED, from_bytes, to_bytes
from marlflow.batches.items import Weights
from marlflow.learner.parameters import PUBLISHED_SIZES
from marlflow.runs.checkpoint_format import Checkpoint
from marlflow.runs.saved_league import SavedRun, learner_state
from marlflow.runs.saved_runs import FROZEN, frozen_names, usable
from marlflow.sampling.protocol import FrozenPolicy

EXPORT_FORMAT = "marlflow member 1"
_IMPORT_PREFIX = "member."
_HEADER_BYTES = 8


def import_file(member: str) -> str:
    """Return the name of the file of an imported member in a checkpoint."""
    return f"{_IMPORT_PREFIX}{member}"


def saved_policy(run: SavedRun, member: str) -> SavedPolicy:
    """Return the published parameters of a policy, a frozen version, or a member of a run's league.

    Raises ConfigInvalid for a member that the run does not have or that has no parameters, CheckpointUnusable for a
    malformed checkpoint.
    """
    if member not in run.names:
        what = "the league of " if run.league is not None else ""
        raise ConfigInvalid(
            [f"{what}{run.run_dir} has no member {member!r}{meant(member, run.names, 'its members are')}"]
        )
    network: Array | None = None
    scheduled: Mapping[str, float] = {}
    with usable(run.checkpoint):
        if member in frozen_names(run.checkpoint) or (run.league and member in run.league.members.snapshots):
            policy, version, scheduled, flat = _frozen(run, member)
        elif run.checkpoint.files.get(import_file(member)) is not None:
            return from_export(bytes(run.checkpoint.read(import_file(member))), f"{member} of {run.run_dir}")
        else:
            policy, (version, flat, network) = member, _live(run, member)
        description = _description(run, member, policy, version, scheduled)
        return SavedPolicy(flat, description, f"{member} of {run.run_dir}", network)


def _description(
    run: SavedRun, member: str, policy: str, version: int, scheduled: Mapping[str, float]
) -> dict[str, Any]:
    about, league = run.notes.identity["policies"][policy], run.league
    learners = run.notes.identity["learners"].values()
    description = {
        "member": member,
        "policy": policy,
        "version": version,
        "env_steps": run.checkpoint.env_steps if league is None else league.env_steps,
        "agent_steps": run.agent_steps[policy],
        "run": run.notes.run,
        "algorithm": about["algorithm"],
        "model": about["model"],
        "observation_space": about["observes"],
        "action_space": about["acts"],
        "scheduled": dict(scheduled),
        "stages": next((dict(one.get("stages", {})) for one in learners if policy in one["policies"]), {}),
    }
    if league is None:
        return description
    members, snapshot = league.members, league.members.snapshots.get(member)
    description["incarnation"] = members.incarnations[policy] if snapshot is None else snapshot.incarnation
    if snapshot is not None:
        description |= {"env_steps": snapshot.env_steps, "agent_steps": snapshot.agent_steps}
    roles = members.sides.roles
    return {**description, "roles": [role.name for i, role in enumerate(roles) if members.plays(member, i)]}


def _frozen(run: SavedRun, member: str) -> tuple[str, int, dict[str, float], Array]:
    name = frozen_file(member)
    if name not in run.checkpoint.names:
        raise CheckpointUnusable([f"it does not have the parameters of {member}, which the run has forgotten"])
    tree = from_bytes(run.checkpoint.read(name))
    return str(tree["policy"]), int(tree["version"]), dict(tree["scheduled"]), _as_parameters(tree["flat"])


def _live(run: SavedRun, policy: str) -> tuple[int, Array, Array | None]:
    """Return version and published parameters, and all of its learner if that trains it alone."""
    learners = run.notes.identity["learners"]
    learner = next((name for name, one in learners.items() if policy in one["policies"]), None)
    if learner is None:
        raise ConfigInvalid([f"member {policy!r} never learned, so it has no parameters to export"])
    state = learner_state(run.checkpoint, learner)
    flat, together = _as_parameters(state["published"]), learners[learner]["policies"]
    if len(together) == 1:
        # Some runs that come with marlflow have no critics.
        return int(state["version"]), flat, _as_parameters(state["vector"]) if "vector" in state else None
    sizes = dict(zip(together, state[PUBLISHED_SIZES].tolist(), strict=True))
    first = sum(sizes[one] for one in together[: together.index(policy)])
    if sum(sizes.values()) != len(flat):
        raise ValueError("the published parameters do not fit its policies")
    return int(state["version"]), flat[first : first + sizes[policy]], None


def _as_parameters(flat: Any) -> Array:
    if not isinstance(flat, np.ndarray) or flat.ndim != 1 or flat.dtype != np.float32:
        raise ValueError("parameters are no float32 vector")
    return flat


def to_export(saved: SavedPolicy) -> bytes:
    """Return the contents of an exported file, a safetensors file; equal policies give equal bytes."""
    # Written here, because the order of metadata from safetensors' own writer changes.
    data = np.ascontiguousarray(saved.flat, "<f4").tobytes()
    metadata = {"format": EXPORT_FORMAT, "member": json.dumps(saved.description, default=str)}
    flat = {"dtype": "F32", "shape": [len(saved.flat)], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": metadata, "flat": flat}).encode()
    header += b" " * (-len(header) % _HEADER_BYTES)
    return len(header).to_bytes(_HEADER_BYTES, "little") + header + data


def read_export(path: Path) -> SavedPolicy:
    """Read an exported file; raises ConfigInvalid if it is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid([f"{path} cannot be read: {error.strerror}"]) from error
    return from_export(data, str(path))


def from_export(data: bytes, source: str) -> SavedPolicy:
    """Return the arguments of `to_export`; raises ConfigInvalid for any other contents, naming `source`."""
    try:
        (flat,) = load(data).values()
        size = int.from_bytes(data[:_HEADER_BYTES], "little")
        metadata = json.loads(data[_HEADER_BYTES : _HEADER_BYTES + size])["__metadata__"]
        if metadata["format"] != EXPORT_FORMAT:
            raise ValueError(f"its format is {metadata['format']!r:.40}, not {EXPORT_FORMAT!r}")
        description = json.loads(metadata["member"])
        _check_description(description)
        if not np.isfinite(_as_parameters(flat)).all():
            raise ValueError("its parameters are not finite")
    except (*MALFORMED, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise ConfigInvalid(
            [
                f"{source} is no file of a member ({reason:.200}); write one with "
                "marlflow league <run> --export <member> <file>"
            ]
        ) from error
    return SavedPolicy(flat, description, source)


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("member", "policy", "algorithm", "observation_space", "action_space"), str),
    **dict.fromkeys(("version", "agent_steps"), int),
    "scheduled": dict,
    "config": (dict, type(None)),
}


def _check_description(description: Any) -> None:
    if not isinstance(description, dict):
        raise ValueError("its description is no object")
    if wrong := [name for name, kind in _KINDS.items() if not isinstance(description.get(name), kind)]:
        raise ValueError(f"its description has no valid {', '.join(wrong)}")
    stages = description.get("stages", {})
    if not isinstance(stages, dict) or not all(isinstance(where, str) for where in stages.values()):
        raise ValueError("its description has no valid stages")
    if not all(isinstance(value, int | float) for value in description["scheduled"].values()):
        raise ValueError("its description has scheduled values that are no numbers")


def frozen_file(entry: str) -> str:
    """Return an entry's file name."""
    # An entry id is used only once in a run, so its file never changes.
    return f"{FROZEN}{entry}"


def frozen_bytes(frozen: FrozenPolicy, fetch: Callable[[Any], Any]) -> bytes:
    """Serialize an entry; raise ActorLost if its weights were lost."""
    return to_bytes(
        {
            "policy": frozen.policy,
            "version": frozen.weights.version,
            "scheduled": dict(frozen.scheduled),
            "flat": fetch(frozen.weights.flat),
        }
    )


def frozen_from(entry: str, tree: Mapping[str, object]) -> FrozenPolicy:
    """Return the entry that `frozen_bytes` serialized; raise CheckpointUnusable if it is malformed."""
    match tree:
        case {
            "policy": str(policy),
            "version": int(version),
            "scheduled": dict(scheduled),
            "flat": np.ndarray() as flat,
        }:
            return FrozenPolicy(policy, Weights(version, flat), scheduled)
    raise CheckpointUnusable([f"{frozen_file(entry)} has no policy, version, scheduled values and parameters"])


def entries_in(checkpoint: Checkpoint) -> dict[str, str]:
    """Return a checkpoint's frozen entries, each with the name of its file."""
    return {name: frozen_file(name) for name in frozen_names(checkpoint)}
