"""Games of OpenSpiel as environments: ``openspiel:kuhn_poker``. The only package that loads OpenSpiel.

:mod:`~unstable_stream.games.openspiel.games` loads a game, says which can be played, and plays,
:mod:`~unstable_stream.games.openspiel.wording` words what a player knows and names the moves,
:mod:`~unstable_stream.games.openspiel.solution` tells how far a policy is from optimal play. Importing this
package loads none of them.
"""
