"""Offline datasets: rollout workers write fragments as Parquet files and read them again.

A dataset folder has `manifest.json` and a folder per recorded policy, its name percent-encoded. There each run and
worker writes pairs of files: `<run>-<worker>-<number>.rows.parquet` with the columns of a Batch, and
`<run>-<worker>-<number>.segments.parquet` with its segments. Row groups are fragments. Nothing is pickled.
"""
