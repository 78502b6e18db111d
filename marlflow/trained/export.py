"""Export a policy's network to ONNX or to PyTorch's .pt2, and compare the file with the policy itself.

float32 has 24 bits, so two ways to compute the same sum differ by about 1e-7 of its largest terms. An absolute
difference therefore grows with the outputs. To judge it, use the relative difference, the difference of the actions'
probabilities, and whether any greedy action differs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import softmax

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, MarlflowError
from marlflow.base.files import description_of, file_name
from marlflow.base.progress import progress, tracked
from marlflow.base.random import RowRandom
from marlflow.base.sentences import meant
from marlflow.base.spaces import Spaces, components, describe_space
from marlflow.config.experiment import Experiment
from marlflow.env.adapter import StepResult
from marlflow.env.opening import open_adapter
from marlflow.env.spaces_only import observation_rows
from marlflow.policy.adapted import AdaptedActor
from marlflow.policy.tensors import as_tensor
from marlflow.policy.warmup import network_of
from marlflow.runs.saved_runs import Which
from marlflow.trained.exported_files import Session, written
from marlflow.trained.games import Decision, Episode, Stopped, Watcher, play_episode, policy_player, seating
from marlflow.trained.portable import PortableActor, described_leaf
from marlflow.trained.team import Team, TrainedPolicy, load

Format = Literal["onnx", "pt2"]
_FORMAT = "marlflow export 1"
# Sums in another order differ in the last digits; a larger difference means another network.
_MOST = 1e-3

_MEANINGS: Mapping[str, str] = {
    "logits": "log-probabilities of the actions, up to a constant; all components concatenated",
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
    `exports/<policy>.<format>` in the run's folder; its description is beside it, with `.json` after its name. `format`
    "onnx" needs the extra `onnx`. The other arguments are as in `load`. Then the file is run on 1,000 rows that the
    policy plays in the run's environment, and compared with the policy; if the environment cannot be played, on
    arbitrary rows.

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
    description = description_of(target)
    with written(portable, target, format) as session:
        found = difference(trained, portable, session, check_rows(team, trained))
        if found.largest > _MOST * (1.0 + found.magnitude):
            raise MarlflowError(
                f"{target} would compute something else than policy {trained.name!r}, and is not written: outputs "
                f"differ by {found.largest:g}; the network does what cannot be exported, such as calling numpy"
            )
        if found.other_actions:
            raise MarlflowError(
                f"{target} would act otherwise than policy {trained.name!r} on {found.other_actions:,} of "
                f"{2 * found.rows:,} rows, though its outputs are the same, and is not written"
            )
        described = _described(trained, portable, target, found)
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
    if len(parts := trained.parts) > 1:
        raise ConfigInvalid([f"{trained.name!r} has several policies; export one at a time: {', '.join(parts)}"])
    subject = f"policy {trained.name!r} ({trained.about.get('algorithm')})"
    if isinstance(trained.actor, AdaptedActor):
        raise ConfigInvalid([f"{subject} adapts its parameters while it acts, so no fixed network acts as it does"])
    if (network := network_of(trained.actor)) is None:
        raise ConfigInvalid([f"{subject} has no network to export; choose a policy that learned"])
    return PortableActor(network, trained.spaces)


def _described(trained: TrainedPolicy, portable: PortableActor, file: Path, found: OutputDifference) -> dict[str, Any]:
    """Return the contents of the description file, as plain data."""
    return {
        "format": _FORMAT,
        "marlflow": metadata.version("marlflow"),
        "file": file.name,
        "source": {**trained.source, **trained.about},
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


ROWS = 1_000
_SEED = 0
# Limits the export if an agent seldom decides.
_ENV_STEPS_PER_ROW = 10


@dataclass(frozen=True, slots=True)
class CheckRows:
    """Rows to compare on: observations, memories and masks, and where they are `of`.

    `reason` says why rows are arbitrary although there is an environment.
    """

    obs: Array
    memory: Array | None
    mask: Array | None
    of: Literal["played", "arbitrary"] = "arbitrary"
    reason: str | None = None

    def part(self, rows: slice) -> CheckRows:
        """Return some of the rows."""
        memory, mask = (None if column is None else column[rows] for column in (self.memory, self.mask))
        return CheckRows(self.obs[rows], memory, mask, self.of, self.reason)


def check_rows(team: Team, trained: TrainedPolicy, count: int = ROWS) -> CheckRows:
    """Return rows that the policy plays in the run's environment, or arbitrary ones if it cannot be played."""
    try:
        return played_rows(team, trained, count)
    except CheckpointUnusable:
        # Nothing is wrong with the environment.
        raise
    except MarlflowError as error:
        return arbitrary_rows(trained, count, str(error).strip().splitlines()[-1])


