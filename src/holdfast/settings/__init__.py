"""Settings: what a service runs with, where each value came from, and why a value is refused.

Owns: every configuration key, its default, its rule and the reasons behind the rules (``model``); reading one value
from TOML, environment text or a flag (``parse``); the order of sources, unknown keys and provenance (``load``).
Does not own: acting on a setting. Components get what they need as plain arguments; none of them imports this package.

Failure model: a configuration is used whole or refused whole, with every problem named in one error, before anything is
opened. Nothing is read again after the start.
"""

from __future__ import annotations

from holdfast.settings.load import Configuration, Origin, load_configuration
from holdfast.settings.model import (
    KEYS,
    CommitSettings,
    LeaderSettings,
    LoggingSettings,
    LogSettings,
    PersistSettings,
    ServerSettings,
    Settings,
    StoresSettings,
    SubscriptionSettings,
    ViewSettings,
)
from holdfast.settings.parse import Role, Token

__all__ = [
    "KEYS",
    "CommitSettings",
    "Configuration",
    "LeaderSettings",
    "LogSettings",
    "LoggingSettings",
    "Origin",
    "PersistSettings",
    "Role",
    "ServerSettings",
    "Settings",
    "StoresSettings",
    "SubscriptionSettings",
    "Token",
    "ViewSettings",
    "load_configuration",
]
