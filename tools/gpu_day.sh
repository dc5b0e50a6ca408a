#!/bin/bash
# Measure a bare machine with one GPU in nine minutes, offline: is it right, how quick is it, and what do others do there?
#
#     tools/gpu_day.sh FOLDER
#
# FOLDER gets summary.csv (a line "stage, exit code, seconds" for each stage) and gpu_day.tar.gz: the samples so far, packed after
# every stage, so that a machine that goes away leaves what it has measured. At home, `forktask report` draws them.
#
# Variables of the environment:
#   STAGES  numbers or names, such as "4 6" or "smoke gpu_batch"; default: all
#   WHEELS  folder of wheels (tools/wheels.sh) that are installed first; default: forktask is installed
#   PYTHON  default: python3
#   WORK    folder for all that is written; default: a new one below /tmp
#   SCALE   times as long, on a slow machine; default: 1
#   RUN     what runs modules with the GPU; default: "$PYTHON -P -m"
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: tools/gpu_day.sh FOLDER}
export ROOT=${ROOT:-$(dirname "$here")} PYTHON=${PYTHON:-python3}
export WORK=${WORK:-$(mktemp -d)} WHEELS=${WHEELS:-} FORMS=$here/gpu_day
export RUN=${RUN:-$PYTHON -P -m}
export PYTHONPATH=$WORK/site:$FORMS PYTHONDONTWRITEBYTECODE=1
SCALE=${SCALE:-1}
TOTAL=$((530 * SCALE)) # seconds, which the stages share
MOST_BYTES=$((16 << 20)) # of the archive
mkdir -p "$out" "$WORK/site" "$WORK/logs"
out=$(cd "$out" && pwd)

# --- the stages, in their order: name, cap in seconds

PLAN="install 20
hold 5
warm 30
smoke 25
tests 100
gpu_batch 75
gpu_networks 95
pdl 60
kernels 30
peers 75
scaling 60
transfers 40
hetero 40
cpu_gpu_batch 30
sanitizer rest"

install() {
    if test -n "$WHEELS"; then
        $PYTHON -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$WORK/site" "$WHEELS"/*.whl || return
    fi
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

sweep() {
    $RUN steps form "$FORMS/$1.toml" "$WORK/$1.toml" && $RUN forktask run "$WORK/$1.toml" --no-report --out "$WORK/$1"
}

gpu_batch() { sweep gpu_batch; }
gpu_networks() { sweep gpu_networks; }
pdl() { sweep pdl; }
transfers() { sweep transfers; }
hetero() { sweep hetero; }
cpu_gpu_batch() { sweep cpu_gpu_batch; }
peers() { sweep peers; }

kernels() {
    $RUN steps kernels ${KERNELS:-64 1 resnet18 mobilenet_v2 gpt2_small} > "$WORK/kernels.csv"
}

scaling() {
    sweep scaling || return
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
        (cd "$WORK" && find . -path ./site -prune -o -type f \
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

export -f install hold warm smoke tests sweep gpu_batch gpu_networks pdl kernels transfers hetero cpu_gpu_batch peers scaling sanitizer
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
