"""Weights in and out: Hugging Face folders and run directories, read and written one tensor at a time."""
