#!/usr/bin/env python3
"""Text in, text out: a trained MoE model with its experts spread over several processes.

    torchrun --nproc-per-node 4 examples/generate.py --prompt "In the beginning"
    moewire demo                                      # the same, and starts the processes itself

Each rank has its own prompts, every R-th of those given; its tokens go to the ranks that hold
their experts. Then one process does the same alone, and the texts are compared: exit status 0
means equal, token for token. ``--help`` says more. What is special to Moewire is this:

    import moewire.integrations.transformers as moe

    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        distributed_config=DistributedConfig(fsdp_size=R, ep_size=R, ep_implementation="moewire"),
    )
    moe.gather_dense_weights(model)  # not in every forward
    model(...)                       # on a rank with tokens
    moe.join(model)                  # on a rank without: it serves the others' tokens
"""

from moewire.demo import main

if __name__ == "__main__":
    raise SystemExit(main())
