#!/usr/bin/env bash
# Checks libvgpu on a real card, in less than eight minutes and without a network. `tests/gpu/run.sh --help`.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

usage() {
    cat <<'TEXT'
usage: tests/gpu/run.sh [--simulated] [--quick]

Builds libvgpu and checks on this machine's first card that a slice holds: memory to the byte, through the driver and the
CUDA runtime; two processes of one slice; what NVML and nvidia-smi show; PyTorch; the core limit within five points of
what was asked for; and what a launch, an allocation and cuInit cost more. One JSON object a line on stdout: the checks
(PASS, FAIL or SKIPPED with the reason; MISS for a cost above its budget), at last a summary.

  --simulated   on the simulated driver, which needs no card: what only a real one has is skipped
  --quick       shorter measurements

It needs cmake and a C compiler; the CUDA runtime is looked for in $CUDART (a path), in Python's site-packages
(nvidia-cuda-runtime), in /usr/local/cuda and where the loader looks.

exit status: 0 all well, 1 a check failed, 77 skipped since there is no card, 2 wrong use
TEXT
}

simulated=0
quick=0
for word in "$@"; do
    case $word in
    --simulated) simulated=1 ;;
    --quick) quick=1 ;;
    --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
done

say() { echo "gpu: $*" >&2; }

# ---- results ----

passed=0 failed=0 skipped=0 missed=0

# In a JSON string.
quoted() { printf '%s' "$1" | tr '\n\t' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g'; }

result() { # CHECK RESULT REASON [KEY VALUE]...
    local line
    case $2 in PASS) ((passed++)) ;; FAIL) ((failed++)) ;; SKIPPED) ((skipped++)) ;; MISS) ((missed++)) ;; esac
    line="{\"check\":\"$1\",\"result\":\"$2\""
    [ -z "$3" ] || line+=",\"reason\":\"$(quoted "$3")\""
    shift 3
    while [ $# -gt 1 ]; do
        line+=",\"$1\":$2"
        shift 2
    done
    echo "$line}"
}

summary() {
    echo "{\"summary\":true,\"card\":\"$(quoted "${card:-}")\",\"simulated\":$([ $simulated = 1 ] && echo true || echo false),\"passed\":$passed,\"failed\":$failed,\"missed\":$missed,\"skipped\":$skipped,\"seconds\":$SECONDS}"
}

# ---- is there a card? ----

skip_all() {
    result all SKIPPED "$1"
    summary
    say "SKIPPED: $1"
    exit 77
}

if [ $simulated = 0 ]; then
    compgen -G '/dev/nvidia[0-9]*' > /dev/null || skip_all "no NVIDIA card here: there is no /dev/nvidia0"
fi
for tool in cmake cc timeout; do
    command -v $tool > /dev/null || skip_all "$tool is not installed"
done

# ---- build ----

work=$(mktemp -d /tmp/vgpu-gpu-XXXXXX)
holder=
cleanup() {
    [ -z "$holder" ] || kill "$holder" 2> /dev/null
    rm -rf "$work"
}
trap cleanup EXIT

say "building libvgpu"
build=$root/libvgpu/build checks=$root/libvgpu/build/bin/vgpu-checks
if ! { cmake -S "$root/libvgpu" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo &&
    cmake --build "$build" -j"$(nproc)" --target vgpu vgpu-checks simcuda simnvml; } > "$work/build.log" 2>&1; then
    tail -20 "$work/build.log" >&2
    result build FAIL "libvgpu does not build"
    summary
    exit 1
fi
result build PASS ""

if [ $simulated = 1 ]; then
    echo '{"cards": [{"uuid": "GPU-11111111-2222-3333-4444-000000000000", "name": "Simulated H200", "memory_mib": 143771,
        "sm_count": 132, "context_mib": 500}]}' > "$work/node.json"
    export HAMI_SIM_DRIVER=$work/node.json LD_LIBRARY_PATH=$build/sim HAMI_SIM_KERNEL_MICROSECONDS=2000
fi
unset CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_SM_LIMIT LD_PRELOAD
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}

# ---- running a program bare or in a slice ----

