"""Operations on a CUDA device, and all that operations use of torch's CUDA."""