def arbitrary_rows(trained: TrainedPolicy, count: int = ROWS, reason: str | None = None) -> CheckRows:
    """Make rows of the policy's spaces, the same each time."""
    generator = np.random.default_rng(_SEED)
    memory = trained.memory(count)
    if memory is not None:
        memory = generator.uniform(-1.0, 1.0, memory.shape).astype(np.float32)
    mask = _masks(trained.spaces, count, generator) if trained.spaces.masked else None
    return CheckRows(observation_rows(trained.spaces, count), memory, mask, "arbitrary", reason)


def _masks(spaces: Spaces, rows: int, generator: np.random.Generator) -> Array:
    mask = generator.random((rows, spaces.mask_width)) < 0.5
    for part in components(mask, spaces.choices):
        # Each component needs a legal value; `part` is a view of `mask`.
        part[np.arange(rows), generator.integers(0, part.shape[1], rows)] = True
    return mask


def played_rows(team: Team, trained: TrainedPolicy, count: int = ROWS) -> CheckRows:
    """Play episodes with sampled actions of the policy, and return its first `count` rows or fewer.

    It plays all agents that it can; others play as in training. It ends at 10 env steps for each row, at the latest.
    Raises MarlflowError if the environment cannot be made, breaks, or never asks the policy.
    """
    adapter = open_adapter(team.played_env())
    try:
        agents = tuple(adapter.agents)
        names = seating(team, None, None, {agent: trained.name for agent in trained.agents if agent in agents}, agents)
        others = policy_player(team, names, "sampled")
        rows = _RecordedRows(trained, count)
        players = {agent: rows.act for agent, name in names.items() if name == trained.name}
        with suppress(Stopped):
            for number in range(_ENV_STEPS_PER_ROW * count):
                play_episode(adapter, Episode(number, 0, team.reset(_SEED, number)), players, others, [rows])
    finally:
        adapter.close()
    return rows.columns()


class _RecordedRows(Watcher):
    """A player that records what its policy sees; as a watcher, it ends the games when there are enough rows."""

    def __init__(self, trained: TrainedPolicy, count: int) -> None:
        self._trained, self._count = trained, count
        self._encoder = trained.spaces.encoder()
        self._random = np.random.default_rng(_SEED)
        self._memories: dict[str, Array | None] = {}
        self._env_steps = 0
        self._rows: list[tuple[Array, Array | None, Array | None]] = []

    def act(self, decision: Decision) -> Any:
        if decision.comes_back:
            self._memories.pop(decision.agent, None)
        memory = self._memories.setdefault(decision.agent, self._trained.memory(1))
        mask = decision.mask
        if mask is None and self._trained.spaces.masked:
            mask = np.ones(self._trained.spaces.mask_width, np.bool_)
        row = self._encoder.stack([decision.observation])
        # Copied: the policy writes its next memory into the array.
        self._rows.append((row, None if memory is None else memory.copy(), mask))
        return self._trained.act([decision.observation], [mask], memory, "sampled", self._random)[0]

    def columns(self) -> CheckRows:
        """Return the rows; raises MarlflowError if there is none."""
        if not self._rows:
            raise MarlflowError(f"{self._trained.name!r} had nothing to decide in {self._env_steps:,} env steps")
        obs, memories, masks = zip(*self._rows[: self._count], strict=True)
        return CheckRows(np.concatenate(obs), _column(memories, False), _column(masks, True), "played")

    def began(self, episode: Episode) -> None:
        self._memories.clear()

    def stepped(self, result: StepResult) -> None:
        self._env_steps += 1
        progress("playing rows to compare", min(len(self._rows), self._count), self._count)
        if len(self._rows) >= self._count or self._env_steps >= _ENV_STEPS_PER_ROW * self._count:
            raise Stopped


def _column(parts: Sequence[Array | None], is_mask: bool) -> Array | None:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return np.stack(found).astype(np.bool_) if is_mask else np.concatenate(found)


