# One image for all processes of the Procfile; compose.yaml runs them with PostgreSQL and Valkey.
FROM python:3.13-slim-trixie

# The browser is for the shopper only: without shopping, leave the line out and save 300 MB.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends chromium-headless-shell fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /srv/purser
COPY requirements.txt .
RUN pip install --no-cache-dir --require-hashes --requirement requirements.txt
COPY . .
RUN python -m compileall -q app launcher migrations server shopper workers wsgi.py \
    && useradd --system --no-create-home purser \
    && install --directory --owner purser --mode 700 var
USER purser

ENV PYTHONUNBUFFERED=1
EXPOSE 8000
CMD ["gunicorn", "wsgi:app"]
