"""Small programs around ``holdfast.Queue`` and ``holdfast.persist``; each runs by itself and checks what it claims."""
