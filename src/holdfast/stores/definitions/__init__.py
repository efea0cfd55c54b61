"""The definitions of clusters, stores, durables and templates: values, rules and changes."""
