"""``verify``: what was derived is computed again from its causes, games are played again, all is compared."""
