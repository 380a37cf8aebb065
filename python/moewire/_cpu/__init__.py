"""Operations on the CPU: the calling thread drives them."""
