"""Play a game in disguise: the same game, told otherwise. Is it reasoning or memory?

``disguise:3:TicTacToe-v0-train`` is the third disguise of that environment: the board mirrored, the squares
and marks named otherwise, other words for actions, other order and wording of the rules. 0 is the game as it
is. ``disguise:1-8:…`` draws one of eight by the seed of each game. ``disguise:board-3:…`` mirrors and
renumbers a board in the game's own words, so that a template that reads boards can read it.

A disguise is a function of the environment and the number, and the number is in the environment's id: what
was recorded can be played again. The tests walk whole games to prove that it is the same game.
"""
