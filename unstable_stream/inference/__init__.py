"""Generate text: the engine port, its engines and the players built on them.

Import the module you need. This package itself loads nothing, because each engine brings its own heavy
library.
"""
