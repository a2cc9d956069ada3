#!/bin/sh
# Patroni calls this once, on the first leader, with the address of the new server.
# Limits are set on the role because PgBouncer does not pass on those that the service sends when it connects.
# statement_timeout must be longer than the leader's lease: a COMMIT that it cancels while no replica confirms is
# acknowledged all the same, and a leader that was cut off would lose it.
set -eu
: "${DATABASE_PASSWORD:?}"
exec psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set password="$DATABASE_PASSWORD" "$1" <<'SQL'
CREATE ROLE purser LOGIN PASSWORD :'password';
ALTER ROLE purser SET lock_timeout = '10s';
ALTER ROLE purser SET idle_in_transaction_session_timeout = '30s';
ALTER ROLE purser SET statement_timeout = '60s';
CREATE DATABASE purser OWNER purser;
SQL
