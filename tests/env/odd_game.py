"""A game of OpenSpiel that has what few have: rewards by chance, players and whole nodes without legal actions."""

import numpy as np
import pyspiel

NAME = "python_marlflow_odd"
PLAYERS, CHANCE_BEFORE, BOTH, NOBODY, ONE, CHANCE_AFTER, OVER = 3, *range(6)

_TYPE = pyspiel.GameType(
    short_name=NAME,
    long_name="Odd",
    dynamics=pyspiel.GameType.Dynamics.SIMULTANEOUS,
    chance_mode=pyspiel.GameType.ChanceMode.EXPLICIT_STOCHASTIC,
    information=pyspiel.GameType.Information.PERFECT_INFORMATION,
    utility=pyspiel.GameType.Utility.GENERAL_SUM,
    reward_model=pyspiel.GameType.RewardModel.REWARDS,
    max_num_players=PLAYERS,
    min_num_players=PLAYERS,
    provides_information_state_string=False,
    provides_information_state_tensor=False,
    provides_observation_string=False,
    provides_observation_tensor=True,
    parameter_specification={},
)


class OddGame(pyspiel.Game):
    def __init__(self, params=None):
        info = pyspiel.GameInfo(
            num_distinct_actions=2,
            max_chance_outcomes=2,
            num_players=PLAYERS,
            min_utility=0.0,
            max_utility=20.0,
            utility_sum=None,
            max_game_length=3,
        )
        super().__init__(_TYPE, info, params or {})

    def new_initial_state(self):
        return OddState(self)

    def make_py_observer(self, iig_obs_type=None, params=None):
        return OddObserver()


class OddState(pyspiel.State):
    """Chance gives player 0 what it draws, 1 or 2; the joint choice is worth 10 to who chose 1; chance gives 5."""

    def __init__(self, game):
        super().__init__(game)
        self.phase, self.total = CHANCE_BEFORE, [0.0] * PLAYERS

    def current_player(self):
        chance, together = pyspiel.PlayerId.CHANCE, pyspiel.PlayerId.SIMULTANEOUS
        return [chance, together, together, 2, chance, pyspiel.PlayerId.TERMINAL][self.phase]

    def _legal_actions(self, player):
        if self.phase == BOTH:
            return [0, 1] if player != 1 else []
        return [1] if self.phase == ONE and player == 2 else []

    def chance_outcomes(self):
        return [(0, 0.25), (1, 0.75)] if self.phase == CHANCE_BEFORE else [(0, 1.0)]

    def _apply_action(self, action):
        if self.phase == CHANCE_BEFORE:
            self.total[0] += 1.0 + action
        elif self.phase == CHANCE_AFTER:
            self.total[1] += 5.0
        self.phase += 1

    def _apply_actions(self, actions):
        for player, action in enumerate(actions):
            self.total[player] += 10.0 * action
        self.phase += 1

    def _action_to_string(self, player, action):
        return f"{player}:{action}"

    def is_terminal(self):
        return self.phase == OVER

    def returns(self):
        return self.total

    def __str__(self):
        return f"{self.phase} {self.total}"


class OddObserver:
    def __init__(self):
        self.tensor = np.zeros(2, np.float32)
        self.dict = {"all": self.tensor}

    def set_from(self, state, player):
        self.tensor[:] = state.phase, player

    def string_from(self, state, player):
        return None


pyspiel.register_game(_TYPE, OddGame)
