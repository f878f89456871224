import pytest

from app.errors import Conflict, NotFound
from app.store import jobs, revision, versions
from app.store.session import Database
from app.store.versions import Version


def add(database: Database, predictor: str, *, state: str = "candidate") -> Version:
    with database.begin() as connection:
        return versions.add(
            connection,
            predictor=predictor,
            gpu_id="*",
            artifact_sha256="a" * 64,
            training_set_sha256="b" * 64,
            card={"validation": []},
            state=state,
        )


def test_publishing_serves_a_version_and_rollback_the_one_before(database: Database) -> None:
    first, second, third = (add(database, "forest") for _ in range(3))
    kept = add(database, "forest", state="kept_back")
    assert [version.version for version in (first, second, third, kept)] == ["1", "2", "3", "4"]
    with database.begin() as connection:
        before = revision.current(connection)
        for version in (first, second, third):
            versions.serve(connection, version.id)
        assert revision.current(connection) == before + 3
        assert [v.version for v in versions.served(connection)] == ["3"]
        assert versions.rollback(connection, "forest", "*").version == "2"
        assert versions.rollback(connection, "forest", "*").version == "1"
        states = {v.version: v.state for v in versions.history(connection, "forest")}
        assert states == {"1": "served", "2": "retired", "3": "retired", "4": "kept_back"}
        with pytest.raises(Conflict, match="no version before"):
            versions.rollback(connection, "forest", "*")


def test_a_rollback_that_names_its_version_is_done_once(database: Database) -> None:
    for version in [add(database, "lasso") for _ in range(3)]:
        with database.begin() as connection:
            versions.serve(connection, version.id)
    with database.begin() as connection:
        assert versions.rollback(connection, "lasso", "*", leave="3").version == "2"
    with database.begin() as connection, pytest.raises(Conflict, match="serves version '2' for GPU '\\*', not '3'"):
        versions.rollback(connection, "lasso", "*", leave="3")


def test_rollback_without_a_version_is_a_conflict(database: Database) -> None:
    with database.begin() as connection, pytest.raises(Conflict, match="serves no trained version"):
        versions.rollback(connection, "knn", "*")
    with database.begin() as connection, pytest.raises(NotFound):
        versions.serve(connection, 10**9)


def test_a_burst_of_requests_is_one_waiting_job(database: Database) -> None:
    with database.begin() as connection:
        first, made = jobs.enqueue(connection, "ridge", "*")
        again, made_again = jobs.enqueue(connection, "ridge", "*")
        other, made_other = jobs.enqueue(connection, "ridge", "titan-v")
    assert (made, made_again, made_other) == (True, False, True)
    assert first.id == again.id != other.id


def test_a_job_is_ended_once_by_the_run_that_started_it_last(database: Database) -> None:
    with database.begin() as connection:
        job, _ = jobs.enqueue(connection, "lasso", "*")
        stale = jobs.start(connection, job.id)
        fresh = jobs.start(connection, job.id)
        assert not jobs.finish(connection, stale, version="1")
        assert jobs.finish(connection, fresh, version="2", result={"served": True})
        assert not jobs.fail(connection, job.id, "too late")
        ended = jobs.get(connection, job.id)
        assert (ended.state, ended.version, ended.result) == ("succeeded", "2", {"served": True})
        with pytest.raises(NotFound):
            jobs.start(connection, job.id)
        with pytest.raises(NotFound):
            jobs.get(connection, 10**9)
