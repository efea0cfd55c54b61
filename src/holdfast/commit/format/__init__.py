"""The formats of the log.

``transaction`` has the requests and their outcomes, ``json_request`` their JSON, ``batch`` the object in the store, and
``chain`` the rule by which one object follows another.
"""
