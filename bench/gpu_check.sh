#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds mcr_dl, checks it on a GPU and measures it, in less than 9 minutes (docs/gpu-check.md).
#
#   bench/gpu_check.sh FOLDER              on a machine with a GPU: torch with CUDA, cmake, ninja, a C++20 compiler
#   bench/gpu_check.sh --rehearse FOLDER   on any machine after `make build`, on CPU tensors: no result, it says so
#   --only "STAGE STAGE"                   only these stages, after the build
#   --quick                                a few seconds for each stage whose number of cases or rounds depends on time
#   --built                                with the build of an earlier run in build/gpu/install
#
# Results and logs go to FOLDER, a table is printed last. The exit status is not 0 if a stage has failed. It needs no
# network. PYTHON names another python3, MCR_DL_NCCL_LIB another libnccl.
set -euo pipefail
cd "$(dirname "$0")/.."

rehearse='' only='' quick='' built=''
while [[ ${1:-} == --* ]]; do
  case $1 in
    --rehearse) rehearse=yes ;;
    --quick) quick=yes ;;
    --built) built=yes ;;
    --only)
      only=" ${2:-} "
      shift
      ;;
    *) break ;;
  esac
  shift
done
if [ $# -ne 1 ] || [[ $1 == --* ]]; then
  echo "usage: bench/gpu_check.sh [--rehearse] [--only \"STAGE STAGE\"] [--quick] [--built] FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
# Only what an earlier run has left: the folder may have other files.
rm -f "$folder"/{versions,share,staging,sanitizer,bench,tune,gpu_check}.json "$folder"/{share,staging}.[0-9]*.json \
  "$folder"/{suite-nccl,suite-gloo,streams,listing4,overhead,overlap,training,survive}-[0-9]*.json "$folder/stages.tsv"

budget=510 # seconds for all stages; ending the last one and the table take some more
root=$PWD
if [ -n "$rehearse" ]; then
  python=${PYTHON:-$root/.venv/bin/python}
  device=cpu
  export MCR_DL_NCCL_LIB=${MCR_DL_NCCL_LIB:-$root/build/standin/libnccl.so}
  export PYTHONPATH=$root/bench${PYTHONPATH:+:$PYTHONPATH}
else
  python=${PYTHON:-python3}
  device=cuda
  export PYTHONPATH=$root/build/gpu/install:$root/bench${PYTHONPATH:+:$PYTHONPATH}
fi
# All ranks are on this host. The build tools may lie in this Python's folder.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
PATH=$PATH:$(dirname "$(command -v "$python")")
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MCR_DL_TUNING_TABLE=none

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

# note NAME CODE SECONDS WORDS
note() { printf '%s\t%s\t%s\t%s\n' "$@" >>"$folder/stages.tsv"; }

# stage NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, and no longer than there is time in all. Its output goes
# to a log; the end of it is shown if it fails.
stage() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  if [ -n "$only" ] && [[ $only != *" $name "* ]] && [[ " build versions share " != *" $name "* ]]; then
    note "$name" - 0 "not in --only"
    return
  fi
  if [ -n "${unbuilt:-}" ]; then
    note "$name" - 0 "the build has failed"
    last_code=0
    return
  fi
  local left=$((budget - SECONDS))
  if [ "$left" -lt 20 ]; then
    note "$name" - 0 "no time was left"
    last_code=0
    return
  fi
  [ "$limit" -le "$left" ] || limit=$left
  export STAGE_BEGIN=$EPOCHREALTIME # inner limits count from here
  say "$name ..."
  timeout -k 5 "$limit" "$@" >"$folder/$name.log" 2>&1 || code=$?
  local words=
  [ -e "$folder/$name.json" ] || words=$(tail -n 1 "$folder/$name.log" | tr '\t' ' ' | cut -c 1-200)
  words=${words//"$folder/"/}
  note "$name" "$code" $((SECONDS - begin)) "$words"
  last_code=$code
  if [ "$code" -eq 77 ]; then
    say "$name: not run: $(tail -n 1 "$folder/$name.log" | cut -c 1-200)"
  elif [ "$code" -eq 0 ]; then
    say "$name: $(tail -n 1 "$folder/$name.log" | cut -c 1-200)"
  else
    say "$name: exit status $code; the end of $folder/$name.log:"
    tail -n 25 "$folder/$name.log" | cut -c 1-300
  fi
}

# left_out NAME WORDS
left_out() { note "$1" - 0 "$2"; }

build() {
  if [ -z "$built" ]; then
    cmake -S . -B build/gpu/cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")"
    cmake --build build/gpu/cmake --parallel
    rm -rf build/gpu/install
    cmake --install build/gpu/cmake --prefix "$PWD/build/gpu/install"
  fi
  cp -R mcr/mcr_dl mcr/mcr_dl_autoload mcr/mcr_dl_commands build/gpu/install/
  cd "$folder"
  "$python" -c 'import mcr_dl; print("built", mcr_dl.__version__)'
}
export -f build
export python folder built

sanitize() {
  local tool=$1 status=0 exclude=()
  printf '{"line": "memcheck: not at its end", "problem": "", "slow": true}\n' >"$folder/sanitizer.json"
  # NCCL's own kernels are not ours to check, and with them it takes very long.
  if [[ $("$tool" --help 2>&1) == *--kernel-name-exclude* ]]; then
    exclude=(--kernel-name-exclude kernel_substring=ncclDevKernel)
  fi
  # Errors of the driver's interface are not counted: NCCL and torch ask for what may not be there.
  "$tool" --tool memcheck "${exclude[@]}" --report-api-errors no --error-exitcode 9 "$python" -m gpu.sanitized >"$folder/memcheck.txt" 2>&1 || status=$?
  local line
  line=$(grep -h "ERROR SUMMARY" "$folder/memcheck.txt" | tail -n 1 | sed 's/^=* *//' || true)
  tail -n 60 "$folder/memcheck.txt"
  printf '{"line": "memcheck: %s, %s", "problem": ""}\n' "${line:-no summary}" \
    "$(grep -h "cases run" "$folder/memcheck.txt" || echo "not at its end")" >"$folder/sanitizer.json"
  [ "$status" -eq 0 ] && [ -n "$line" ]
}
export -f sanitize

command_line() { # command_line MODULE ARGUMENTS...: 77 where it lacks a package that only commands need
  local output code=0
  output=$("$python" -m "$@" 2>&1) || code=$?
  printf '%s\n' "$output"
  if [ "$code" -eq 2 ] && [[ $output == *"error: needs "* ]]; then
    echo "needs ${output##*error: needs }"
    code=77
  fi
  return "$code"
}
export -f command_line

run() { # run NAME LIMIT MODULE ARGUMENTS...: a stage in Python; its ranks end some seconds before it does
  local name=$1 limit=$2 module=$3
  shift 3
  local inner=$((limit - 8)) left=$((budget - SECONDS - 8))
  [ "$inner" -le "$left" ] || inner=$left
  stage "$name" "$limit" "$python" -m "gpu.$module" --device "$device" --limit "$inner" "$@" "$folder"
}

bench_1() {
  stage bench-1 50 bash -euo pipefail -c 'command_line "$@"' - mcr_dl.bench -n 1 --device "$device" \
    --ops all_reduce,all_gather --max 16M --factor 64 --budget 0.2 --json "$folder/bench.json"
}

tune_2() {
  stage tune-2 60 bash -euo pipefail -c 'command_line "$@"' - mcr_dl.tuning -n 2 --device "$device" --quick \
    --ops all_gather --max 64K --budget 0.2 --limit 15 --output "$folder/tune.json"
}

sanitizer() {
  if [ -n "$rehearse" ]; then
    left_out sanitizer "needs a GPU"
    return
  fi
  local tool
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1 || true)
  if [ -n "$tool" ]; then
    stage sanitizer 60 bash -euo pipefail -c "sanitize '$tool'"
  else
    left_out sanitizer "no compute-sanitizer here"
  fi
}

