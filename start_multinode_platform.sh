#!/usr/bin/env bash
# Use the same command on every node: start_multinode_platform.sh [options] [-- arguments | command]
# Reads configs/platform.env, finds the Python environment, and hands over to platform_launch.

# 1. Continue with bash if another shell reads this.
if [ -z "${BASH_VERSION-}" ]; then
  command -v bash >/dev/null && exec bash "$0" "$@"
  printf 'error: %s needs bash, and there is none on PATH [refused-installation]\n' "$0" >&2
  printf 'hint:  install bash (请安装 bash)\n' >&2 && exit 67
fi
# 2. The kernel drops signals that the first process of a container has no handler for. Block them
#    until the launcher has one. The trap is for an `env` that is too old to block signals.
if [[ $$ == 1 && -z ${_signals_held-} ]] && env --block-signal=TERM true 2>/dev/null; then
  _signals_held=1 exec env --block-signal={TERM,INT,HUP,QUIT} "$BASH" "$0" "$@"
fi
unset _signals_held && trap 'exit 143' TERM
set -eo pipefail +u # BASH_ENV or SHELLOPTS may have set -u

# 3. Python prints errors, in the user's language. Without Python they are printed here, in English.
root=$(readlink -f -- "${BASH_SOURCE[0]}") && root=${root%/*}
package=$root/platform_launch && [[ -d $package ]] || package=${root%/*}
[[ " $* " != *" --lang"[=\ ]zh\ * ]] || lang_option=zh
fail() { # message, hint, values of the message's {fields} in order
  PLATFORM_LAUNCH_LANG=${lang_option:-$PLATFORM_LAUNCH_LANG} \
    python3 "$package/__main__.py" _refuse "$@" >&2 2>/dev/null && exit 67
  local text="error: $1"
  for value in "${@:3}"; do printf %s%s "${text%%\{*}" "$value" && text=${text#*\}}; done >&2
  printf '%s [refused-installation]\nhint:  %s\n' "$text" "$2" >&2 && exit 67
}
folders_of() { # prints the names of the folders that contain these files, if they exist
  for file in "$@"; do [[ ! -e $file ]] || { file=${file%/*} && printf '%s ' "${file##*/}"; }; done
}

# 4. Export the settings as they are written. A variable that is already set has priority.
file=${PLATFORM_LAUNCH_ENV_FILE:-$root/configs/platform.env} space='[[:space:]]*'
[[ -r $file ]] || fail "{file} cannot be read" "restore it, or set PLATFORM_LAUNCH_ENV_FILE" "$file"
value="\"([^\"]*)\"|'([^']*)'|([^\"'[:space:]].*[^[:space:]]|[^\"'[:space:]])?"
setting="^$space(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)$space=$space($value)$space\$"
mapfile -t -O 1 lines <"$file"
for n in "${!lines[@]}"; do
  [[ ! ${lines[n]} =~ ^$space([#\;].*)?$ ]] || continue
  [[ ${lines[n]} =~ $setting ]] || fail "{file}, line {number} does not set a variable: {line}" \
    "expected NAME=value or export NAME=value; the value may be quoted; a comment starts with #" \
    "$file" "$n" "${lines[n]@Q}"
  name=${BASH_REMATCH[2]} value=${BASH_REMATCH[4]}${BASH_REMATCH[5]}${BASH_REMATCH[6]}
  [[ -v $name ]] || export "$name=$value" "PLATFORM_LAUNCH_FROM_FILE+= $name"
done

# 5. Choose the environment: the active one, else the one that is named, else .venv next to this
#    file. If pip installed this file, the environment that it is in counts as named.
conda_env=$PLATFORM_LAUNCH_CONDA_ENV venv=$PLATFORM_LAUNCH_VENV own=${package%/lib*} prefix=
[[ $package == "$root"/* || -n $conda_env$venv || ! -x $own/bin/python3 ]] || venv=$own
if [[ -n $VIRTUAL_ENV && -x $VIRTUAL_ENV/bin/python3 ]]; then
  prefix=$VIRTUAL_ENV
elif [[ -n $CONDA_PREFIX && -x $CONDA_PREFIX/bin/python3 ]] &&
  [[ ${CONDA_DEFAULT_ENV:-base} != base || -z $conda_env$venv ]]; then
  prefix=$CONDA_PREFIX # a named environment has priority over conda's base
elif [[ -n $conda_env ]]; then
  roots=("${CONDA_EXE%/*/*}" {"$HOME",/opt,/root}/{conda,{mini,ana}conda3,miniforge3,mambaforge})
  [[ -z $PLATFORM_LAUNCH_CONDA_ROOT ]] || roots=("$PLATFORM_LAUNCH_CONDA_ROOT")
  for conda in "${roots[@]}"; do [[ ! -f $conda/etc/profile.d/conda.sh ]] || break; done
  [[ -f $conda/etc/profile.d/conda.sh ]] ||
    fail "no conda for environment '{name}': no etc/profile.d/conda.sh under {folders}" \
      "set PLATFORM_LAUNCH_CONDA_ROOT to the folder that holds it" "$conda_env" "${roots[*]}"
  # shellcheck disable=SC1091
  { . "$conda/etc/profile.d/conda.sh" && conda activate "$conda_env"; } ||
    fail "conda environment '{name}' is not under {folder}; found: {found}" \
      "set PLATFORM_LAUNCH_CONDA_ENV to one of them" \
      "$conda_env" "$conda" "$(folders_of "$conda"/envs/*/conda-meta)"
  prefix=$CONDA_PREFIX
elif [[ -n $venv ]]; then
  [[ -x $venv/bin/python3 ]] ||
    fail "virtual environment '{folder}' has no bin/python3; found beside it: {found}" \
      "set PLATFORM_LAUNCH_VENV to a folder made by python3 -m venv" \
      "$venv" "$(folders_of "${venv%/*}"/{,.}*/pyvenv.cfg)"
  prefix=$venv
elif [[ -x $root/.venv/bin/python3 ]]; then
  prefix=$root/.venv
fi

# 6. Become the launcher. The environment's tools, such as ninja, come first on PATH.
[[ -z $prefix ]] || export PATH="$prefix/bin:$PATH"
command -v python3 >/dev/null || fail "no python3 on PATH" "install Python 3.10 or newer"
exec "${prefix:+$prefix/bin/}python3" "$package/__main__.py" "${platform_launch_command:-run}" "$@"
