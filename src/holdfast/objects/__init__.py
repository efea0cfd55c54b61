"""Object stores: one port and one adapter per kind.

Read ``port`` first: create-if-absent with three answers (created, refused, unknown), read, ordered listing, delete.
``open`` makes a store from a URL: ``memory``, ``directory`` (worker processes on a local file system), ``cloud`` (S3,
Azure, GCS through obstore) or ``etcd`` (a majority of disks). ``budget`` limits connections and time, ``retrying``
repeats reads; ``probe`` checks at start that a store is fit for a log; ``credentials`` looks for S3 credentials.
"""
