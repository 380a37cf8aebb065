#!/bin/sh
# Starting ranks with torchrun: runs ../moe_layer.py on two, on this machine.
exec torchrun --standalone --nproc-per-node "${1:-2}" "$(dirname "$0")/../moe_layer.py"
