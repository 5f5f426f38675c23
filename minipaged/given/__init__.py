"""Given: read, not written.

The model, checks of inputs, and what is fast where the chapters are plain. Nothing here imports a
chapter.
"""