limit_mib=8000
limit=$((limit_mib * 1024 * 1024))
output=$work/output errors=$work/errors
slices=0

# A slice of its own: a fresh region file.
new_slice() {
    slices=$((slices + 1))
    mkdir -p "$work/slice-$slices"
    slice=(env "LD_PRELOAD=$build/lib/libvgpu.so" "CUDA_DEVICE_MEMORY_SHARED_CACHE=$work/slice-$slices/region.cache"
        "CUDA_DEVICE_MEMORY_LIMIT=${limit_mib}m" GPU_CORE_UTILIZATION_POLICY=FORCE)
}

attempt() { timeout 120 "$@" > "$output" 2> "$errors"; }
value() { awk -v key="$1" '$1 == key { $1 = ""; sub(/^ /, ""); print }' "$output"; }
why() { tail -c 600 "$errors"; }

check() { # CHECK COMMAND...: passes when the command does
    local name=$1 status
    shift
    say "$name"
    attempt "$@"
    status=$?
    if [ $status = 0 ]; then result "$name" PASS ""; else result "$name" FAIL "status $status: $(why)"; fi
}

say "looking at the card"
if ! attempt "$checks" info; then
    [ $simulated = 1 ] || skip_all "the driver does not start: $(why)"
    result card FAIL "$(why)"
    summary
    exit 1
fi
card=$(value name)
result card PASS "" total_bytes "$(value total_bytes)" processors "$(value processors)"

# ---- memory ----

new_slice
check memory_exact "${slice[@]}" "$checks" memory $limit
check nvml_shows_the_slice "${slice[@]}" "$checks" nvml $limit

say "memory_shared"
new_slice
held=$((limit / 2))
mkfifo "$work/fifo"
"${slice[@]}" "$checks" hold $held < "$work/fifo" > "$work/held" 2>&1 &
holder=$!
exec 9> "$work/fifo"
for ((tries = 0; tries < 600; tries++)); do
    grep -q held "$work/held" && break
    kill -0 $holder 2> /dev/null || break
    sleep 0.1
done
if grep -q held "$work/held"; then
    check memory_shared_by_two_processes "${slice[@]}" "$checks" shared $limit $held
else
    result memory_shared_by_two_processes FAIL "the first process did not get its half: $(cat "$work/held")"
fi
kill -9 $holder 2> /dev/null # what it held is the slice's again
wait $holder 2> /dev/null
holder=
exec 9>&-
check memory_after_a_kill "${slice[@]}" "$checks" memory $limit

# ---- the CUDA runtime, PyTorch, nvidia-smi ----

find_runtime() {
    [ -z "${CUDART:-}" ] || { echo "$CUDART" && return; }
    local python folder
    for python in "$root/.venv/bin/python" python3; do
        folder=$("$python" -c 'import site, sys; print("\n".join(site.getsitepackages() + sys.path))' 2> /dev/null) || continue
        while read -r folder; do
            [ -n "$folder" ] || continue
            compgen -G "$folder/nvidia/cuda_runtime/lib/libcudart.so.*" && return
            compgen -G "$folder/nvidia/cu*/lib/libcudart.so.*" && return
        done <<< "$folder"
    done | head -1
    compgen -G '/usr/local/cuda/lib64/libcudart.so.*' | head -1
    ldconfig -p 2> /dev/null | awk '/libcudart\.so\./ { print $NF; exit }'
}

if [ $simulated = 1 ]; then
    result cuda_runtime_memory_exact SKIPPED "the runtime needs export tables that only the real driver has"
else
    runtime=$(find_runtime | head -1)
    if [ -z "$runtime" ]; then
        result cuda_runtime_memory_exact SKIPPED "no libcudart found; name one in \$CUDART"
    else
        new_slice
        check cuda_runtime_memory_exact "${slice[@]}" "$checks" runtime "$runtime" $limit
    fi
fi

if [ $simulated = 1 ]; then
    result pytorch SKIPPED "needs a real card"
elif ! timeout 120 python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' > /dev/null 2>&1; then
    result pytorch SKIPPED "PyTorch with CUDA is not installed"
else
    new_slice
    check pytorch "${slice[@]}" python3 "$root/tests/gpu/pytorch_checks.py" $limit
