"""What if: ratings and rewards under other parameters, as labelled sets beside those recorded."""
