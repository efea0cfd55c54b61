"""Work on the files of stores: ``backup`` makes and restores copies, ``damage`` repairs, ``reader`` reads messages."""