fi

say "nvidia_smi"
if [ $simulated = 1 ] || ! command -v nvidia-smi > /dev/null; then
    result nvidia_smi_shows_the_slice SKIPPED "there is no nvidia-smi"
else
    new_slice
    attempt "${slice[@]}" nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits
    shown=$(head -1 "$output" | tr -d ' ')
    if [ "$shown" = "$limit_mib" ]; then
        result nvidia_smi_shows_the_slice PASS "" mib "$shown"
    else
        result nvidia_smi_shows_the_slice FAIL "it shows \"$shown\" MiB, not $limit_mib $(why)"
    fi
fi

# ---- compute ----

seconds=8 kernel_us=2000
[ $quick = 0 ] || seconds=1

within() { awk -v got="$1" -v wanted="$2" 'BEGIN { exit !(got >= wanted - 5 && got <= wanted + 5) }'; }

for percent in 30 60; do
    say "core_limit $percent"
    new_slice
    if ! attempt "${slice[@]}" CUDA_DEVICE_SM_LIMIT=$percent "$checks" spin $seconds $kernel_us; then
        result core_limit FAIL "$(why)" requested $percent
    elif within "$(value percent)" $percent; then
        result core_limit PASS "" requested $percent held "$(value percent)"
    else
        result core_limit FAIL "further than 5 points off" requested $percent held "$(value percent)"
    fi
done

say "core_limit, two processes"
new_slice
timeout 120 "${slice[@]}" CUDA_DEVICE_SM_LIMIT=50 "$checks" spin $seconds $kernel_us > "$work/other" 2>&1 &
other=$!
attempt "${slice[@]}" CUDA_DEVICE_SM_LIMIT=50 "$checks" spin $seconds $kernel_us
status=$?
wait $other || status=1
both=$(cat "$output" "$work/other" | awk '$1 == "percent" { sum += $2 } END { print sum + 0 }')
if [ $status = 0 ] && within "$both" 50; then
    result core_limit_of_two_processes PASS "" requested 50 held "$both"
else
    result core_limit_of_two_processes FAIL "status $status, $(why)" requested 50 held "$both"
fi

say "no core limit"
new_slice
attempt "${slice[@]}" "$checks" spin $seconds $kernel_us
if awk -v got="$(value percent)" 'BEGIN { exit !(got >= 85) }'; then
    result no_core_limit PASS "" held "$(value percent)"
else
    result no_core_limit FAIL "a slice without a limit does not get the card: $(why)" held "$(value percent | grep . || echo 0)"
fi

# ---- costs: bare and in a slice in turn, the best of each ----

least() { awk 'NR == 1 || $1 < least { least = $1 } END { print least }' "$1"; }

cost() { # CHECK COMMAND BUDGET_NS
    local round added bare hooked rounds=5
    [ $quick = 0 ] || rounds=1
    say "$1"
    new_slice
    rm -f "$work/bare" "$work/hooked"
    for ((round = 0; round < rounds; round++)); do
        attempt env HAMI_SIM_KERNEL_MICROSECONDS=0 "$checks" "$2" && value ns >> "$work/bare" || return 1
        attempt "${slice[@]}" HAMI_SIM_KERNEL_MICROSECONDS=0 "$checks" "$2" && value ns >> "$work/hooked" || return 1
    done
    bare=$(least "$work/bare") hooked=$(least "$work/hooked")
    added=$(awk -v a="$hooked" -v b="$bare" 'BEGIN { printf "%.1f", a - b }')
    if awk -v added="$added" -v budget="$3" 'BEGIN { exit !(added <= budget) }'; then
        result "$1" PASS "" bare_ns "$bare" hooked_ns "$hooked" added_ns "$added" budget_ns "$3"
    else
        result "$1" MISS "" bare_ns "$bare" hooked_ns "$hooked" added_ns "$added" budget_ns "$3"
    fi
}

cost launch_cost launch-cost 40 || result launch_cost FAIL "$(why)"
cost alloc_free_cost alloc-cost 400 || result alloc_free_cost FAIL "$(why)"
cost init_cost init-cost 5000000 || result init_cost FAIL "$(why)"

summary
[ $failed = 0 ]
