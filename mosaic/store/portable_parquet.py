"""Records in Parquet, and the folder with a dataset card that Hugging Face's `datasets` loads.

The schema is the layout of a record (`portable.LAYOUT`), said outright: no column's type depends on the rows. pyarrow
is an optional dependency and heavy; it is loaded by the first call that needs it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.errors import MosaicError
from mosaic.store.portable import FORMAT, LAYOUT, Field, Record

ROW_GROUP_BYTES = 32 * 2**20
"""Bytes of content after which a row group ends; a trajectory is never divided."""
SHARD_BYTES = 512 * 2**20
"""Bytes of content (several times those on disk) after which a dataset's next file begins."""


def write_file(records: Iterable[Record], path: Path) -> None:
    """Write the records as one Parquet file."""
    groups = row_groups(records, ROW_GROUP_BYTES)
    _write_shard(next(groups, []), groups, path, math.inf)


def write_dataset(records: Iterable[Record], folder: Path) -> None:
    """Write the records as `data/train-00000-of-0000N.parquet` files beside a dataset card."""
    data = folder / "data"
    data.mkdir(parents=True)
    groups = row_groups(records, ROW_GROUP_BYTES)
    shards: list[Path] = []
    group = next(groups, None)
    while group is not None or not shards:
        shards.append(data / f"{len(shards)}.parquet")
        group = _write_shard(group or [], groups, shards[-1], SHARD_BYTES)
    for index, shard in enumerate(shards):
        shard.rename(data / f"train-{index:05d}-of-{len(shards):05d}.parquet")
    (folder / "README.md").write_text(CARD)


def read_file(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file, as Python values, one at a time."""
    _, parquet = _arrow()
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1):
            yield batch.to_pylist()[0]


def schema() -> Any:
    """The layout of a record as a `pyarrow.Schema`."""
    arrow, _ = _arrow()
    return arrow.schema([(name, _type(arrow, wanted)) for name, wanted in LAYOUT.items()])


def row_groups(records: Iterable[Record], limit: int) -> Iterator[list[Record]]:
    """The records in portions of at least `limit` bytes of content, but for the last; holds no more than one."""
    group: list[Record] = []
    held = 0
    for record in records:
        group.append(record)
        held += _size(record)
        del record
        if held >= limit:
            full, group, held = group, [], 0
            yield full
            del full
    if group:
        yield group


def _write_shard(
    group: list[Record] | None, groups: Iterator[list[Record]], path: Path, limit: float
) -> list[Record] | None:
    """Write row groups until the file holds `limit` bytes of content; returns the first that is left."""
    arrow, parquet = _arrow()
    size = 0
    with parquet.ParquetWriter(path, schema(), compression="zstd") as writer:
        while group is not None and size < limit:
            table = arrow.Table.from_pylist(group, schema=writer.schema)
            group.clear()
            size += table.nbytes
            writer.write_table(table)
            del table
            group = next(groups, None)
    return group


def _size(value: Any) -> int:
    """About how many bytes a record's content takes."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 8


def _type(arrow: Any, wanted: Field) -> Any:
    if wanted.type in ("row", "rows"):
        row = arrow.struct([(name, _type(arrow, inner)) for name, inner in wanted.fields.items()])
        return row if wanted.type == "row" else arrow.list_(row)
    return {
        "text": arrow.string(),
        "json": arrow.string(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "bool": arrow.bool_(),
        "ids": arrow.list_(arrow.int32()),
        "logprobs": arrow.list_(arrow.float32()),
    }[wanted.type]


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MosaicError(
            "Parquet needs pyarrow, which is not installed.", "Run `pip install pyarrow`, or use --format jsonl."
        ) from error


CARD = f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
tags:
- agents
- trajectories
- mosaic
---

# Agent trajectories recorded by Mosaic

One row is one attempt of an agent at one task (format `{FORMAT}`): its sessions with links and advantages, its
messages, its calls with token ids and logprobs as the engine told them, and its rewards.

```python
from datasets import load_dataset
from mosaic.store.portable import prompt_ids

record = load_dataset("path/to/this/folder", split="train")[0]
prompts = prompt_ids(record)  # call id -> token ids of the whole prompt
```

The rows hold what was said to and by the agent, word for word. Read them before you publish them.
"""
