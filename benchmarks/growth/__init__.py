"""What a trained step costs, as one thing of a run grows."""
