"""Openings of stories."""

PIP = "Once upon a time, there was a little fox named Pip."
LILY = "One day, a girl named Lily"
# the embedded model can begin stories, and nothing else
OPENINGS = (
    PIP,
    LILY,
    "Once upon a time, a",
    "A long time ago,",
    "In the forest lived a bear named Bo.",
    "Tom had a red kite.",
)
