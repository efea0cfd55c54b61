#!/bin/sh
# Prepares a bare Debian or Ubuntu machine, one thing at a time, and says one clear line when it cannot.
#
#   scripts/setup.sh venv    a virtual environment in .venv with exactly what requirements/dev.txt locks
#   scripts/setup.sh java    a Java 17 runtime for Spark: JAVA_HOME, the path, /usr/lib/jvm, else Debian's package
#   scripts/setup.sh s3      the Ceph packages from which the tests start a real S3 server
#   scripts/setup.sh etcd    etcd's server, of which the tests start clusters on this machine
#   scripts/setup.sh browser Debian's Chromium, which the tests of the console drive
#   scripts/setup.sh azure   Azurite in .venv/azurite, the emulator of Azure Blob Storage (make prove needs it)
#
# Safe to run again: what is there is kept. System packages are installed only as root or where sudo asks no password.
set -eu
AZURITE_VERSION=3.35.0
cd "$(dirname "$0")/.."

say() { printf '%s\n' "setup: $*" >&2; }

# Runs a command as root, or fails quietly when that would need a password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

# Installs Debian packages. The index is refreshed only when the packages are not known yet.
apt_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    as_root true || return 1
    say "installing $* (apt)"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    as_root timeout 300 apt-get update -q >/dev/null 2>&1 || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

find_python() {
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        [ -n "$candidate" ] || continue
        command -v "$candidate" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# `python3 -m venv` needs ensurepip, which Debian keeps in a package of its own. Without it and without root, an
# installed virtualenv or pip can still make the environment.
make_environment() {
    python=$1
    rm -rf .venv
    if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv .venv 2>/dev/null; then return 0; fi
    rm -rf .venv
    if apt_install python3-venv && "$python" -m venv .venv 2>/dev/null; then return 0; fi
    rm -rf .venv
    if "$python" -m virtualenv -q .venv 2>/dev/null; then return 0; fi
    bootstrap=$(mktemp -d)
    if "$python" -m pip install -q --target "$bootstrap" virtualenv 2>/dev/null &&
        PYTHONPATH="$bootstrap" "$python" -m virtualenv -q .venv 2>/dev/null; then
        rm -rf "$bootstrap"
        return 0
    fi
    rm -rf "$bootstrap" .venv
    return 1
}

setup_venv() {
    if ! python=$(find_python); then
        say "Python 3.11, 3.12 or 3.13 is needed: apt install python3 python3-venv (or set PYTHON=/path/to/python)"
        exit 1
    fi
    # An environment that somebody made without an installer is of no use, and is made again.
    if ! .venv/bin/python -m uv --version >/dev/null 2>&1 && ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        make_environment "$python" || { say "no virtual environment could be made: apt install python3-venv"; exit 1; }
    fi
    if ! .venv/bin/python -m uv --version >/dev/null 2>&1; then
        say "installing uv into .venv"
        .venv/bin/python -m pip install -q --disable-pip-version-check "uv>=0.8" ||
            { say "uv could not be installed into .venv: is a package index reachable?"; exit 1; }
    fi
    say "installing the locked packages into .venv"
    .venv/bin/python -m uv pip sync -q --compile-bytecode --python .venv/bin/python requirements/dev.txt
    # The package itself, from this tree. What builds it is among the locked packages, so nothing else is fetched.
    .venv/bin/python -m uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation --editable .
}

# Prints the home of a Java that Spark can use, 17 or 21.
find_java() {
    on_path=$(command -v java 2>/dev/null || true)
    [ -z "$on_path" ] || on_path=$(dirname "$(dirname "$(readlink -f "$on_path")")")
    for home in "${JAVA_HOME:-}" "$on_path" /usr/lib/jvm/java-17-* /usr/lib/jvm/*-17-* /usr/lib/jvm/java-21-*; do
        [ -n "$home" ] && [ -x "$home/bin/java" ] || continue
        major=$("$home/bin/java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p;q')
        case $major in 17 | 21) printf '%s\n' "$home"; return 0 ;; esac
    done
    return 1
}

setup_java() {
    find_java && return 0
    if apt_install openjdk-17-jre-headless && find_java; then return 0; fi
    say "Spark needs Java 17: apt install openjdk-17-jre-headless, or set JAVA_HOME to a Java 17"
    exit 1
}

setup_s3() {
    missing=
    for tool in radosgw ceph-mon ceph-osd ceph; do
        command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
    done
    [ -n "$missing" ] || return 0
    if apt_install radosgw ceph-mon ceph-osd ceph-common; then return 0; fi
    say "the S3 lane cannot run, not installed:$missing (apt install radosgw ceph-mon ceph-osd ceph-common)"
    [ "${CI:-}" != true ] || { say "CI=true: a lane that cannot run is a failure"; exit 1; }
}

# Debian 12 and Ubuntu call the package etcd-server; in older releases etcd has the server, too. A service that the
# package would start is not wanted: the tests start members of their own.
setup_etcd() {
    command -v etcd >/dev/null 2>&1 && return 0
    if apt_install etcd-server || apt_install etcd; then
        as_root systemctl disable --now etcd >/dev/null 2>&1 || true
        command -v etcd >/dev/null 2>&1 && return 0
    fi
    say "the store on etcd cannot be tested, etcd is not installed (apt install etcd-server)"
    [ "${CI:-}" != true ] || { say "CI=true: a lane that cannot run is a failure"; exit 1; }
}

setup_browser() {
    command -v chromium >/dev/null 2>&1 && return 0
    if apt_install chromium fonts-dejavu-core; then return 0; fi
    say "the console's pages cannot be tested, chromium is not installed (apt install chromium)"
    [ "${CI:-}" != true ] || { say "CI=true: a lane that cannot run is a failure"; exit 1; }
}

# Azurite, Microsoft's emulator of Azure Blob Storage, from the npm registry. Its data is in memory.
setup_azure() {
    [ -x .venv/azurite/node_modules/.bin/azurite-blob ] && command -v node >/dev/null 2>&1 && return 0
    if { command -v npm >/dev/null 2>&1 || apt_install nodejs npm; } &&
        npm install --silent --no-audit --no-fund --prefix .venv/azurite "azurite@$AZURITE_VERSION" >/dev/null 2>&1; then
        return 0
    fi
    say "the Azure lane cannot run: Azurite could not be installed (npm install --prefix .venv/azurite azurite)"
    [ "${CI:-}" != true ] || { say "CI=true: a lane that cannot run is a failure"; exit 1; }
}

case "${1:-}" in
    venv) setup_venv ;;
    java) setup_java ;;
    s3) setup_s3 ;;
    etcd) setup_etcd ;;
    browser) setup_browser ;;
    azure) setup_azure ;;
    *) say "usage: scripts/setup.sh venv|java|s3|etcd|browser|azure"; exit 2 ;;
esac
