"""The names and paths that each place of a configuration may have if this user did not write it, without trust.

A name is allowed by the place that it stands in: an environment where the environment is chosen, an optimizer where an
optimizer is. A prefix such as `marlflow.` says nothing, because marlflow's own functions run commands, import modules
and open files, too. docs/files.md has this table for readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from marlflow.base.public_names import MODULE_OF
from marlflow.config.target_nodes import ARGS, KEYWORDS, TARGET

AllowedByKey: TypeAlias = Mapping[str, "Allowed"]

OTHERS: Final = "*"
"""A key that stands for all keys without an entry of their own."""
_NO_TEXT = re.compile(r"")
_ANY_TEXT = re.compile(r".*", re.DOTALL)
# No import path, no file, no address: a dot is allowed in numbers only.
_WORDS = re.compile(r"(?:[^./\\:~$]|(?<=\d)\.(?=\d))*")


@dataclass(frozen=True)
class Allowed:
    """The values allowed at a place of a configuration, and below it.

    parts: the import paths that its `_target_` may have, with the places of their arguments.
    text: the texts that it may have; of places below that are not listed, too.
    keys: the places below, by key, if there is no `_target_`, or another than of `parts`; OTHERS is any other key.
    """

    parts: Mapping[str, AllowedByKey] = field(default_factory=dict)
    text: re.Pattern[str] = _WORDS
    keys: AllowedByKey = field(default_factory=dict)

    def below(self, values: Mapping[str, object], key: str) -> Allowed:
        """Return the place of an entry of the mapping `values` that is here."""
        keys, target = self.keys, values.get(TARGET)
        if isinstance(target, str):
            is_ours = target in self.parts
            keys = {**_OF_ANY_PART, **self.parts[target]} if is_ours else {OTHERS: _OF_FOREIGN_PART, **keys}
        return keys.get(key) or keys.get(OTHERS) or Allowed(text=self.text)


def _named(listed: str, arguments: AllowedByKey | None = None) -> dict[str, AllowedByKey]:
    """Return import paths, listed as `module: names` on lines, with the same arguments; public names have two."""
    found: dict[str, AllowedByKey] = {}
    for line in listed.split("\n"):
        module, _, names = line.partition(":")
        for name in names.split():
            paths = [f"{module.strip()}.{name}"]
            if MODULE_OF.get(name) == module.strip():
                paths.append(f"marlflow.{name}")
            found |= dict.fromkeys(paths, arguments or {})
    return found


def _public(names: str) -> str:
    """Return the lines of public names for `_named`."""
    return "\n".join(f"{MODULE_OF[name]}: {name}" for name in names.split())


def _one_of(*names: str) -> Allowed:
    return Allowed(text=re.compile("|".join(map(re.escape, ("", *names)))))


NOTHING: Final = Allowed(text=_NO_TEXT)
ANYTHING: Final = Allowed(text=_ANY_TEXT)
"""Texts that are shown, compared, or the path of a folder of data that is only read."""
# Positional arguments would be matched with other places than their own.
_OF_ANY_PART: Final[AllowedByKey] = {ARGS: NOTHING, KEYWORDS: NOTHING}

SCHEDULE: Final = Allowed(_named("marlflow.base.schedules: CosineDecay Linear PiecewiseConstant"))
# Code that has to be trusted itself may have any arguments but further names of modules.
_OF_FOREIGN_PART = Allowed(SCHEDULE.parts, text=re.compile(r"(?![^\W\d]\w*([.:]([\w-]+/)?[\w-]+)+\Z).*", re.DOTALL))
_OF_TORCH = "Adadelta Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD"
OPTIMIZER: Final = Allowed(
    _named(
        "\n".join(
            [
                "marlflow.learner.optimizer: Adam",
                f"torch.optim: {_OF_TORCH}",
                *(f"torch.optim.{name.lower()}: {name}" for name in _OF_TORCH.split()),
            ]
        )
    )
)
MODEL: Final = Allowed(_named(_public("CNN MLP GRU LSTM Transformer")))
# Another run is read as data, and what it names is checked like this, with nothing trusted.
_SOURCE: Final[AllowedByKey] = {"trust": NOTHING, OTHERS: ANYTHING}
PART: Final = Allowed(
    _named(
        _public("CostLimit KLToReference PopArt RewardUnit"),
        {OTHERS: SCHEDULE},
    )
)
_OF_ALGORITHM: Final[AllowedByKey] = {"optimizer": OPTIMIZER, "parts": Allowed(keys={OTHERS: PART})}
ALGORITHM: Final = Allowed(
    _named(
        _public(
            "A2C A3C ApeX APPO ArCHer BC Clone DDPG DDPPO DQN HAPPO IMPALA MADDPG MAML MAPPO MARWIL MASAC MATD3 "
            "PPO QMIX R2D2 RecurrentPPO SAC Random TD3 VDN"
        ),
        {**_OF_ALGORITHM, OTHERS: SCHEDULE},
    )
    | _named("marlflow.algorithms.scripted: Scripted", {"choose": _one_of("marlflow.policy.connect_four.one_ply")})
    | _named("marlflow.algorithms.from_run: Frozen", _SOURCE),
    # A user's own algorithm has them too.
    keys=_OF_ALGORITHM,
)

_SPACE = Allowed(_named("gymnasium.spaces: Box Discrete MultiDiscrete\ngymnasium.spaces.box: Box"))
_AGENTS: Final[AllowedByKey] = {"agents": ANYTHING}
WRAPPER: Final = Allowed(
    _named(
        """marlflow.env.wrappers.shipped: agent_indicator black_death clip_observations flatten_actions gray joint_state
        marlflow.env.wrappers.shipped: last_action mask_in_info named_agents pad_actions pad_observations
        marlflow.env.wrappers.shipped: random_opening resize reward_scale widen_bounds
        supersuit: frame_stack_v2"""
    )
    | _named(
        "marlflow.env.wrappers.automaton_task: automaton",
        # The automaton and the formula are read by parsers of their own, which evaluate nothing.
        {
            **_AGENTS,
            "labels": _one_of("marlflow.env.games.gridworld.labels"),
            "automaton": ANYTHING,
            "formula": ANYTHING,
        },
    )
    | _named(
        "marlflow.env.wrappers.managed: managed",
        {
            **_AGENTS,
            "manager": ANYTHING,
            "options": _SPACE,
            "terminate": NOTHING,
            "intrinsic": _one_of("marlflow.env.games.sign.reached"),
            "moved": NOTHING,
        },
    )
    | _named(
        "marlflow.env.wrappers.shield: shield",
        {**_AGENTS, "safe": _one_of("marlflow.env.games.cliff.stays_up"), "post": NOTHING},
    )
)
_WRAPPERS: Final[AllowedByKey] = {"wrappers": Allowed(WRAPPER.parts, keys={OTHERS: WRAPPER})}


def _registered(id: str, **arguments: Allowed) -> AllowedByKey:
    """Return the arguments of a factory that imports what a registry has under an `id` of this pattern."""
    return {**_WRAPPERS, "id": Allowed(text=re.compile(id)), **arguments}


# Some games of OpenSpiel read a file, which a parameter named such as `filename` or `word_list_file` gives.
_GAME = Allowed(text=re.compile(r"(?!.*(?:file|efg_game|nfg_game))" + _WORDS.pattern, re.DOTALL))
_PARAMETERS = Allowed(
    text=_GAME.text,
    keys=dict.fromkeys(("filename", "instances_file", "boards_file", "word_list_file"), NOTHING),
)
_OF_MPE = (
    "collect_treasure_v1 simple_adversary_v3 simple_crypto_v3 simple_formation_v1 simple_line_v1 "
    "simple_push_v3 simple_reference_v3 simple_speaker_listener_v4 simple_spread_v3 simple_tag_v3 simple_v3 "
    "simple_world_comm_v3"
)
ENVIRONMENT: Final = Allowed(
    _named(
        """marlflow.env.functional.jaxmarl: batched_env
        marlflow.env.functional.jumanji: batched_env
        marlflow.env.functional.pgx: batched_env
        marlflow.env.batched.vmas: VmasEnv
        marlflow.env.batched.board_games: ConnectFour TicTacToe
        marlflow.env.batched.cartpole_team: BatchedCartPoleTeam
        marlflow.env.batched.matrix_games: BatchedMatrixGame RockPaperScissors
        marlflow.env.batched.particle_scenarios: SimpleAdversary SimpleReference SimpleSpeakerListener SimpleSpread
        marlflow.env.batched.particle_scenarios: SimpleTag
        marlflow.env.batched.pendulum_team: BatchedPendulumTeam
        marlflow.env.batched.toll: BatchedToll
        marlflow.env.games.cartpole_family: CartPoleFamily env parallel_env
        marlflow.env.games.cartpole_team: CartPoleTeam env parallel_env
        marlflow.env.games.cliff: CliffWalks env parallel_env
        marlflow.env.games.gridworld: SlipperyGrid env parallel_env
        marlflow.env.games.guess_number: GuessNumber env parallel_env
        marlflow.env.games.matrix_games: env parallel_env
        marlflow.env.games.pendulum_team: PendulumTeam env parallel_env
        marlflow.env.games.recall: Recall env parallel_env
        marlflow.env.games.relay: RelayRace env parallel_env
        marlflow.env.games.sacrifice: Sacrifice env parallel_env
        marlflow.env.games.sign: SignCorridor env parallel_env
        marlflow.env.games.token_signal: TokenSignal env
        marlflow.env.games.toll: Toll env parallel_env""",
        _WRAPPERS,
    )
    | _named("\n".join(f"mpe2.{name}: parallel_env" for name in _OF_MPE.split()), _WRAPPERS)
    # What `make` names is imported.
    | _named("marlflow.env.functional.own: batched_env", {**_WRAPPERS, "make": NOTHING})
    # An id with a module, `module:name`, imports it, and others may be registered by any package.
    | _named("marlflow.env.simulators.pettingzoo_registry: make", _registered(r"(butterfly|classic|sisl)/[\w-]+"))
    | _named("marlflow.env.simulators.lbf: parallel_env", _registered(r"Foraging-[\w-]+"))
    | _named("marlflow.env.simulators.rware: parallel_env", _registered(r"rware-[\w-]+"))
    | _named("marlflow.env.simulators.gymnasium_team: parallel_env", _registered(""))
    | _named(
        "marlflow.env.simulators.openspiel: OpenSpielEnv env", {**_WRAPPERS, "game": _GAME, "parameters": _PARAMETERS}
    )
    | _named(
        "marlflow.offline.environment: recorded_environment",
        # The manifest of the folder is checked, too.
        {**_WRAPPERS, "folder": ANYTHING, "trust": NOTHING},
    ),
    keys=_WRAPPERS,
)

_MATCHMAKER = Allowed(
    _named("marlflow.matchmaking.matchmakers: RandomSeats", {OTHERS: ANYTHING}), _ANY_TEXT, keys={OTHERS: ANYTHING}
)
_MODE = Allowed(
    _named(
        """marlflow.league: AlphaStar DeltaUniform Fictitious LatestPast NFSP NaiveSelfPlay PFSP PSRO
        marlflow.league.alphastar: AlphaStar
        marlflow.league.modes: DeltaUniform Fictitious LatestPast NaiveSelfPlay PFSP
        marlflow.league.nfsp: NFSP
        marlflow.league.psro: PSRO""",
        {OTHERS: ANYTHING},
    )
)


def _settings(names: str) -> Allowed:
    return Allowed(_named(f"marlflow.league.league: {names}", {OTHERS: ANYTHING}), keys={OTHERS: ANYTHING})


_LEAGUE_SETTINGS: Final[AllowedByKey] = {
    "matchmaker": _MODE,
    "outcome": NOTHING,
    "trust": NOTHING,
    "players": Allowed(keys={OTHERS: _settings("LeaguePlayer")}),
    "pool": _settings("Pool"),
    "payoffs": _settings("PayoffSettings"),
    "ratings": _settings("RatingSettings"),
    "matches": _settings("MatchRules"),
    "store": _settings("StoreSettings"),
    "snapshots": _settings("SnapshotRules"),
    # Members of other runs and exported files are read as data, and checked like this.
    OTHERS: ANYTHING,
}
LEAGUE: Final = Allowed(
    _named("marlflow.league: League\nmarlflow.league.league: League", _LEAGUE_SETTINGS), keys=_LEAGUE_SETTINGS
)
_CALLBACKS = "marlflow.observe.early_stop: EarlyStop\nmarlflow.observe.population: PopulationBasedTraining"
CALLBACK: Final = Allowed(_named(_CALLBACKS, {OTHERS: ANYTHING}))

POLICY: Final = Allowed(
    keys={
        "algorithm": ALGORITHM,
        "model": MODEL,
        "init": Allowed(text=_ANY_TEXT, keys=_SOURCE),
        "reward_from": Allowed(keys={OTHERS: SCHEDULE}),
        OTHERS: ANYTHING,
    }
)
EXPERIMENT: Final = Allowed(
    keys={
        "env": ENVIRONMENT,
        "policies": Allowed(keys={OTHERS: POLICY}),
        "default_policy": POLICY,
        "learners": Allowed(keys={OTHERS: POLICY}),
        "mapping": _MATCHMAKER,
        "league": LEAGUE,
        "callbacks": Allowed(keys={OTHERS: CALLBACK}),
        # A tracker sends reports to where the configuration says, in this user's name.
        "log": Allowed(text=_ANY_TEXT, keys={"sinks": Allowed()}),
        # Rows are written to the run's own folder, and Ray is one of the run's own.
        "record": Allowed(text=_ANY_TEXT, keys={"folder": NOTHING}),
        "runtime": Allowed(keys={"address": _one_of("local"), "node_ip_address": NOTHING}),
        **dict.fromkeys(
            ("name", "objective", "rollouts", "placement", "stop", "evaluation", "faults", "checkpoint"), ANYTHING
        ),
    }
)
"""The places of a whole configuration, without Hydra's own."""
