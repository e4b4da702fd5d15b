"""What the trainer said of every token before the step that first trained it: a file in the checkpoint, call by call.

It goes into the store with the end of the job, however often the job is taken up before. Numpy only.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mosaic.records import LogprobArray
from mosaic.store.trained_tokens import TrainedTokens
from trainer.sequences import Sequence as TrainingSequence


def save_logprobs(file: Path, sequences: Sequence[TrainingSequence], said: Mapping[int, LogprobArray]) -> None:
    """Write the logprobs (L,) of sequences, by their index, as those of the calls in them."""
    found = [
        (span.call_id, span.sample_index, logprobs_L[span.start : span.end])
        for row, logprobs_L in sorted(said.items())
        for span in sequences[row].spans
    ]
    np.savez(
        file,
        call_ids=np.asarray([call_id for call_id, _, _ in found], dtype=np.str_),
        choices=np.asarray([choice for _, choice, _ in found], dtype=np.int32),
        ends=np.cumsum([len(logprobs_T) for _, _, logprobs_T in found], dtype=np.int64),
        logprobs=np.concatenate([np.zeros(0, np.float32), *(logprobs_T for _, _, logprobs_T in found)]),
    )


def load_logprobs(file: Path) -> Iterator[TrainedTokens]:
    """What was written; nothing where there is no file."""
    if not file.exists():
        return
    with np.load(file) as held:
        parts = np.split(held["logprobs"], held["ends"][:-1])
        for call_id, choice, logprobs_T in zip(held["call_ids"].tolist(), held["choices"].tolist(), parts, strict=True):
            yield TrainedTokens(call_id, choice, logprobs_T)
