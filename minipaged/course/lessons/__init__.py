"""The lessons: all that an author edits for one is in its folder."""
