"""The text of the gallery's pages: functions of their data and of the code, so that they can be written again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.gallery.cases import CASES, CONF, LEAST_ENV_STEPS, WITHOUT_PAGE
from marlflow.algorithms.shipped import SHIPPED
from marlflow.config.comments import commented
from marlflow.html_report.statistics import summary_names

Data = Mapping[str, Any]
_BUSY = 1.2
"""Elapsed seconds for each CPU second of one thread, above which other programs slowed it down."""
_TITLES = {
    one.name: (inspect.getdoc(sys.modules[type(one).__module__]) or "").splitlines()[0].rstrip(".") for one in SHIPPED
}


def number(value: float) -> str:
    """Write a return with one to three decimals.

    >>> number(199.987), number(-31.04), number(0.04512)
    ('200.0', '-31.0', '0.045')
    """
    if value == 0:
        return "0"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def description(experiment: str) -> str:
    """Return what the experiment's file says about itself."""
    return " ".join(commented((CONF / f"{experiment}.yaml").read_text(encoding="utf-8")).heading)


def environment_name(env: Data) -> str:
    """Return the name of an environment's game, its id, or its module.

    >>> environment_name({"target": "mpe2.simple_tag_v3.parallel_env"})
    'simple_tag_v3'
    """
    if "game" in env:
        return f"{env['game']} of OpenSpiel"
    if "id" in env:
        return str(env["id"])
    return str(env["target"]).rpartition(".")[0].rpartition(".")[2]


def policy_curves(data: Data) -> list[dict[str, Any]]:
    """Return the curves of single policies, which one figure shows; none where NashConv is what a run is for."""
    return [] if nash_conv_curves(data) else [one for one in data["curves"] if one["key"].startswith("policies.")]


def nash_conv_curves(data: Data) -> list[dict[str, Any]]:
    """Return the curve of NashConv, if there is one."""
    return [one for one in data["curves"] if one["key"] == "nash_conv"]


def levels(data: Data) -> dict[str, float]:
    """Return the returns of random policies, by the key of the curve to which each is compared."""
    return {f"policies.{policy}.eval_return_mean": one[0] for policy, one in data["random"].items()}


def page(data: Data) -> str:
    """Return the page of an experiment."""
    return "\n".join([*_head(data), *_curves(data), *_results(data), *_film(data), *_command(data), *_time(data)])


def _head(data: Data) -> Iterator[str]:
    yield f"# {data['experiment']}\n"
    yield f"{description(data['experiment'])}\n"
    for algorithm, policies in _by_value(data["policies"]).items():
        # Scripted and random policies have no title.
        known = algorithm in _TITLES
        shown = f"[`{algorithm}`](../algorithms.md#{algorithm}), {_TITLES[algorithm]}" if known else f"`{algorithm}`"
        yield f"- {', '.join(f'`{name}`' for name in policies)}: {shown}"
    yield f"- environment: `{environment_name(data['env'])}` ([environments](../environments.md))\n"


def _episodes(evaluation: Data, when: str) -> str:
    """Return the number of episodes and how policies acted in them."""
    number, mode = evaluation[when], evaluation["mode"]
    how = "[as learned](../concepts.md#how-a-policy-acts-training-and-evaluation)"
    return f"{number} episodes {how}" if mode == "as_learned" else f"{number} {mode} episodes"


def _curves(data: Data) -> Iterator[str]:
    folder, evaluation = data["experiment"], data["evaluation"]
    several = policy_curves(data)
    if several:
        units = " and ".join(dict.fromkeys(one["unit"] for one in several))
        names = summary_names(len(data["seeds"]))
        what = {"mean": "Their mean", "IQM": "Their interquartile mean"}[names.statistic]
        around = "their range" if names.interval == "range" else f"its {names.interval} bootstrap interval"
        against = f" against {', '.join(evaluation['opponents'])}" if evaluation["opponents"] else ""
        yield f"![Learning curves]({folder}/curve.svg)\n"
        yield (
            f"Evaluations during training: {units}, the mean of {_episodes(evaluation, 'during')}"
            f"{against}. "
            f"Thin lines are single seeds. {what} is the thick line; shaded: {around}."
            f"{' The dotted line is the return if all agents act at random.' if data['random'] else ''}\n"
        )
    if nash_conv_curves(data):
        yield f"![NashConv]({folder}/nash_conv.svg)\n"
        yield "NashConv of the league's solution: the sum of what each player could gain by a best response.\n"


