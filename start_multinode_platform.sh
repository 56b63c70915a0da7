#!/usr/bin/env bash
# Use the same command on every node: start_multinode_platform.sh [options] [-- arguments | command]
# Reads configs/platform.env, finds the Python environment, and hands over to platform_launch.

# 1. Go on with bash, whatever shell reads this.
if [ -z "${BASH_VERSION-}" ]; then
  command -v bash >/dev/null && exec bash "$0" "$@"
  printf 'error: %s needs bash, and there is none on PATH [refused-installation]\n' "$0" >&2
  printf 'hint:  install bash (请安装 bash)\n' >&2 && exit 67
fi

# 2. The first process of a container loses signals that it has no handler for: block them until the
#    launcher has one. The trap is for an `env` that is too old to block signals.
if [[ $$ == 1 && -z ${_signals_held-} ]] && env --block-signal=TERM true 2>/dev/null; then
  _signals_held=1 exec env --block-signal={TERM,INT,HUP,QUIT} "$BASH" "$0" "$@"
fi
unset _signals_held && trap 'exit 143' TERM
set -eo pipefail +u # BASH_ENV or SHELLOPTS may have set -u
folders_of() { # prints the names of the folders that hold these files, as far as they exist
  for file in "$@"; do [[ ! -e $file ]] || { file=${file%/*} && printf '%s ' "${file##*/}"; }; done
}

root=$(cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
package=$root/platform_launch && [[ -d $package ]] || package=${root%/*}

# 3. Messages are templates in English. The package's catalogue has them in Chinese.
[[ " $* " != *" --lang"[=\ ]zh\ * ]] || lang_option=zh
say() { # template, values of its {fields} in order
  local text=$1 entry po=$package/locale/zh_CN/LC_MESSAGES/platform_launch.po
  local language=${lang_option:-${PLATFORM_LAUNCH_LANG:-${LC_ALL:-${LC_MESSAGES:-$LANG}}}}
  if [[ ${language,,} == zh* ]] && entry=$(grep -sFx -A1 "msgid \"$text\"" "$po"); then
    text=${entry#*msgstr \"} && text=${text%\"}
  fi
  for field in "${@:2}"; do printf %s%s "${text%%\{*}" "$field" && text=${text#*\}}; done
  printf '%s\n' "$text"
}
fail() { # message, hint, values of the message's fields
  say "error: {message}" "$(say "$1" "${@:3}") [refused-installation]" >&2
  say "hint:  {hint}" "$(say "$2")" >&2 && exit 67
}

# 4. Export the settings, taken literally. A variable that is already set wins.
settings=${PLATFORM_LAUNCH_ENV_FILE:-$root/configs/platform.env} n=0 space='[[:space:]]*'
[[ -r $settings ]] ||
  fail "{file} cannot be read" "restore it, or correct PLATFORM_LAUNCH_ENV_FILE" "$settings"
value="\"([^\"]*)\"|'([^']*)'|([^\"'[:space:]].*[^[:space:]]|[^\"'[:space:]])?"
setting="^$space(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)$space=$space($value)$space\$"
mapfile -t lines <"$settings"
for line in "${lines[@]}"; do
  n=$((n + 1)) line=${line%$'\r'}
  [[ ! $line =~ ^[[:space:]]*([#\;].*)?$ ]] || continue
  [[ $line =~ $setting ]] || fail "{file}, line {number} does not set a variable: {line}" \
    "expected NAME=value or export NAME=value; the value may be quoted; a comment starts with #" \
    "$settings" "$n" "${line@Q}"
  name=${BASH_REMATCH[2]} value=${BASH_REMATCH[4]}${BASH_REMATCH[5]}${BASH_REMATCH[6]}
  [[ -v $name ]] || export "$name=$value" "PLATFORM_LAUNCH_FROM_FILE+= $name"
done

# 5. Find the environment: the active one, else the one that is named, else .venv beside this file.
#    If this file is part of an installed package, the environment of the package counts as named.
conda_env=$PLATFORM_LAUNCH_CONDA_ENV venv=$PLATFORM_LAUNCH_VENV own=${package%/lib*} prefix=
[[ $package == "$root"/* || -n $conda_env$venv || ! -x $own/bin/python3 ]] || venv=$own
if [[ -n $VIRTUAL_ENV && -x $VIRTUAL_ENV/bin/python3 ]]; then
  prefix=$VIRTUAL_ENV
elif [[ -n $CONDA_PREFIX && -x $CONDA_PREFIX/bin/python3 ]] &&
  [[ ${CONDA_DEFAULT_ENV:-base} != base || -z $conda_env$venv ]]; then
  prefix=$CONDA_PREFIX # conda's base gives way to an environment that is named
elif [[ -n $conda_env ]]; then
  roots=({"$HOME",/opt,/root}/{miniconda3,anaconda3,miniforge3,mambaforge} /opt/conda)
  [[ -z $CONDA_EXE ]] || roots=("${CONDA_EXE%/*/*}" "${roots[@]}")
  [[ -z $PLATFORM_LAUNCH_CONDA_ROOT ]] || roots=("$PLATFORM_LAUNCH_CONDA_ROOT")
  for conda in "${roots[@]}"; do [[ ! -f $conda/etc/profile.d/conda.sh ]] || break; done
  [[ -f $conda/etc/profile.d/conda.sh ]] ||
    fail "no conda for environment '{name}': no etc/profile.d/conda.sh under {folders}" \
      "set PLATFORM_LAUNCH_CONDA_ROOT to the folder that holds it" "$conda_env" "${roots[*]}"
  found=$(folders_of "$conda"/envs/*/conda-meta)
  # shellcheck disable=SC1091
  { . "$conda/etc/profile.d/conda.sh" && conda activate "$conda_env"; } ||
    fail "conda environment '{name}' is not under {folder}; found: {found}" \
      "set PLATFORM_LAUNCH_CONDA_ENV to one of them" "$conda_env" "$conda" "$found"
  prefix=$CONDA_PREFIX
elif [[ -n $venv ]]; then
  found=$(folders_of "${venv%/*}"/{,.}*/pyvenv.cfg)
  [[ -x $venv/bin/python3 ]] ||
    fail "virtual environment '{folder}' has no bin/python3; found beside it: {found}" \
      "set PLATFORM_LAUNCH_VENV to a folder made by python3 -m venv" "$venv" "$found"
  prefix=$venv
elif [[ -x $root/.venv/bin/python3 ]]; then
  prefix=$root/.venv
fi

# 6. Become the launcher. The environment's tools, such as ninja, come first on PATH.
[[ -z $prefix ]] || export PATH="$prefix/bin:$PATH"
command -v python3 >/dev/null || fail "no python3 on PATH" "install Python 3.10 or newer"
if (($# == 0)) && [[ -z ${platform_launch_command-} && -n ${PLATFORM_LAUNCH_EXAMPLE-} ]]; then
  set -- --example "$PLATFORM_LAUNCH_EXAMPLE"
fi
exec "${prefix:+$prefix/bin/}python3" "$package/__main__.py" "${platform_launch_command:-run}" "$@"
