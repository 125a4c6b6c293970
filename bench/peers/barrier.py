"""The peer of barrier_program: a rank joins the others and passes one barrier. Started by torchrun."""
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    print("barrier", flush=True)
dist.barrier()
dist.destroy_process_group()