if [ -n "$rehearse" ]; then
  left_out build "the rehearsal takes what make build has made"
  stage versions 60 "$python" -m gpu.versions "$folder" gloo
else
  stage build 240 bash -euo pipefail -c build
  [ "$(cut -f 2 "$folder/stages.tsv")" = 0 ] || unbuilt=yes
  stage versions 60 "$python" -m gpu.versions "$folder" nccl
fi

if [ -n "$rehearse" ] && [ ! -e "$MCR_DL_NCCL_LIB" ]; then
  unset MCR_DL_NCCL_LIB
  # Without the stand-in the same scripts run on gloo: every line but those of NCCL's own loop.
  run suite-gloo-1 40 suite --backend gloo --ranks 1 --seconds 5
  run suite-gloo-2 40 suite --backend gloo --ranks 2 --seconds 8
  run streams-1 60 streams --backend gloo --ranks 1
  run streams-2 60 streams --backend gloo --ranks 2
  run listing4-1 40 listing4 --backend gloo --ranks 1
  run listing4-2 40 listing4 --backend gloo --ranks 2
  run overhead-1 60 overhead --backend gloo --no-raw --ranks 1 --seconds 8
  run share 40 share
  run overlap-2 60 overlap --backend gloo --ranks 2
  run training-1 60 training --ranks 1
  run training-2 60 training --ranks 2
  run staging 50 overlap --staging --staging-bytes 1048576
  bench_1
  tune_2
  left_out suite-nccl "the stand-in is not built"
  left_out sanitizer "needs a GPU"
