"""The values that the parts of the stores exchange: messages, commands, effects and ports."""
