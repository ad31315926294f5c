"""Who owns which slot: integers only, no tensors."""
