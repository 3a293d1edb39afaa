#!/bin/sh
# Makes .venv with the locked dependencies. Needs nothing but a Python of at least 3.11 that has venv and pip.
set -eu
cd "$(dirname "$0")/.."

UV_VERSION=0.13.7
uv=.tools/uv/bin/uv

find_python() {
    for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3 python; do
        # The real path: a pyenv shim may answer to a name and then not run. The last lines say what else is needed.
        if [ -n "$name" ] && found=$("$name" -c '
import sys, venv, ensurepip
assert sys.version_info >= (3, 11)
print(getattr(sys, "_base_executable", sys.executable))' 2>/dev/null); then
            echo "$found"
            return
        fi
    done
    echo "make install: no Python of at least 3.11 with venv and pip was found" >&2
    echo "hint: on Debian \`apt-get install python3 python3-venv\`, or name one: \`make install PYTHON=/path/to/python3.11\`" >&2
    exit 1
}

python=$(find_python)

# A project-local uv: the lock file is read by the version that is known to read it, and nothing outside is touched.
if [ "$("$uv" --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    rm -rf .tools/uv
    "$python" -m venv .tools/uv
    .tools/uv/bin/python -m pip install -qq --disable-pip-version-check "uv==$UV_VERSION"
fi

# Another Python than the one .venv was made with would leave a mixture behind.
wanted=$("$python" -c 'import sys; print(sys.version_info[:2])')
if [ "$(.venv/bin/python -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)" != "$wanted" ]; then
    rm -rf .venv
fi

unset VIRTUAL_ENV
UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never \
    "$uv" sync --quiet --frozen --all-extras --all-groups --compile-bytecode --python "$python"
