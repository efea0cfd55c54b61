"""Two small programs around ``holdfast.Queue``; each runs by itself and checks what it claims."""
