#!/usr/bin/env bash
set -eu
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
echo "linting $* from $(basename "$here")"