_BATCHES = (1, 7)


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The difference between the outputs of an exported file and its policy, over `rows` rows.

    `of` says where the rows come from: `played` in the run's environment, or `arbitrary`; then `reason` says why.
    `largest` is the largest difference of a number, and `magnitude` the largest number compared. `relative` is the
    largest difference as a share of the largest number of its output in its row, or of 1 if that is larger.
    `probability` is the largest difference of the probability of an action, None for policies without logits.
    `actions` is how many greedy actions of whole numbers differ, as near ties may, and `other_actions` how many of them
    differ though both have their largest output in the same place.
    """

    rows: int
    of: str
    reason: str | None
    largest: float
    magnitude: float
    relative: float
    probability: float | None
    actions: int
    other_actions: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def difference(trained: TrainedPolicy, portable: PortableActor, session: Session, rows: CheckRows) -> OutputDifference:
    """Run an exported file on all rows, one by one and in batches of 7, and compare it with the policy as it acts."""
    found: list[Mapping[str, Array]] = []
    expected: list[Mapping[str, Array]] = []
    count = len(rows.obs)
    parts = [slice(start, start + size) for size in _BATCHES for start in range(0, count, size)]
    for part in map(rows.part, tracked("comparing rows with the policy", parts)):
        found.append(session(portable.inputs_of(part.obs, part.memory, part.mask)))
        expected.append(expected_outputs(trained, portable, part))
    choices = trained.spaces.choices if "logits" in expected[0] else ()
    return compared(_together(expected), _together(found), choices, rows)


def _together(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def compared(
    expected: Mapping[str, Array], found: Mapping[str, Array], choices: Sequence[int], rows: CheckRows
) -> OutputDifference:
    """Compare outputs [N, ...] by name; `choices` are the sizes of the components that have logits."""
    largest = magnitude = relative = 0.0
    for name, value in expected.items():
        if value.dtype.kind != "f":
            continue
        wanted = value.reshape(len(value), -1).astype(np.float64)
        got = found[name].reshape(wanted.shape).astype(np.float64)
        # Masked outputs are the lowest float in both.
        legal = np.abs(wanted) < np.finfo(np.float32).max
        is_same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        apart = np.where(legal & np.isfinite(got), np.abs(got - wanted), np.inf)
        gap = np.where(is_same, 0.0, apart).max(1, initial=0.0)
        size = np.where(legal, np.abs(wanted), 0.0).max(1, initial=0.0)
        largest, magnitude = max(largest, float(gap.max())), max(magnitude, float(size.max()))
        relative = max(relative, float((gap / np.maximum(size, 1.0)).max()))
    probability = _probability(expected["logits"], found["logits"], choices) if choices else None
    action = expected.get("action")
    differ = others = 0
    if action is not None and action.dtype.kind != "f":
        differing = (found["action"] != action).reshape(len(action), -1).any(1)
        differ, others = int(differing.sum()), int((differing & _same_largest(expected, found, choices)).sum())
    same = len(rows.obs), rows.of, rows.reason
    return OutputDifference(*same, largest, magnitude, relative, probability, differ, others)


def _same_largest(expected: Mapping[str, Array], found: Mapping[str, Array], choices: Sequence[int]) -> Array:
    """Return whether each component's largest logit or value is in the same place, bool [N]."""
    name = next((name for name in ("logits", "q_values") if name in expected), None)
    if name is None:
        return np.ones(len(expected["action"]), np.bool_)
    sizes = choices or expected[name].shape[1:]
    pairs = zip(components(expected[name], sizes), components(found[name], sizes), strict=True)
    same: Array = np.logical_and.reduce([one.argmax(1) == other.argmax(1) for one, other in pairs])
    return same


def _probability(expected: Array, found: Array, choices: Sequence[int]) -> float:
    pairs = zip(components(expected, choices), components(found, choices), strict=True)
    gaps = [np.abs(softmax(one.astype(np.float64), 1) - softmax(other.astype(np.float64), 1)) for one, other in pairs]
    return float(max(gap.max() for gap in gaps))


def expected_outputs(trained: TrainedPolicy, portable: PortableActor, rows: CheckRows) -> dict[str, Array]:
    """Return the policy's outputs for rows, as when it acts, and its greedy actions."""
    before = None if rows.memory is None else as_tensor(rows.memory)
    with torch.inference_mode():
        raw, after = portable.network.outputs(as_tensor(rows.obs), before)
        named = portable.named(raw, None if rows.mask is None else as_tensor(rows.mask))
        expected = {name: tensor.numpy() for name, tensor in named.items()}
    if after is not None:
        expected["next_memory"] = after.numpy()
    if "action" in expected:
        count = len(rows.obs)
        random = RowRandom(np.zeros(count, np.uint64), np.zeros(count, np.int64))
        acted = trained.actor.act(rows.obs, rows.mask, rows.memory, "greedy", random)
        expected["action"] = trained.decoded(acted.action)
    return expected
