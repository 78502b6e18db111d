"""Functional environments: pure functions written in JAX, all of a worker's stepped by one compiled call.

The import of this package sets JAX up, before any module of it imports JAX: on one thread of the CPU, with the cache of
compiled programs. Their protocol is `marlflow.env.functional_protocol`, which does not import JAX.
"""

from marlflow.compiled import xla

if problem := xla.problem():
    raise ImportError(problem)
# Without a folder for it, each process compiles for itself.
xla.cache_problem()
