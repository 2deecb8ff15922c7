#!/bin/sh
# The paper's tables and figures of PACS on jointly trained models, one training for each target and kind of model.
#
#     sh examples/paper_pacs.sh /path/to/pacs OUT [more options of `sourceward reproduce`]
#
# Killed at any time and started again with the same words, it goes on from the last checkpoint; what is trained stays in
# OUT/models. docs/reproduction.md says what it costs. A ResNet-50 in minutes, and not as long as in the paper:
#
#     sh examples/paper_pacs.sh /path/to/pacs OUT --set max_iter=4000 --set batch_size=32 --set evaluate_every=4000 \
#         --set backbone_learning_rate=5e-5 --set num_draws=0 --set train.average=1 --set update_per_source=false \
#         --set finetune.compile=true
set -eu
data=$1 out=$2
shift 2

run() {
    names=$1 folder=$2
    shift 2
    sourceward reproduce "$names" --data "pacs:$data" --preset pacs-resnet50 --models "$out/models" --out "$folder" "$@"
}

# With latent: one model for each target. --num-steps is of adaptation; by the mean, by energy and the other aggregations.
for steps in 10 20 50; do
    run aggregation "$out/aggregation-$steps" --num-steps "$steps" "$@"
done
run per-source,latent,latent-map,maps,trajectories "$out" "$@"

# Without latent, too: as many models again.
run ablation,steps "$out" "$@"
