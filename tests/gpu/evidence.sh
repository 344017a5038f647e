#!/usr/bin/env bash
# Measures published run files again: `tests/gpu/evidence.sh FOLDER PART...`, from the repository's root.
#
# A part is a group of files that are measured one after another on the GPU that CUDA_VISIBLE_DEVICES
# names (`ranks` and `multi` on all that it names). Each command has a limit in seconds, writes its
# run file and its screen to FOLDER, and a line with its exit code and seconds to FOLDER/times.txt.
set -u
folder=$(realpath "$1")
shift
mkdir -p "$folder"

take() { # take SECONDS NAME COMMAND...: NAME.json where the command writes one
    local limit=$1 name=$2 began=$SECONDS
    shift 2
    timeout --signal=TERM "$limit" python3 -m "$@" >"$folder/$name.txt" 2>&1
    echo "$name: exit code $?, $((SECONDS - began)) s: python3 -m $*" | tee -a "$folder/times.txt"
}
files() { echo --json "$folder/$1.json"; }

shapes() { # issue 32: our kernels beside the better library on shapes that no table holds
    take 240 shapes-gemm microbench gemm --dtype fp16 --shapes results/shapes/gemm.csv \
        --backend cublas,cublaslt,triton --vs none --processes 1 --budget 60 $(files shapes-gemm)
    take 300 shapes-conv microbench conv --dtype fp16 --shapes results/shapes/conv.csv \
        --backend cudnn,triton --vs none --budget 90 $(files shapes-conv)
}
main() { # the main command with empty caches, then with warm ones
    local cache
    cache=$(mktemp -d)
    for run in cold warm; do
        XDG_CACHE_HOME=$cache TRITON_CACHE_DIR=$cache/triton take 90 "gemm-fp16-$run" \
            microbench gemm --dtype fp16 --sizes 256..8192 $(files "gemm-fp16-$run")
    done
}
peak() {
    take 150 peak microbench peak $(files peak)
    take 150 peak-burst microbench peak --regime burst $(files peak-burst)
}
widths() { # the curve of every channel width
    local pass
    for pass in fprop wgrad dgrad; do
        take 150 "conv-fine-$pass" microbench conv --dtype fp16 --channels 1..72:+1 --pass "$pass" \
            --layout nhwc --image 28 --batch 64 --vs none --backend cudnn,triton --budget 30 \
            $(files "conv-fine-$pass")
    done
}
convolutions() { # every power of two in both layouts, groups, depthwise, FP8
    local pair=(--vs none --backend "cudnn,triton") passes=(--pass "fprop,dgrad,wgrad")
    local last=(--layout nhwc --image 28 --batch 64)
    take 150 conv-powers microbench conv --dtype fp16 --channels 8..2048 --batch 32 --budget 20 \
        "${passes[@]}" "${pair[@]}" $(files conv-powers)
    take 90 conv-groups microbench conv --dtype fp16 --channels 128..1024 --groups 32 --budget 12 \
        "${passes[@]}" "${last[@]}" "${pair[@]}" $(files conv-groups)
    take 90 conv-depthwise microbench conv --dtype fp16 --channels 64..1024 --groups depthwise \
        --budget 12 "${passes[@]}" "${last[@]}" "${pair[@]}" $(files conv-depthwise)
    take 90 conv-fp8 microbench conv --dtype fp8,fp16 --channels 64..2048 --pass fprop,dgrad \
        --budget 12 "${last[@]}" "${pair[@]}" $(files conv-fp8)
}
tuned() {
    take 60 autotune microbench gemm --dtype fp16,bf16 --sizes 1536,3072 --backend triton --vs none \
        --autotune $(files autotune)
    take 200 gemm-triton microbench gemm --dtype fp16,bf16,fp8,tf32,int8 --vs none \
        --backend cublas,cublaslt,triton --sizes 256..8192,1536,3072 --processes 1 \
        $(files gemm-triton)
    take 120 selftest microbench selftest $(files selftest)
}
ablation() { # one technique left out at a time, on the first half of the shapes
    head -n 33 results/shapes/gemm.csv >"$folder/half.csv"
    left_out all ''
    left_out no-gluon 'gluon/*'
    left_out no-skinny 'skinny/*'
    left_out no-split 'split_k/*'
    left_out no-widths 'gluon/*x80x*,gluon/*x96x*,gluon/*x144x*,gluon/*x160x*,gluon/*x192x*'
    # A cache of its own: without timing, the winners that the runs above kept would run again.
    XDG_CACHE_HOME=$(mktemp -d) left_out no-tune '' --no-tune
}
left_out() { # left_out NAME PATTERNS OPTIONS...
    take 120 "ablation-$1" microbench gemm --dtype fp16 --shapes "$folder/half.csv" \
        --backend triton --vs none --processes 1 --budget 10 --without "$2" "${@:3}" \
        $(files "ablation-$1")
}
step() { # step NAME BATCH NETWORK RECIPES: compiling takes most of the time
    take 300 "train-fp8-$1" e2e "$3" --recipe "$4" --compile --batch "$2" --budget 9 \
        $(files "train-fp8-$1")
}
fp8() { # a step in FP8 beside one in BF16, by the width of its linear layers, and of networks
    local width
    for width in 768 1024 2048 4096; do
        step "$width" 16 "examples.transformer_widths:width_$width" amp-bf16,fp8,fp8-rowwise
    done
    step gpt 16 gpt amp-bf16,fp8,fp8-rowwise
    step gpt-medium 16 gpt-medium amp-bf16,fp8
    step gpt-xl 6 gpt-xl amp-bf16,fp8
    step vit_l_16 64 vit_l_16 amp-bf16,fp8
}
ranks() { # weak and strong scaling over one, two and four GPUs, gradients in 32 and 16 bits
    take 280 ranks-resnet50 e2e resnet50 --recipe amp --gpus 1,2,4 --compress none,bf16 --budget 30 \
        $(files ranks-resnet50)
    take 180 ranks-strong e2e resnet50 --recipe amp --gpus 1,2,4 --strong --batch 512 --budget 20 \
        $(files ranks-strong)
}
multi() { # the studies that several GPUs serve
    take 280 finetune-multigpu e2e study finetune-multigpu --profile quick --gpus 1,2 \
        --out "$folder/finetune-multigpu"
    take 280 resnet-precisions e2e study resnet-precisions --profile quick --gpus 1,2 \
        --out "$folder/resnet-precisions"
}

for part in "$@"; do
    case $part in
        shapes | main | peak | widths | convolutions | tuned | ablation | fp8 | ranks | multi) "$part" ;;
        *) echo "no such part: $part" >&2 && exit 2 ;;
    esac
done
