#!/bin/sh
# Installs a hash-locked requirements file (the argument) into .venv, by launcher/environment.py. If it is installed
# already, this takes a few milliseconds, because no Python is started.
set -eu
requirements=$1
cd -P "$(dirname "$0")/.."
. launcher/home.sh

# The stamp includes the folder: scripts in a .venv contain it, so a moved or copied one is recreated.
if [ -x .venv/bin/python ] && [ -r ".venv/installed-$requirements" ]; then
    { read -r installed; read -r folder; } <".venv/installed-$requirements" || :
    if [ "$folder" = "$PWD" ] && [ "$installed" = "$(cksum <"$requirements")" ] && [ ! -e .venv/unfinished ]; then
        exit 0
    fi
fi

# A name on PATH does not suffice: version managers install shims without a Python, and Debian's python3 lacks ensurepip.
# Of those that fit, the fastest is taken, by the time of a short loop: builds without optimizations take a seventh more.
trial='
import ensurepip, sys, time, venv
if not (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.implementation.name != "cpython":
    sys.exit(1)
def loop():
    start = time.process_time_ns()
    len({str(number): number * 2 for number in range(40_000)})
    return (time.process_time_ns() - start) // 1000
print(min(loop() for _ in range(9)), sys._base_executable)
'
fastest=$(
    set -f
    IFS=:
    for folder in $PATH; do
        for name in python3.13 python3.12 python3.11 python3 python; do
            if [ -x "$folder/$name" ]; then "$folder/$name" -c "$trial" </dev/null 2>/dev/null || :; fi
        done
    done | sort -n | while IFS=" " read -r _ path; do
        # Anything else that was printed names no program.
        if [ -x "$path" ]; then echo "$path" && break; fi
    done
)
if [ -n "$fastest" ]; then exec "$fastest" launcher/environment.py "$requirements"; fi

if command -v uv >/dev/null 2>&1; then
    echo "No Python 3.11-3.13 found: installing one with uv ..."
    if python=$(uv python find '>=3.11,<3.14' 2>/dev/null) || {
        uv python install 3.12 && python=$(uv python find 3.12)
    }; then
        exec "$python" launcher/environment.py "$requirements"
    fi
fi

cat >&2 <<'END'
Python 3.11, 3.12 or 3.13 with venv is required: "apt install python3 python3-venv" (Debian 12, Ubuntu 24.04), "brew install python@3.12" (macOS), or install uv (https://docs.astral.sh/uv/) and try again.
END
exit 1
