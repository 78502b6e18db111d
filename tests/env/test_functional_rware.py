"""The functional warehouse beside the package rware, from the same states, by the same actions."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("rware")

import networkx
import rware.warehouse
from rware.warehouse import Action, Direction, ObservationType, RewardType

from marlflow.base.errors import ConfigInvalid
from marlflow.env.functional.rware import WarehouseGame, WarehouseState, _advances, batched_env
from marlflow.env.simulators import rware as warehouse

CROWDED = "...gg\nxx.x.\nx...x\n.xx.."
GAMES = {
    "tiny, 2 agents": ("rware-tiny-2ag-v2", {}),
    "tiny, 4 agents": ("rware-tiny-4ag-easy-v2", {}),
    "small, 4 agents": ("rware-small-4ag-hard-v2", {}),
    "crowded, in two stages": (
        "rware-tiny-7ag-v2",
        {"layout": CROWDED, "request_queue_size": 5, "reward_type": RewardType.TWO_STAGE, "sensor_range": 2},
    ),
    "crowded, all rewarded": (
        "rware-tiny-3ag-v2",
        {"layout": CROWDED, "reward_type": RewardType.GLOBAL, "normalised_coordinates": True, "max_steps": 7},
    ),
    "inactivity ends it": (
        "rware-tiny-6ag-v2",
        {"layout": CROWDED, "request_queue_size": 3, "max_inactivity_steps": 5},
    ),
}


class InOrder(networkx.DiGraph):
    """A graph whose subgraphs have its own order of nodes, where some of networkx's have that of a set."""

    def subgraph(self, nodes):
        part = networkx.DiGraph()
        part.add_nodes_from(node for node in self if node in nodes)
        part.add_edges_from(edge for edge in self.edges if edge[0] in nodes)
        return part


GRAPHS = SimpleNamespace(
    DiGraph=InOrder,
    weakly_connected_components=networkx.weakly_connected_components,
    algorithms=networkx.algorithms,
    NetworkXNoCycle=networkx.NetworkXNoCycle,
)


class Requests:
    """Random numbers of rware: the new requests are those that the functional game draws from `state` with `key`."""

    def __init__(self, game, state: WarehouseState, key) -> None:
        self._game, self._others = game, state.others.tolist()
        self._bits = np.asarray(jax.random.bits(key, (len(game.goals),), jnp.uint32))

    def choice(self, candidates):
        requested = [shelf.id for shelf in self._game.request_queue]
        at_goals = [int(self._game.grid[1, y, x]) for x, y in self._game.goals]
        number = next(number for number, shelf in enumerate(at_goals) if shelf in requested)
        place = int(self._bits[number]) % len(self._others)
        chosen, self._others[place] = self._others[place], at_goals[number]
        return next(shelf for shelf in candidates if shelf.id == chosen)


def put(game, ours: WarehouseGame, state: WarehouseState) -> None:
    """Make the state of rware that of the functional game."""
    game.reset(seed=0)
    places = {int(cell): divmod(at, game.grid_size[1]) for at, cell in enumerate(ours._field.ravel())}
    for shelf, cell in enumerate(ours._shelves.nonzero()[0], 1):
        assert (game.shelfs[shelf - 1].y, game.shelfs[shelf - 1].x) == places[int(cell)]
    for cell in np.asarray(state.standing).nonzero()[0]:
        shelf = game.shelfs[int(state.standing[cell]) - 1]
        shelf.y, shelf.x = places[int(cell)]
    for number, agent in enumerate(game.agents):
        agent.y, agent.x = places[int(state.cells[number])]
        agent.dir, agent.has_delivered = Direction(int(state.directions[number])), bool(state.has_delivered[number])
        if load := int(state.loads[number]):
            agent.carrying_shelf = game.shelfs[load - 1]
            agent.carrying_shelf.y, agent.carrying_shelf.x = agent.y, agent.x
    game.request_queue = [game.shelfs[shelf - 1] for shelf in np.asarray(state.requests)]
    game._cur_steps, game._cur_inactive_steps = int(state.env_steps), int(state.inactive_steps)
    game._recalc_grid()