def _results(data: Data) -> Iterator[str]:
    yield "## Results\n"
    evaluation = data["evaluation"]
    if nash_conv_curves(data):
        yield _table(_nash_conv(data))
    if data["together"]:
        yield _table(_together(data))
        yield (
            f"Return per agent and episode of the final policies: the mean of {_episodes(evaluation, 'final')} "
            "whose seeds differ from the seeds of training. *Best* is the highest "
            "evaluation during training, for each seed, without the first one. *Random* is the return of the same "
            "agents if all agents act at random.\n"
        )
        if (distinct := max(data["distinct"].values())) < evaluation["final"]:
            several = "all are the same" if distinct == 1 else f"at most {distinct} of them are different"
            yield f"The environment has no chance, so the {evaluation['final']} episodes of a seed repeat: {several}.\n"
    if data["against_random"]:
        games = [one["games"] for of_seed in data["against_random"].values() for one in of_seed.values()]
        yield _table(_against_random(data))
        yield (
            f"Return of the final policies against random opponents: the mean of {games[0]} games, in which a "
            "policy plays each of its sides equally often. It draws its actions, or is greedy if its algorithm has no "
            "distribution to draw from.\n"
        )
    if data.get("expert"):
        yield _table(_expert(data))
        yield (
            "The mean return of the expert's episodes while it was recorded. It drew its actions and continued to "
            f"learn; the records have {max(one['env_steps'] for one in data['expert'].values()):,} env steps.\n"
        )
    if data.get("adapted"):
        (tasks,) = {one["tasks"] for one in data["adapted"].values()}
        yield _table(_adapted(data))
        yield (
            f"Return per agent in the first episode of {tasks} held-out tasks, with the learned parameters and after "
            "one inner step; *p* is of a paired test by random exchanges. The returns above are without inner steps.\n"
        )


def _together(data: Data) -> Iterator[list[str]]:
    seeds = list(map(str, data["seeds"]))
    # An untrained greedy policy may be good by chance; the first evaluation is before most of training.
    later = {one["key"].split(".")[1]: [run["values"][1:] for run in one["runs"]] for one in policy_curves(data)}
    yield ["policy", *(f"seed {seed}" for seed in seeds), "mean", "best", "random"]
    for policy in data["together"][seeds[0]]:
        finals = [data["together"][seed][policy]["return"][0] for seed in seeds]
        highest = ", ".join(number(max(values)) for values in later.get(policy, ()) if values)
        at_random = number(data["random"][policy][0])
        yield [f"`{policy}`", *map(number, finals), f"**{number(fmean(finals))}**", highest, at_random]


def _against_random(data: Data) -> Iterator[list[str]]:
    by_seed = list(data["against_random"].values())
    has_outcomes = "win" in next(iter(by_seed[0].values()))
    yield ["policy", *(f"seed {seed}" for seed in data["seeds"]), "mean", *(["games won"] if has_outcomes else [])]
    for member in by_seed[0]:
        returns = [of_seed[member]["return"][0] for of_seed in by_seed]
        won = ", ".join(f"{100 * of_seed[member]['win'][0]:.0f} %" for of_seed in by_seed if has_outcomes)
        row = [f"`{member}`", *map(number, returns), f"**{number(fmean(returns))}**"]
        yield [*row, won] if has_outcomes else row


def _nash_conv(data: Data) -> Iterator[list[str]]:
    (curve,) = nash_conv_curves(data)
    yield ["", *(f"seed {seed}" for seed in data["seeds"])]
    yield ["NashConv at the end", *(number(run["values"][-1]) for run in curve["runs"])]
    yield ["NashConv at its lowest", *(number(min(run["values"])) for run in curve["runs"])]


def _expert(data: Data) -> Iterator[list[str]]:
    yield ["expert", *(f"seed {seed}" for seed in data["seeds"])]
    for policy in _first(data["expert"])["return"]:
        yield [f"`{policy}`", *(number(one["return"][policy]) for one in data["expert"].values())]


def _adapted(data: Data) -> Iterator[list[str]]:
    by_seed = list(data["adapted"].values())
    yield ["", *(f"seed {seed}" for seed in data["seeds"])]
    yield ["before", *(number(one["before"]) for one in by_seed)]
    yield ["after one inner step", *(number(one["after"]) for one in by_seed)]
    yield ["p", *(f"{one['p']:.0e}" for one in by_seed)]


def _film(data: Data) -> Iterator[str]:
    film, folder = data["film"], data["experiment"]
    yield "## An episode\n"
    if film is None:
        yield "This environment draws no pictures, and has no text.\n"
        return
    seats = "; ".join(f"`{name}` plays {', '.join(agents)}" for name, agents in _by_value(film["seating"]).items())
    which = f"the final policies of seed {film['seed']}"
    if film["text"]:
        yield f"This environment draws no pictures. As text, what {which} play: {seats}.\n"
        yield f"```\n{film['text']}\n```\n"
        return
    returns = ", ".join(f"{agent} {number(value)}" for agent, value in film["returns"].items())
    yield f"![An episode of the final policies]({folder}/film.webp)\n"
    first = f", the first of at least {LEAST_ENV_STEPS} after its random opening" if film.get("skipped") else ""
    yield f"One episode of {which}, {film['env_steps']} env steps{first}: {seats}. Returns: {returns}.\n"


