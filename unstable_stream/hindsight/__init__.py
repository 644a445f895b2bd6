"""History put to use: replay, other ratings, other rewards, and why something happened."""