else
  seconds=16 device_seconds=18 few=
  [ -z "$rehearse$quick" ] || seconds=6 device_seconds=8
  [ -z "$rehearse" ] || few="--staging-bytes 1048576"
  run suite-nccl-1 45 suite --backend nccl --ranks 1 --seconds "$seconds"
  run streams-1 60 streams --backend nccl --with gloo,mpi --ranks 1
  run listing4-1 40 listing4 --backend nccl --ranks 1
  run overhead-1 60 overhead --backend nccl --ranks 1 --seconds "$device_seconds"
  run overlap-1 40 overlap --backend nccl --ranks 1
  run training-1 50 training --ranks 1
  bench_1
  run suite-gloo-2 50 suite --backend gloo --ranks 2 --seconds "$((seconds * 3 / 5))"
  run staging 50 overlap --staging $few
  sanitizer
  # With NCCL on one GPU: what torch.distributed cannot do there either is no finding about mcr_dl.
  run share 40 share
  shared=(suite-nccl-2 streams-2 listing4-2 overhead-2 overlap-2 training-2 survive-3 suite-nccl-4 tune-2)
  if [ "${last_code:-0}" -ne 0 ]; then
    for name in "${shared[@]}"; do
      left_out "$name" "torch.distributed cannot share the GPU either ($(tail -n 1 "$folder/share.log" | tr '\t' ' ' | cut -c 1-200))"
    done
  else
    run suite-nccl-2 50 suite --backend nccl --ranks 2 --seconds "$seconds"
    run streams-2 60 streams --backend nccl --with gloo,mpi --ranks 2
    run listing4-2 40 listing4 --backend nccl --ranks 2
    run overhead-2 60 overhead --backend nccl --ranks 2 --seconds "$device_seconds"
    run overlap-2 50 overlap --backend nccl --ranks 2
    run training-2 70 training --ranks 2
    run survive-3 60 survive --backend nccl --ranks 3
    run suite-nccl-4 60 suite --backend nccl --ranks 4 --seconds "$seconds"
    tune_2
  fi
fi

say "done"
timeout 15 "$python" -m gpu.table "$folder" ${rehearse:+--rehearsal}
