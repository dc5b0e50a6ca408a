#!/bin/bash
# Measure a bare machine with one GPU in three calls of ten minutes, offline: is it right, how quick is it, what do others do
# there, and what would be quicker?
#
#     CALL=1 tools/gpu_day.sh FOLDER
#
# FOLDER gets summary.csv (a line "stage, exit code, seconds" for each stage) and gpu_day.tar.gz: the samples so far, packed after
# every stage, so that a machine that goes away leaves what it has measured. At home, `forktask report` draws them.
#
# Variables of the environment:
#   CALL    1: PyTorch, networks, limits, a profiler; 2: tests, before and after, both devices; 3: intervals, cores; default: 1
#   STAGES  numbers or names, such as "4 6" or "smoke gpu_batch"; default: all of the call
#   WHEELS  folder of wheels (tools/wheels.sh) that are installed first; default: forktask is installed
#   WHEELS_BEFORE  the same of another commit, with which call 2 compares; default: it does not
#   PYTHON  default: python3
#   WORK    folder for all that is written; default: a new one below /tmp
#   SCALE   times as long, on a slow machine; default: 1
#   RUN     what runs modules with the GPU; default: "$PYTHON -P -m"
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: tools/gpu_day.sh FOLDER}
export ROOT=${ROOT:-$(dirname "$here")} PYTHON=${PYTHON:-python3}
export WORK=${WORK:-$(mktemp -d)} WHEELS=${WHEELS:-} WHEELS_BEFORE=${WHEELS_BEFORE:-} FORMS=$here/gpu_day
export RUN=${RUN:-$PYTHON -P -m}
export PYTHONPATH=$WORK/site:$FORMS PYTHONDONTWRITEBYTECODE=1
SCALE=${SCALE:-1}
TOTAL=$((580 * SCALE)) # seconds, which the stages share
MOST_BYTES=$((16 << 20)) # of the archive
mkdir -p "$out" "$WORK/site" "$WORK/logs"
out=$(cd "$out" && pwd)

# --- the stages, in their order: name, cap in seconds

case ${CALL:=1} in
1) PLAN="install 20
hold 5
warm 40
smoke 20
torch 100
layers 40
gpu_networks 75
kernels 45
limits 70
persistent 15
pdl 50
profile rest" ;;
2) PLAN="install 20
hold 5
warm 40
tests 60
before_after 150
hetero 150
sanitizer rest" ;;
3) PLAN="install 20
hold 5
warm 40
gpu_networks 75
gpu_batch 75
transfers 40
scaling 60
granularity 60
metg 60
cpu_gpu_batch 30" ;;
*) echo "CALL must be 1, 2 or 3, got $CALL" >&2 && exit 2 ;;
esac

