# One image for all processes of the Procfile; compose.yaml runs them with PostgreSQL and Valkey. It runs without
# privileges, on a read-only root: only var, /tmp and /dev/shm are written.

# Python and Debian, pinned; `docker buildx imagetools inspect python:3.13-slim-trixie` prints the newest digest, and
# `docker build --build-arg BASE=python:…@sha256:…` uses it.
ARG BASE=python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
FROM ${BASE}

# The browser is for the shopper only: without shopping, leave the line out and save 300 MB.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends chromium-headless-shell fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /srv/purser
COPY requirements.txt .
RUN pip install --no-cache-dir --require-hashes --requirement requirements.txt
COPY . .
# A number, so that a platform can see that it is not root.
RUN python -m compileall -q app migrations server shopper signer workers commands.py gunicorn.conf.py wsgi.py \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin purser \
    && install --directory --owner purser --mode 700 var \
    && useradd --uid 10002 --no-create-home --shell /usr/sbin/nologin purser-signer \
    && install --directory --owner purser-signer --mode 700 /var/lib/purser-signer
USER 10001

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME /srv/purser/var
EXPOSE 8000
# Of the web process: that it responds. compose.yaml has others, and for web that it can serve (/v1/health).
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ.get(\"PORT\") or 8000}/v1/health/live', timeout=5)"]
CMD ["gunicorn", "wsgi:app"]
