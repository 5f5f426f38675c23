"""What a notebook calls."""