unpack() { $PYTHON -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$2" "$1"/*.whl; }

install() {
    test -z "$WHEELS" || unpack "$WHEELS" "$WORK/site" || return
    test -z "$WHEELS_BEFORE" || unpack "$WHEELS_BEFORE" "$WORK/before" || return
    nvidia-smi > "$WORK/nvidia-smi.txt" 2>&1
    $PYTHON -m pip list > "$WORK/packages.txt" 2>/dev/null
    $RUN forktask info --json > "$WORK/machine.json" # info.json is a survey's
}

# Goes on until this script ends.
hold() {
    setsid $RUN steps hold > "$WORK/logs/holder" 2>&1 &
    echo $! > "$WORK/held"
    if command -v nvidia-smi > /dev/null; then
        setsid nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu \
            --format=csv -lms 500 > "$WORK/clock.csv" 2>&1 &
        echo $! >> "$WORK/held"
    fi
}

warm() {
    $RUN steps files > "$WORK/files.txt" && xargs -P 12 -n 1 $RUN steps warm < "$WORK/files.txt"
}

smoke() {
    $RUN steps smoke ${SMOKE:-16 6}
}

tests() {
    cd "$ROOT" && $PYTHON -P -m pytest -q -n "${TEST_PROCESSES:-10}" -p no:cacheprovider -m gpu tests/gpu
}

sweep() { $RUN forktask run "$FORMS/$1.toml" --no-report --out "$WORK/$1"; }

gpu_batch() { sweep gpu_batch; }
gpu_networks() { sweep gpu_networks; }
pdl() { sweep pdl; }
transfers() { sweep transfers; }
hetero() { sweep hetero; }
cpu_gpu_batch() { sweep cpu_gpu_batch; }
scaling() { sweep scaling; }
granularity() { sweep granularity; }

# Batch, seconds of a turn, turns, models, networks.
turns() { $RUN steps networks ${TURNS:-$1} "$2" ${NETWORKS:-$3}; }

torch() {
    local model models=gpu_stream,gpu_taskgraph,gpu_stream:products=tf32,gpu_taskgraph:products=tf32
    for model in gpu_torch gpu_torch:mode={sdpa,graph} gpu_torch:mode={channels_last,sdpa,graph_channels_last,graph}:products=tf32; do
        models=$models,$model
    done
    turns "64 0.1 4" "$models" "resnet18 mobilenet_v2 gpt2_small cifar10_cnn" > "$WORK/torch.csv"
}

# PyTorch's convolutions and products, by layer and pass.
layers() {
    $PYTHON -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null ||
        { echo "skipped: there is no PyTorch that sees the GPU" && return; }
    $RUN layers 64 > "$WORK/layers.csv"
}

kernels() { # ours, by layer and pass
    local network products
    for products in cublas tf32; do
        for network in ${NETWORKS:-resnet18 mobilenet_v2 cifar10_cnn gpt2_small}; do
            $RUN forktask kernels --model "gpu_stream:products=$products" --network "$network" --batch 64 --seconds 0.3 \
                > "$WORK/kernels_${products}_$network.txt" || return
        done
    done
}

limits() { # a quarter and four times of each guess; what follows products, by cuBLASLt
    local value models=gpu_taskgraph,gpu_taskgraph:epilogues=cublaslt
    models=$models,gpu_taskgraph:products=tf32,gpu_taskgraph:epilogues=cublaslt:products=tf32
    for value in FILLING={268435456,4294967296} THREADS_WANTED={12500,200000} PART_TERMS={64,1024}; do
        models="$models,FORKTASK_GPU_$value gpu_taskgraph"
    done
    turns "64 0.1 4" "$models" "resnet18 gpt2_small" > "$WORK/limits.csv"
}

profile() { # one launch of each CUDA function and grid
    local ncu
    ncu=$(command -v ncu || command -v /usr/local/cuda/bin/ncu) || { echo "skipped: Nsight Compute (ncu) is not installed" && return; }
    "$ncu" --clock-control none --filter-mode per-launch-config --launch-count 1 --section Occupancy --section WarpStateStats \
        --section SpeedOfLight --metrics l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum --page raw --csv \
        --log-file "$WORK/ncu.csv" $RUN steps networks ${TURNS:-64 0.001 1} gpu_stream ${NETWORKS:-resnet18 mobilenet_v2}
}

persistent() { $RUN persistent 1000 > "$WORK/persistent.csv"; }

before_after() {
    test -n "$WHEELS_BEFORE" || { echo "skipped: WHEELS_BEFORE names no folder of wheels" && return; }
    local site
    PYTHONPATH=$WORK/before:$FORMS warm
    for site in before site before site before site; do
        PYTHONPATH=$WORK/$site:$FORMS turns "64 0.2 2" gpu_stream,gpu_taskgraph "resnet18 mobilenet_v2 gpt2_small cifar10_cnn" \
            > "$WORK/turn.csv" || return
        sed "s/^/$site,/" "$WORK/turn.csv" >> "$WORK/before_after.csv"
    done
}

metg() {
    $RUN forktask metg --threads "$(nproc)" --models forkjoin:region=persistent,taskiter --repeats 1 --out "$WORK/metg"
}

sanitizer() {
    cd "$ROOT" && $PYTHON -P -m pytest -q -p no:cacheprovider -m compute_sanitizer tests/gpu
}

# --- running them

# Samples, logs and what the machine is; no figures. Where they are too many, the largest files stay behind.
pack() {
    local limit=$((4 * MOST_BYTES))
    cp "$out/summary.csv" "$WORK/summary.csv"
    while :; do
        (cd "$WORK" && find . \( -path ./site -o -path ./before \) -prune -o -type f \
            \( -name '*.jsonl' -o -name '*.csv' -o -name '*.json' -o -name '*.toml' -o -name '*.txt' -o -path './logs/*' \) \
            -printf '%s %p\n' | sort -n | awk -v limit="$limit" '{sum += $1} sum <= limit {print $2}' |
            tar --create --gzip --file "$out/part.tar.gz" --files-from -)
        test "$(stat -c %s "$out/part.tar.gz")" -gt "$MOST_BYTES" || break
        limit=$((limit / 2))
    done
    mv "$out/part.tar.gz" "$out/gpu_day.tar.gz"
}

wanted() { # NUMBER NAME; without `install` and `hold` nothing else is as it is
    test -z "${STAGES:-}" -o "$1" -le 2 && return 0
    case " $STAGES " in *" $1 "* | *" $2 "*) return 0 ;; esac
    return 1
}

release() {
    test -f "$WORK/held" || return
    for process in $(cat "$WORK/held"); do kill -- "-$process" 2> /dev/null; done
    rm "$WORK/held"
}
trap release EXIT

export -f unpack install hold warm smoke tests sweep gpu_batch gpu_networks pdl transfers hetero cpu_gpu_batch scaling \
    granularity turns torch layers kernels limits profile persistent before_after metg sanitizer
begun=$SECONDS number=0 worst=0
echo "stage,exit_code,seconds" > "$out/summary.csv"
while read -r name cap; do
    number=$((number + 1))
    wanted "$number" "$name" || continue
    left=$((TOTAL - SECONDS + begun))
    test "$cap" = rest && cap=$TOTAL
    cap=$((cap * SCALE < left ? cap * SCALE : left))
    if test "$cap" -le 0; then
        echo "$name,,0" >> "$out/summary.csv"
        echo "$name: no time left"
        continue
    fi
    start=$EPOCHREALTIME
    { timeout --signal=INT --kill-after=5 "$cap" bash -c "$name" > "$WORK/logs/$name" 2>&1 < /dev/null; } 2> /dev/null
    code=$? # 124: the cap; 137: and SIGINT was not heard
    test "$code" -eq 0 || worst=1
    line="$name,$code,$(awk "BEGIN {printf \"%.1f\", $EPOCHREALTIME - $start}")"
    echo "$line" >> "$out/summary.csv"
    echo "$line"
    test "$code" -eq 0 || tail -n 3 "$WORK/logs/$name" | cut -c 1-300 | sed 's/^/    /'
    pack
    test "$name" != install -o "$code" -eq 0 || break
done <<< "$PLAN"
exit $worst
