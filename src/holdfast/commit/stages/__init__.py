"""The four stages of a commit: sequence, resolve, persist, release, and the pipeline that joins them."""
