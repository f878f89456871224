"""Save answers whose requests ask for it."""

from __future__ import annotations

from app.api.work_queues import use_database
from app.engine.gpu_rows import Snapshot
from app.services.quotes.save import Answer, SavableRequest, save_answer
from app.store.session import Database


def saved_on_request(
    database: Database, snapshot: Snapshot, kind: str, request: SavableRequest, answer: Answer
) -> Answer:
    """Return the answer, saved and with its id if the request says so. Raises Unavailable if too many wait for that."""
    if not request.save:
        return answer
    use_database()
    return save_answer(database, snapshot, kind, request, answer)
