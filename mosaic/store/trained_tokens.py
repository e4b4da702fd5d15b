"""What the trainer said of tokens when it trained them, beside what the engine had said when it sampled them."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, tuple_

from mosaic.records import LogprobArray
from mosaic.store.codec import pack, unpack_logprobs
from mosaic.store.models import CallRow, TrainedTokensRow


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The sampled tokens of one choice."""

    call_id: str
    choice: int
    logprobs_T: LogprobArray
    """NaN for tokens that were not trained."""


def keep(connection: Connection, job_id: str, some: Iterable[TrainedTokens]) -> None:
    """Write what a job said, in place of what earlier ones had; calls that were pruned meanwhile are passed over."""
    given = {(one.call_id, one.choice): one for one in some}
    there = set(connection.scalars(select(CallRow.call_id).where(CallRow.call_id.in_({key[0] for key in given}))))
    rows = [
        {"call_id": call_id, "choice": choice, "job_id": job_id, "logprobs": pack(one.logprobs_T)}
        for (call_id, choice), one in given.items()
        if call_id in there
    ]
    key = tuple_(TrainedTokensRow.call_id, TrainedTokensRow.choice)
    connection.execute(delete(TrainedTokensRow).where(key.in_(list(given))))
    if rows:
        connection.execute(insert(TrainedTokensRow), rows)


def of(connection: Connection, call_id: str, choice: int) -> LogprobArray | None:
    """What the newest job that trained a choice said; None when none has."""
    where = (TrainedTokensRow.call_id == call_id, TrainedTokensRow.choice == choice)
    found = connection.scalar(select(TrainedTokensRow.logprobs).where(*where))
    return None if found is None else unpack_logprobs(found)
