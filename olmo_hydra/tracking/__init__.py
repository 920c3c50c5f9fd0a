"""What a run writes about itself: rows and events in the run directory, W&B, and the progress line."""
