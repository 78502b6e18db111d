"""Recorded experience: fragments as Parquet files, written by rollout workers and handed out by them again.

A folder of records has `manifest.json`, and for each recorded policy a folder of files, two for each run, worker and
some of its rounds: `<run>-<worker>-<number>.rows.parquet` has a column for each column of a Batch, and beside it
`<run>-<worker>-<number>.segments.parquet` one for each property of its segments; their row groups are the fragments.
The name of a policy's folder is the policy's, percent-encoded. Nothing in it is pickled.
"""
