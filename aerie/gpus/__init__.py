"""Proof that every GPU computes and reaches the others: cards that NVML calls healthy can give wrong data or hang."""