def crowd(rng, ours: WarehouseGame, state: WarehouseState) -> WarehouseState:
    """Return `state` with the agents close together, half of the time near goals, and with most of them loaded."""
    field, count = ours._field, len(state.cells)
    goal = np.argwhere(field == rng.choice(ours._goals))[0]
    middle = goal if rng.random() < 0.5 else [rng.integers(size) for size in field.shape]
    apart = np.abs(np.indices(field.shape).transpose(1, 2, 0) - middle).sum(-1)
    nearest = field.ravel()[np.argsort(apart.ravel(), kind="stable")[: count + 4]]
    cells, standing, loads = rng.permutation(nearest)[:count], ours._shelves.copy(), np.zeros(count, np.int32)
    for number in rng.permutation(count)[: rng.integers(count + 1)]:
        left = standing[standing > 0]
        requested = np.intersect1d(left, state.requests)
        load = standing[cells[number]] or rng.choice(requested if len(requested) and rng.random() < 0.8 else left)
        standing[standing == load], loads[number] = 0, load
    directions, delivered = rng.integers(4, size=count), (rng.random(count) < 0.3) & (loads > 0)
    arrays = (cells, directions, loads, standing)
    cells, directions, loads, standing = (jnp.asarray(array, jnp.int32) for array in arrays)
    return state._replace(
        cells=cells, directions=directions, loads=loads, standing=standing, has_delivered=jnp.asarray(delivered)
    )


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # rware's own, with normalised coordinates
@pytest.mark.parametrize("kind", GAMES)
def test_it_is_rwares_game(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    id, arguments = GAMES[kind]
    game = warehouse.parallel_env(id, arguments=arguments).game
    if game.n_agents > 3:
        monkeypatch.setattr(rware.warehouse, "nx", GRAPHS)
    ours = WarehouseGame(game)
    reset, step = jax.jit(ours.reset), jax.jit(ours.step)
    rng, paid, ends = np.random.default_rng(0), 0, 0
    for episode in range(40):
        state, seen = reset(jax.random.PRNGKey(episode))
        put(game, ours, state)
        np.testing.assert_array_equal(seen.observations["agent"], [game._make_obs(agent) for agent in game.agents])
        state = crowd(rng, ours, state)
        put(game, ours, state)
        for number in range(10):
            actions = rng.choice(5, game.n_agents, p=[0.05, 0.55, 0.1, 0.1, 0.2])
            key = jax.random.PRNGKey(number)
            game._np_random = Requests(game, state, key)
            state, seen = step(key, state, {"agent": jnp.asarray(actions)})
            expected, rewards, over, _, _ = game.step([int(action) for action in actions])
            np.testing.assert_array_equal(seen.observations["agent"], np.stack(expected))
            np.testing.assert_array_equal(seen.rewards["agent"], np.float32(rewards))
            np.testing.assert_array_equal(state.requests, [shelf.id for shelf in game.request_queue])
            assert bool(seen.terminated["agent"]) == over
            paid, ends = paid + np.count_nonzero(rewards), ends + over
            if over:
                break
        assert sorted([*state.requests.tolist(), *state.others.tolist()]) == list(range(1, len(game.shelfs) + 1))
    assert paid
    assert bool(ends) == any(key.startswith("max_") for key in arguments)


@pytest.mark.parametrize(("rows", "columns", "agents"), [(2, 2, 3), (2, 2, 4), (2, 3, 4), (3, 4, 8), (4, 5, 19)])
def test_agents_advance_as_in_rware(rows: int, columns: int, agents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = "\n".join("g" + "." * (columns - 1) for _ in range(rows - 1)) + "\n" + "x" * columns
    arguments = {"layout": layout, "request_queue_size": 0}
    game = warehouse.parallel_env(f"rware-tiny-{agents}ag-v2", arguments=arguments).game
    game.reset(seed=0)
    advances, rng, others = jax.jit(_advances), np.random.default_rng(0), 0
    for _ in range(400):
        places = rng.permutation(rows * columns)[:agents]
        facing, goes = rng.integers(4, size=agents), rng.random(agents) < 0.9
        found = {}
        for is_ordered in (False, True):
            with monkeypatch.context() as patch:
                if is_ordered:
                    patch.setattr(rware.warehouse, "nx", GRAPHS)
                for agent, place, direction in zip(game.agents, places, facing, strict=True):
                    (agent.y, agent.x), agent.dir = divmod(int(place), columns), Direction(int(direction))
                game._recalc_grid()
                for agent in game.agents:
                    agent.req_action = Action.FORWARD
                aims = [agent.req_location(game.grid_size) for agent in game.agents]
                aims = np.where(goes, [y * columns + x for x, y in aims], places)
                game.step([int(each) for each in goes])
                found[is_ordered] = [agent.y * columns + agent.x for agent in game.agents] != places
        np.testing.assert_array_equal(np.asarray(advances(places, aims)) & (aims != places), found[True])
        # The order of a set says which of lines that are equally long advances.
        assert found[False].sum() == found[True].sum()
        others += not np.array_equal(found[False], found[True])
    assert others == 0 or agents > 3


def test_initial_states_are_distributed_as_in_rware() -> None:
    arguments = {"layout": CROWDED, "request_queue_size": 2}
    game = warehouse.parallel_env("rware-tiny-3ag-v2", arguments=arguments).game
    ours = WarehouseGame(game)
    states, _ = jax.jit(jax.vmap(ours.reset))(jax.random.split(jax.random.PRNGKey(1), 4000))
    places = np.searchsorted(ours._field.ravel(), states.cells)
    mine = np.stack([_figures(*each) for each in zip(places, states.directions, states.requests, strict=True)])
    theirs = []
    for seed in range(800):
        game.reset(seed=seed)
        at = np.array([agent.y * game.grid_size[1] + agent.x for agent in game.agents])
        facing, requests = [agent.dir.value for agent in game.agents], [shelf.id for shelf in game.request_queue]
        theirs.append(_figures(at, facing, requests))
    error = np.sqrt(mine.var(0) / len(mine) + np.var(theirs, 0) / len(theirs)) + 1e-9
    assert (np.abs(mine.mean(0) - np.mean(theirs, 0)) < 4.5 * error).all()


def _figures(places, directions, requests):
    one_hot = np.concatenate([np.eye(20)[places].sum(0), np.eye(4)[directions].sum(0), np.eye(9)[requests].sum(0)])
    return [*one_hot, *places, *directions, *requests, len(set(places)), requests[0] == requests[1], np.ptp(places)]


def test_each_shelf_that_is_not_requested_may_be_the_next_request() -> None:
    game = warehouse.parallel_env("rware-tiny-2ag-v2").game
    ours = WarehouseGame(game)
    state, _ = ours.reset(jax.random.PRNGKey(0))
    cells = jnp.asarray([ours._goals[0], ours._field[0, 0]])
    shelf = state.requests[0]
    standing = jnp.where(state.standing == shelf, 0, state.standing)
    state = state._replace(cells=cells, loads=jnp.stack([shelf, jnp.int32(0)]), standing=standing)
    stay = {"agent": jnp.zeros(2, jnp.int32)}
    keys = jax.random.split(jax.random.PRNGKey(1), 4000)
    after, _ = jax.jit(jax.vmap(lambda key: ours.step(key, state, stay)))(keys)
    counts = np.bincount(after.requests[:, 0])
    expected = len(keys) / len(state.others)
    assert counts[int(shelf)] == 0
    assert np.count_nonzero(counts) == len(state.others)
    assert ((counts[counts > 0] - expected) ** 2 / expected).sum() < 3 * len(state.others)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"observation_type": ObservationType.IMAGE}, "has flattened observations only; set env.batched=false"),
        ({"observation_type": ObservationType.DICT}, "has flattened observations only"),
        ({"msg_bits": 2}, "has no messages (msg_bits); set env.batched=false"),
        ({"layout": "g.x", "request_queue_size": 1}, "request_queue_size=1 leaves none of the 1 shelves"),
        ({"layout": "gx.", "request_queue_size": 0, "n_agents": 4}, "n_agents=4 have no place in 3 cells"),
    ],
)
def test_what_is_not_translated_is_refused(arguments, problem: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        batched_env(1, arguments=arguments)
    assert problem in str(caught.value)
