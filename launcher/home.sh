# Sourced in the project's folder. Programs keep downloads in the home folder; a user without one that can be written
# to gets one in var/.
if [ ! -d "${HOME:-}" ] || [ ! -w "${HOME:-}" ]; then
    export HOME="$PWD/var/home"
    (umask 077 && mkdir -p "$HOME") 2>/dev/null || :
fi
