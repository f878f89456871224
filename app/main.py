"""The application: settings in, ASGI out."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from multiprocessing import parent_process
from threading import Thread

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from app import __version__
from app.api import (
    decide,
    gpus,
    graphs,
    keys,
    llm_d,
    measurements,
    openapi,
    operations,
    predictions,
    predictors,
    problems,
)
from app.api.deps import check_parameters
from app.api.direct import DIRECT, Direct
from app.api.metrics import SharedCounts
from app.api.middleware import Service
from app.api.predict import PredictRoute
from app.api.work_queues import use_database
from app.bootstrap import runtime
from app.bootstrap.assemble import CorrectInProcess, assemble_to_serve
from app.bootstrap.runtime import Runtime, open_runtime
from app.bootstrap.warm import compile_apart, warm
from app.coefficients import Coefficients
from app.config import Settings
from app.dashboard import routes as pages
from app.dashboard.routes.shell import STATIC, assets
from app.engine import long_tail
from app.engine.snapshot_holder import SnapshotHolder
from app.engine.versions import Stores
from app.errors import Unavailable
from app.runtime import logs
from app.runtime.allocator_trim import share_arena
from app.runtime.apart import Apart
from app.services.graphs.graph_store import Graphs
from app.store.session import TimeLimits

# Allocations, and young collections, between two collections. Requests leave no cycles, so a look at old objects finds
# nothing, and one at all objects of a large request stops everyone for 0.3 s; at 50,000 young ones it does for 50 ms.
COLLECT_AFTER = (5_000, 1, 50_000)
# Of a start while the database is away.
AGAIN_S = Coefficients("service").number("start_again_s")
# Time after which a thread passes on Python's lock: the event loop waits for it several times per request.
SWITCH_S = 0.001

LOG = logging.getLogger(__name__)

# Probes and scrapers add parameters of their own, and pages are links that people edit: those are not looked at.
STRICT = (
    gpus.router,
    graphs.router,
    measurements.router,
    keys.router,
    decide.router,
    predictions.router,
    predictors.router,
    llm_d.router,
)
LENIENT = (operations.router, *pages.ROUTERS)
ROUTERS = (*STRICT, *LENIENT)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service; without settings, those of the environment. Nothing is opened before its lifespan starts."""
    settings = settings or Settings.from_env()
    share_arena()

    @asynccontextmanager
    async def lifespan(app: Service) -> AsyncIterator[dict[str, Direct]]:
        logs.configure(settings)
        with ExitStack() as held:
            app.state.runtime, app.state.holder = await run_in_threadpool(_opened, settings, held)
            app.state.counts = SharedCounts(settings, app.metrics.counts)
            app.state.counts.start()
            held.callback(app.state.counts.stop)
            if app.rate is not None:
                app.rate.start(app.state.runtime.database)
                held.callback(app.rate.stop)
            app.state.apart = Apart()
            held.callback(app.state.apart.stop)
            app.state.graphs = Graphs(app.state.runtime.database, use_database)
            gc.set_threshold(*COLLECT_AFTER)
            sys.setswitchinterval(SWITCH_S)
            gc.freeze()  # what a start leaves behind stays: no collection looks through it between requests
            Thread(target=partial(_prepare, app), daemon=True).start()  # for which first requests would stop others
            yield {} if settings.traces is not None else {DIRECT: Direct(app, predict)}

    predict = PredictRoute()
    app = Service(
        settings,
        hot={predict.path: predict},
        title="gpucast",
        version=__version__,
        description="How long GPU work takes on any GPU, without running it there.",
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # openapi.install adds it
    )
    routes = [Route(predict.path, predict, methods=["POST"], include_in_schema=False)]
    app.router.routes.extend(routes)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(check_parameters)] if router in STRICT else [])
    problems.install(app, [*routes, *(route for router in ROUTERS for route in router.routes)], pages.missing)
    app.mount(STATIC, assets())
    openapi.install(app)
    return app


def _prepare(app: FastAPI) -> None:
    """Work out the routes of each router, which FastAPI does when it first looks for one, and read the long tail."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "", "headers": []})
    long_tail.warm()


def _opened(settings: Settings, held: ExitStack) -> tuple[Runtime, SnapshotHolder]:
    """Open the installation and load what it serves, which `held` closes.

    Of several processes under a supervisor, one that starts again while the database is away tries until it is back:
    the others answer meanwhile, and a supervisor stops them all when one fails to start.
    """
    limits = TimeLimits.of_requests(settings.database_timeout_s, settings.database_long_timeout_s)
    while True:
        with ExitStack() as opened:
            try:
                installation = opened.enter_context(open_runtime(settings, limits))
                if settings.needs_keys:
                    runtime.announce_first_key(installation.database)
                holder = _holder(installation)
                opened.callback(holder.stop)
                held.push(opened.pop_all())
                return installation, holder
            except Unavailable as error:
                if parent_process() is None:
                    raise
                LOG.warning("starts again in %g s: %s", AGAIN_S, error.detail)
        time.sleep(AGAIN_S)


def _holder(runtime: Runtime) -> SnapshotHolder:
    """A snapshot of the catalogue and the served predictors, kept current by its thread."""
    compile_apart()
    holder = SnapshotHolder(
        runtime.database,
        partial(assemble_to_serve, Stores.of(runtime.settings), runtime.database),
        CorrectInProcess(runtime.database),
        warm,
        poll_s=runtime.settings.revision_poll_s,
        ensure_database=runtime.ensure_database,
    )
    holder.start()
    return holder
