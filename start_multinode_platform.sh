#!/usr/bin/env bash
# The same command on every node: start_multinode_platform.sh [options] [-- arguments, or a command]
# Finds a Python environment, as configs/platform.env says, and hands over to platform_launch. What `sh` starts goes on with bash.
[ -n "${BASH_VERSION-}" ] || { command -v bash >/dev/null || { printf 'error: %s needs bash, and there is none on PATH [refused-installation]\nhint:  install bash\n' "$0" >&2 && exit 67; } && exec bash "$0" "$@"; }
# The first process of a container loses signals it has no handler for: hold them back until the launcher has one.
[[ $$ != 1 || -n ${_signals_held-} ]] || ! env --block-signal=TERM true 2>/dev/null ||
  _signals_held=1 exec env --block-signal={TERM,INT,HUP,QUIT} "$BASH" "$0" "$@"
unset _signals_held && trap 'exit 143' TERM # the trap is for an env that is too old
set -eo pipefail +u && n=0 # BASH_ENV or SHELLOPTS may have set -u
fail() { printf 'error: %s [refused-installation]\nhint:  %s\n' "$1" "$2" >&2 && exit 67; }
names() { for e in "$@"; do [[ ! -e $e ]] || { e=${e%/*} && printf '%s ' "${e##*/}"; }; done; } # folders of the files given
root=$(cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
settings=${PLATFORM_LAUNCH_ENV_FILE:-$root/configs/platform.env}
[[ -r $settings ]] || fail "$settings cannot be read" "restore it, or correct PLATFORM_LAUNCH_ENV_FILE"
while IFS= read -r line || [[ -n $line ]]; do # [export] NAME=value, perhaps in quotes; what is set outside wins
  n=$((n + 1)) && [[ ${line%$'\r'} =~ ^[[:space:]]*([#\;].*)?$ ]] && continue
  [[ ${line%$'\r'} =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)[[:space:]]*=[[:space:]]*(\"([^\"]*)\"|\'([^\']*)\'|([^\"\'[:space:]].*[^[:space:]]|[^\"\'[:space:]])?)[[:space:]]*$ ]] ||
    fail "$settings, line $n is not a variable: ${line@Q}" 'expected NAME=value, NAME="value", NAME='"'value' or export NAME=value; a note starts with #"
  [[ -v ${BASH_REMATCH[2]} ]] || export "${BASH_REMATCH[2]}=${BASH_REMATCH[4]}${BASH_REMATCH[5]}${BASH_REMATCH[6]}" "PLATFORM_LAUNCH_FROM_FILE+= ${BASH_REMATCH[2]}"
done <"$settings"
package=$root/platform_launch && [[ -d $package ]] || package=${root%/*} # in a wheel this file lies inside it
name=$PLATFORM_LAUNCH_CONDA_ENV venv=$PLATFORM_LAUNCH_VENV prefix=
[[ $package == "$root"/* || -n $name$venv || ! -x ${package%/lib*}/bin/python3 ]] || venv=${package%/lib*} # where pip put it
if [[ -n $VIRTUAL_ENV && -x $VIRTUAL_ENV/bin/python3 ]]; then
  prefix=$VIRTUAL_ENV # already active
elif [[ -n $CONDA_PREFIX && -x $CONDA_PREFIX/bin/python3 && (${CONDA_DEFAULT_ENV:-base} != base || -z $name$venv) ]]; then
  prefix=$CONDA_PREFIX # already active; conda's base gives way to an environment that is asked for
elif [[ -n $name ]]; then
  roots=("$PLATFORM_LAUNCH_CONDA_ROOT") && [[ -n ${roots[0]} ]] || roots=(${CONDA_EXE:+"${CONDA_EXE%/*/*}"} {"$HOME",/opt,/root}/{miniconda3,anaconda3,miniforge3,mambaforge} /opt/conda)
  for conda in "${roots[@]}"; do [[ ! -f $conda/etc/profile.d/conda.sh ]] || break; done
  [[ -f $conda/etc/profile.d/conda.sh ]] || fail "no conda for environment '$name': looked for etc/profile.d/conda.sh under ${roots[*]}" \
    "set PLATFORM_LAUNCH_CONDA_ROOT to the folder that holds it"
  # shellcheck disable=SC1091
  { . "$conda/etc/profile.d/conda.sh" && conda activate "$name"; } ||
    fail "conda environment '$name' is not under $conda; found: $(names "$conda"/envs/*/conda-meta)" "set PLATFORM_LAUNCH_CONDA_ENV to one of them"
  prefix=$CONDA_PREFIX
elif [[ -n $venv ]]; then
  [[ -x $venv/bin/python3 ]] || fail "virtual environment '$venv' has no bin/python3; found beside it: $(names "${venv%/*}"/{,.}*/pyvenv.cfg)" \
    "set PLATFORM_LAUNCH_VENV to a folder made by python3 -m venv"
  prefix=$venv
elif [[ -x $root/.venv/bin/python3 ]]; then prefix=$root/.venv; fi
[[ -z $prefix ]] || export PATH="$prefix/bin:$PATH" # ninja and other tools of the environment
(($#)) || [[ -n ${platform_launch_command-} || -z ${PLATFORM_LAUNCH_EXAMPLE-} ]] || set -- --example "$PLATFORM_LAUNCH_EXAMPLE"
command -v python3 >/dev/null || fail "no python3 on PATH" "install Python 3.10 or newer"
exec "${prefix:+$prefix/bin/}python3" "$package/__main__.py" "${platform_launch_command:-run}" "$@"
