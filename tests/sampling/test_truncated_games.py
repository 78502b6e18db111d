"""Whether an episode was truncated: in its result, in training and evaluation, and in payoffs."""

from pettingzoo.classic import connect_four_v3, rps_v2

from marlflow.league.payoffs import Payoffs, game_of
from marlflow.league.sides import default_sides
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.protocol import EvaluationRequest
from tests.sampling.workers import lone_worker


def episodes(make_env):
    env = make_env()
    worker = lone_worker(make_env, RandomActor(env.action_space(env.possible_agents[0])))
    return [*worker.collect(100)[0].episodes, *worker.evaluate(EvaluationRequest(range(3), {})).episodes]


def test_rock_paper_scissors_is_truncated_and_connect_four_never_is() -> None:
    parallel, turns = episodes(lambda: rps_v2.parallel_env(max_cycles=4)), episodes(connect_four_v3.env)
    assert len(parallel) > 3
    assert len(turns) > 3
    assert all(result.truncated for result in (*parallel, *episodes(lambda: rps_v2.env(max_cycles=4))))
    assert not any(result.truncated for result in turns)


def test_payoffs_count_truncated_games() -> None:
    results = [*episodes(lambda: rps_v2.parallel_env(max_cycles=4)), *episodes(connect_four_v3.env)]
    payoffs = Payoffs(default_sides(["player_0", "player_1"]))
    for result in results:
        payoffs.add(game_of(payoffs.sides, ("one", "other"), result))
    (cell,) = payoffs.cells.values()
    assert cell.games == len(results)
    assert cell.truncated == sum(result.truncated for result in results) > 0