def _command(data: Data) -> Iterator[str]:
    name, case = data["experiment"], CASES[data["experiment"]]
    words = " ".join(case.words(data["seeds"][0], records=Path("runs/expert/record")))
    yield "## Train it yourself\n"
    yield "```"
    if case.expert is not None:
        before = CASES[case.expert].words(data["seeds"][0])
        yield f"marlflow train {' '.join(before)} hydra.run.dir=runs/expert"
        yield f"marlflow resume runs/expert stop.env_steps={_first(data['expert'])['stop_env_steps']} record=dataset"
    # As the run was configured; the default has been as_learned since.
    mode = "evaluation.mode=greedy " if data["evaluation"]["mode"] == "greedy" else ""
    yield f"marlflow train {words} {mode}hydra.run.dir=runs/{name}"
    yield f"marlflow evaluate runs/{name} episodes={data['evaluation']['final']}"
    is_drawn = data["film"] is not None and not data["film"]["text"]
    yield f"marlflow play runs/{name}{f' --video {name}.mp4' if is_drawn else ''}\n```\n"
    if case.why:
        yield f"{case.why}\n"
    yield (
        "With `runtime=inline`, the same seed and versions give the same results. Without it, Ray runs rollouts and "
        "learners in processes of their own, which is faster, and results differ a little from run to run.\n"
    )


def _time(data: Data) -> Iterator[str]:
    machine, name = data["hardware"], data["experiment"]
    rows = [["seed", "env steps", "updates", "CPU seconds", "env steps per CPU second", "elapsed seconds"]]
    for run in data["runs"]:
        numbers = [run["env_steps"], sum(run["updates"].values()), run["cpu_s"], run["env_steps"] / run["cpu_s"]]
        rows.append([str(run["seed"]), *(f"{value:,.0f}" for value in (*numbers, run["time_s"]))])
    yield "## Time, versions, and data\n"
    yield _table(rows)
    yield f"One thread on {machine['cores']} cores ({machine['cpu']}), {machine['gpu'] or 'no GPU'}."
    yield "CPU seconds are of the whole command, with its start and the evaluations during training."
    if any(run["time_s"] > _BUSY * run["cpu_s"] for run in data["runs"]):
        yield "Other programs ran at the same time. On an idle machine, about as many seconds elapse as CPU seconds."
    yield ""
    versions = ", ".join(f"{package} {version}" for package, version in data["versions"].items())
    yield f"Commit {', '.join(f'`{commit[:12]}`' for commit in data['commits'])}; {versions}.\n"
    yield f"All numbers are in [{name}.json]({name}.json). `python -m benchmarks.gallery {name}` makes this page.\n"


def _first(by_seed: Data) -> Data:
    one: Data = next(iter(by_seed.values()))
    return one


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in values.items():
        found.setdefault(value, []).append(key)
    return found


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest]) + "\n"


_INDEX = """\
# Gallery

Each of these experiments was trained with three seeds on which no setting was chosen. Its page has learning curves,
results of the final policies, an episode of them, the command, and the time that it took. All pages are written by
`python -m benchmarks.gallery`, from the `.json` file next to each.
"""
_COLUMNS = """\
*Final* is the return per agent and episode of the final policies, the mean over seeds; where policies are opponents, it
is against random ones. NashConv is what both players together could gain by best responses: 0 in an equilibrium.
*Random* is the return if all agents act at random.
"""


def index(several: Sequence[Data]) -> str:
    """Return the page that leads to all others."""
    rows = [["", "experiment", "final", "random"]]
    for data in several:
        name, film = data["experiment"], data["film"]
        curve = "curve.svg" if policy_curves(data) else "nash_conv.svg"
        still = f"![{name}]({name}/{curve if film is None or film['text'] else 'still.webp'})"
        at_random = ", ".join(number(one[0]) for one in data["random"].values())
        rows.append([still, f"[{name}]({name}.md)<br>{description(name)}", _in_short(data), at_random])
    reasons = _by_value(WITHOUT_PAGE).items()
    why = "".join(f"- {', '.join(f'`{name}`' for name in names)}: {reason}.\n" for reason, names in reasons)
    without = f"## Without a page\n\n{why}" if why else ""
    tree = "\n".join(["```{toctree}", ":hidden:", "", *(data["experiment"] for data in several), "```\n"])
    return "\n".join(part for part in [_INDEX, _table(rows), _COLUMNS, without, tree] if part)


def _in_short(data: Data) -> str:
    """Return the mean final return of each policy, by its name if there are several."""
    if several := nash_conv_curves(data):
        return f"NashConv {number(fmean(run['values'][-1] for run in several[0]['runs']))}"
    by_seed = list((data["against_random"] or data["together"]).values())
    finals = {name: fmean(of_seed[name]["return"][0] for of_seed in by_seed) for name in by_seed[0]}
    return ", ".join(f"`{name}` {number(one)}" if len(finals) > 1 else number(one) for name, one in finals.items())
