"""Definitions: what an administrator configures, read from a document and checked.

``ClusterDefinition`` (``cluster``) is the whole; ``reader`` reads its values, ``permissions`` has users and roles, and
``parts`` changes single stores and durables and says which changes a running cluster allows. ``changes`` reads a
request's change as such parts.
"""
