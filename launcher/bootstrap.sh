#!/bin/sh
# Makes .venv hold a hash-locked requirements file (the argument). When it already does, this costs a few milliseconds:
# no Python is started. Everything else is done by launcher/environment.py, under any Python that it can run on.
set -eu
requirements=$1
cd -P "$(dirname "$0")/.."

# The folder belongs to the stamp: scripts in a .venv name it, so a moved or copied one is made anew.
if [ -x .venv/bin/python ] && [ -r ".venv/installed-$requirements" ]; then
    { read -r installed; read -r folder; } <".venv/installed-$requirements" || :
    if [ "$folder" = "$PWD" ] && [ "$installed" = "$(cksum <"$requirements")" ] && [ ! -e .venv/unfinished ]; then
        exit 0
    fi
fi

# Shims of version managers exist without a Python behind them, and Debian's python3 comes without ensurepip:
# only trying tells.
fits='import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
for name in python3.13 python3.12 python3.11 python3 python; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -c "$fits" >/dev/null 2>&1; then
        exec "$name" launcher/environment.py "$requirements"
    fi
done

if command -v uv >/dev/null 2>&1; then
    echo "No Python 3.11-3.13 found: asking uv for one ..."
    if python=$(uv python find '>=3.11,<3.14' 2>/dev/null) || {
        uv python install 3.12 && python=$(uv python find 3.12)
    }; then
        exec "$python" launcher/environment.py "$requirements"
    fi
fi

cat >&2 <<'MEND'
Python 3.11, 3.12 or 3.13 with venv is needed: "apt install python3 python3-venv" (Debian 12, Ubuntu 24.04), "brew install python@3.12" (macOS), or install uv (https://docs.astral.sh/uv/) and try again.
MEND
exit 1
