#!/usr/bin/env bash
# The same command on every node: start_multinode_platform.sh [options] [-- script arguments]
# Finds a Python environment, as configs/platform.env says, and hands over to platform_launch.
set -eo pipefail
fail() { printf 'error: %s\nhint:  %s\n' "$1" "$2" >&2 && exit 67; }
names() { for e in "$@"; do [[ ! -e $e ]] || { e=${e%/*} && printf '%s ' "${e##*/}"; }; done; } # folders of the files given
root=$(cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
settings=${PLATFORM_LAUNCH_ENV_FILE:-$root/configs/platform.env}
[[ -r $settings ]] || fail "$settings cannot be read" "restore it, or correct PLATFORM_LAUNCH_ENV_FILE"
while IFS= read -r line || [[ -n $line ]]; do # NAME=value, taken literally; what is set outside wins
  [[ $line =~ ^[[:space:]]*([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] || continue
  [[ -v ${BASH_REMATCH[1]} ]] || export "${BASH_REMATCH[1]}=${BASH_REMATCH[2]%$'\r'}"
done <"$settings"
package=$root/platform_launch && [[ -d $package ]] || package=${root%/*} # in a wheel this file lies inside it
name=$PLATFORM_LAUNCH_CONDA_ENV venv=$PLATFORM_LAUNCH_VENV prefix=
if [[ -n $VIRTUAL_ENV && -x $VIRTUAL_ENV/bin/python3 ]]; then
  prefix=$VIRTUAL_ENV # already active
elif [[ -n $CONDA_PREFIX && -x $CONDA_PREFIX/bin/python3 && (${CONDA_DEFAULT_ENV:-base} != base || -z $name$venv) ]]; then
  prefix=$CONDA_PREFIX # already active; conda's base gives way to an environment that is asked for
elif [[ -n $name ]]; then
  roots=("$PLATFORM_LAUNCH_CONDA_ROOT") # one that is given is the only one tried
  [[ -n ${roots[0]} ]] || roots=(${CONDA_EXE:+"${CONDA_EXE%/*/*}"} {"$HOME",/opt,/root}/{miniconda3,anaconda3,miniforge3,mambaforge} /opt/conda)
  for conda in "${roots[@]}"; do [[ ! -f $conda/etc/profile.d/conda.sh ]] || break; done
  [[ -f $conda/etc/profile.d/conda.sh ]] || fail "no conda for environment '$name': looked for etc/profile.d/conda.sh under ${roots[*]}" \
    "set PLATFORM_LAUNCH_CONDA_ROOT to the folder that holds it"
  # shellcheck disable=SC1091
  if ! { . "$conda/etc/profile.d/conda.sh" && conda activate "$name"; }; then
    fail "conda environment '$name' is not under $conda; found: $(names "$conda"/envs/*/conda-meta)" "set PLATFORM_LAUNCH_CONDA_ENV to one of them"
  fi
  prefix=$CONDA_PREFIX
elif [[ -n $venv ]]; then
  [[ -x $venv/bin/python3 ]] || fail "virtual environment '$venv' has no bin/python3; found beside it: $(names "${venv%/*}"/{,.}*/pyvenv.cfg)" \
    "set PLATFORM_LAUNCH_VENV to a folder made by python3 -m venv"
  prefix=$venv
elif [[ -x $root/.venv/bin/python3 ]]; then
  prefix=$root/.venv
fi
[[ -z $prefix ]] || export PATH="$prefix/bin:$PATH" # ninja and other tools of the environment
command -v python3 >/dev/null || fail "no python3 on PATH" "install Python 3.10 or newer"
exec "${prefix:+$prefix/bin/}python3" "$package/__main__.py" run "$@"
