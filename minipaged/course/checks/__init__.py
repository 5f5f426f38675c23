"""The checks and hints of the exercises, a file a lesson."""
