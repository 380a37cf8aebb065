"""Operations on a CUDA device, and all of this package's use of torch's CUDA."""
